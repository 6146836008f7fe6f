"""Attaches and detaches integrations without a run, for `sentinel doctor`.

`python -m sentinel.client.dry_run OUT NAME...` imports the frameworks of the named integrations and
writes the result of each to the file OUT, as JSON. It runs in a separate process: importing a
framework is slow, takes memory, and may fail in ways that cannot be caught.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from sentinel.client.capture.loop import TrainingLoop
from sentinel.client.capture.patcher import Patcher
from sentinel.client.guard import ErrorGuard
from sentinel.client.recorder import Recorder
from sentinel.transport.identity import Identity
from sentinel.transport.ring import RingWriter

_RING_BYTES = 1 << 20


@dataclass(frozen=True)
class DryRunResult:
    """The result of attaching one integration.

    `state` is the state that the patcher reports: "on", "on, without Owner.attribute", or "off:
    ValueError in attach"; or "absent: " and the reason why the framework could not be imported.
    `version` is the framework's `__version__`, or empty.
    """

    integration: str
    version: str
    state: str


class _DryRunPatcher(Patcher):
    """A patcher that stores its state instead of recording it."""

    state = ""

    def report_state(self, state: str) -> None:
        self.state = state


def dry_run(names: Iterable[str]) -> list[DryRunResult]:
    """Attach each named integration, in order. Raises ImportError for an unknown name."""
    with TemporaryDirectory(prefix="sentinel-dry-run-") as folder:
        ring = RingWriter(Path(folder) / "0-0.ring", Identity("dry-run"), _RING_BYTES)
        recorder = Recorder(ring, ErrorGuard(ring.count_error), lambda: None)
        return [_try_integration(name, recorder) for name in names]


def _try_integration(name: str, recorder: Recorder) -> DryRunResult:
    integration = import_module(f"sentinel.integrations.{name}")
    try:
        import_module(integration.FRAMEWORK)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return DryRunResult(name, _version(integration.FRAMEWORK), f"absent: {reason}")
    patcher = _DryRunPatcher(name, recorder, TrainingLoop(recorder))
    try:
        patcher.attach(integration.attach)
    finally:
        patcher.undo()
    return DryRunResult(name, _version(integration.FRAMEWORK), patcher.state)


def _version(framework: str) -> str:
    package = sys.modules.get(framework.partition(".")[0])
    return str(getattr(package, "__version__", ""))


if __name__ == "__main__":
    results = [asdict(result) for result in dry_run(sys.argv[2:])]
    Path(sys.argv[1]).write_text(json.dumps(results))
