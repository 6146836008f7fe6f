"""Reads one call as JSON and records it. The exit status is 0, 65 for good, or 75 for now."""

from __future__ import annotations

import importlib
import json
import logging
import sys

from sentinel.notify.trackers.outcome import NotRecordedError

REJECTED_STATUS, RETRY_STATUS = 65, 75
"""`EX_DATAERR` and `EX_TEMPFAIL` of sysexits(3)."""


def main() -> int:
    """Record the call on standard input; print the reason as JSON if that failed."""
    call = json.load(sys.stdin)
    logging.disable()
    # A library may print to standard output, which is the outcome.
    outcome, sys.stdout = sys.stdout, sys.stderr
    try:
        module = importlib.import_module(f"sentinel.notify.trackers.{call['tracker']}")
        module.record(call)
    except NotRecordedError as error:
        print(json.dumps({"reason": error.reason}), file=outcome)
        return REJECTED_STATUS if error.is_final else RETRY_STATUS
    return 0


if __name__ == "__main__":
    sys.exit(main())
