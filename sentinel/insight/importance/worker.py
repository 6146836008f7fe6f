"""The process that works out an importance for the web server, which stays responsive meanwhile.

It reads one JSON object from standard input: `runs` (path by name) and the arguments of
`importance`. It writes JSON lines: {"progress", "text"} as it goes on, and {"result"} or {"error"}
at the end. It has a limit of memory, a low priority, and ends when its time is over.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sentinel.model.json_safe import JsonObject
from sentinel.pipeline.onset_process import child_environment

MAX_SECONDS = 600
MAX_MEMORY_BYTES = 4 << 30

_NICENESS = 10
_INTERVAL_SECONDS = 0.2
_SCRIPT = "from sentinel.insight.importance.worker import main; main()"


def start_worker() -> subprocess.Popen[str]:
    """Start the process, with pipes for input and output. Raises OSError."""
    return subprocess.Popen(  # noqa: S603 - our own command line
        [sys.executable, "-P", "-c", _SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_environment(),
        text=True,
    )


def main() -> None:
    """Answer the request on standard input."""
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    os.nice(_NICENESS)
    # Whatever a file on a hanging disk or a library does.
    signal.alarm(MAX_SECONDS)
    request = json.loads(sys.stdin.read())
    try:
        _write({"result": _answer(request, _reporter())})
    except (ValueError, ImportError, OSError) as error:
        _write({"error": str(error)})
    except MemoryError:
        _write({"error": "it needs too much memory for so many runs"})


def _answer(request: JsonObject, report: Callable[[float, str], None]) -> JsonObject:
    # The server that starts this process needs neither numpy nor the readers of logs.
    from sentinel.insight.importance.importance import importance  # noqa: PLC0415
    from sentinel.insight.importance.run_collection import collect_runs  # noqa: PLC0415

    found = collect_runs(
        {name: Path(path) for name, path in request["runs"].items()},
        request["outcome"],
        statistic=request["statistic"],
        better=request["better"],
        progress=lambda done, total: report(done / total, f"Reading run {done + 1} of {total}"),
    )
    result = importance(
        found.runs,
        found.outcome,
        better=request["better"],
        failed=request["failed"],
        exclude=request["exclude"],
        progress=lambda share: report(share, "Fitting forests"),
    )
    result = replace(result, note=[*result.note, *found.notes])
    return result.to_json() | {"outcomes": found.outcomes}


def _reporter() -> Callable[[float, str], None]:
    last = [0.0]

    def report(progress: float, text: str) -> None:
        if time.monotonic() - last[0] >= _INTERVAL_SECONDS:
            last[0] = time.monotonic()
            _write({"progress": round(progress, 3), "text": text})

    return report


def _write(message: JsonObject) -> None:
    sys.stdout.write(json.dumps(message, allow_nan=False) + "\n")
    sys.stdout.flush()
