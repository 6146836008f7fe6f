"""Run died: a rank's process is gone, and it never said goodbye.

Formula
    Finding    = a rank ended without writing its STOP, and none had failed by its own word before;
                 told once none is left, or `settle` seconds later; with several nodes, once all
                 others have spoken since, and not where one that is lost explains it: then
                 `node_lost` tells of both; of an elastic launcher that lives, whose ranks go within
                 35 seconds, if they do not come back, or if it says that they had failed

Units
    `ranks_gone`: ranks of the current attempt whose process no longer exists. `settle`: seconds.

Source
    SIGKILL, the out-of-memory killer and `os._exit` leave no chance to speak, so death is seen from
    outside, by process id and start time. Under `sentinel run` the command's own end is known, and
    named: SIGKILL is most often the out-of-memory killer.

Defaults
    A process that is gone is gone. `settle` 1 lets the page name all that fell together: a launcher
    looks every tenth of a second and ends the others at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record


@dataclass
class RunDied:
    settle: float = 1.0

    needs: ClassVar[frozenset[str]] = frozenset({"ranks_gone"})
    signal: ClassVar[str] = "ranks_gone"
    severity: ClassVar[Severity] = Severity.CRITICAL
    remedy: ClassVar[str] = (
        "Look for the out-of-memory killer (dmesg, cgroup memory.events), the scheduler's log and "
        "the node's health, then resume from the last checkpoint."
    )

    def __post_init__(self) -> None:
        self._died_time: float | None = None

    def update(self, record: Record) -> DetectorOutput:
        if record.attributes.get("cause") != "died":
            self._died_time = None
            return Clear()
        # Counted from here on, whatever is waited for; a clock that is set back begins anew.
        self._died_time = (
            record.time if self._died_time is None else min(record.time, self._died_time)
        )
        if record.attributes.get("failure_origin") or record.attributes.get("elastic_restart"):
            return None
        left = int(record.values["ranks_running"])
        # A launcher that still waits for the command will know by which signal it ended.
        more_to_come = left or record.attributes.get("launcher") == "running"
        # An agent that is leaving will not look again.
        if (
            more_to_come
            and "final" not in record.attributes
            and record.time - self._died_time < self.settle
        ):
            return None
        gone = record.attributes["died_ranks"].split(",")
        who = f"Rank {gone[0]} was" if len(gone) == 1 else f"Ranks {', '.join(gone)} were"
        rest = f"{left} still run{'s' * (left == 1)}" if left else "none is left"
        known = {
            key: record.attributes[key]
            for key in ("signal", "exit_code")
            if key in record.attributes
        }
        killed = f"killed by {known['signal']}" if "signal" in known else "killed"
        return Finding(
            summary=f"{who} {killed} at step {record.step} without a word; {rest}.",
            evidence={
                "ranks_gone": record.values["ranks_gone"],
                "last_step": record.step,
                **known,
            },
            rank=int(gone[0]),
        )
