"""Rehearsal: the taps of integrations put in and taken out again, with no run and no training.

`python -m sentinel.client.dry_run OUT NAME...` loads the frameworks of the integrations named, and
writes to the file OUT what came of each, as JSON. For a process of its own: it imports frameworks,
which is slow, takes memory, and may fail in ways that cannot be caught.
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
    """How one integration's taps went in.

    `state` is what a tap says of itself: "on", "on, without Owner.attribute", "off: ValueError in
    attach", or "absent: " and why the framework could not be imported. `version` is the
    framework's own word, empty where it has none.
    """

    integration: str
    version: str
    state: str


class _DryRunPatcher(Patcher):
    """A tap that keeps its state to itself."""

    state = ""

    def report_state(self, state: str) -> None:
        self.state = state


def dry_run(names: Iterable[str]) -> list[DryRunResult]:
    """Try each integration of these names, in order. Raises ImportError for a name of none."""
    with TemporaryDirectory(prefix="sentinel-rehearsal-") as folder:
        ring = RingWriter(Path(folder) / "0-0.ring", Identity("rehearsal"), _RING_BYTES)
        recorder = Recorder(ring, ErrorGuard(ring.count_error), lambda: None)
        return [_try_integration(name, recorder) for name in names]


def _try_integration(name: str, recorder: Recorder) -> DryRunResult:
    integration = import_module(f"sentinel.integrations.{name}")
    try:
        import_module(integration.FRAMEWORK)
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return DryRunResult(name, _version(integration.FRAMEWORK), f"absent: {why}")
    tap = _DryRunPatcher(name, recorder, TrainingLoop(recorder))
    try:
        tap.attach(integration.attach)
    finally:
        tap.undo()
    return DryRunResult(name, _version(integration.FRAMEWORK), tap.state)


def _version(framework: str) -> str:
    top = sys.modules.get(framework.partition(".")[0])
    return str(getattr(top, "__version__", ""))


if __name__ == "__main__":
    results = [asdict(result) for result in dry_run(sys.argv[2:])]
    Path(sys.argv[1]).write_text(json.dumps(results))
