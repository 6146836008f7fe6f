"""Run died: the process of a rank ended without a final message.

Formula
    Finding    = a rank ended without writing STOP, and no rank had failed with an error before. It
                 is reported once no rank is left, or `settle` seconds later; in a run on several
                 nodes once all other nodes have reported since, and not if a lost node explains it
                 (see `node_lost`). With an elastic launcher whose ranks end within 35 seconds, only
                 if they do not restart or the launcher reports their failure

Units
    `ranks_gone`: ranks of the current attempt whose process no longer exists. `settle`: seconds.

Source
    SIGKILL, the out-of-memory killer and `os._exit` leave no time for a message, so death is
    detected from outside, by process id and start time. Under `sentinel run` the exit status of the
    command is known; SIGKILL is usually the out-of-memory killer.

Defaults
    `settle` 1 lets the notification name all ranks that ended together: a launcher polls every
    tenth of a second and ends the others at once.
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
        "Check for the out-of-memory killer (dmesg, cgroup memory.events), the scheduler's log and "
        "the health of the node, then resume from the last checkpoint."
    )

    def __post_init__(self) -> None:
        self._died_time: float | None = None

    def update(self, record: Record) -> DetectorOutput:
        if record.attributes.get("cause") != "died":
            self._died_time = None
            return Clear()
        # `settle` counts from the first such record, or from now if the clock was set back.
        self._died_time = (
            record.time if self._died_time is None else min(record.time, self._died_time)
        )
        if record.attributes.get("failure_origin") or record.attributes.get("elastic_restart"):
            return None
        running = int(record.values["ranks_running"])
        # A launcher that still waits for the command reports the signal that ended it.
        may_change = running or record.attributes.get("launcher") == "running"
        # The last heartbeat of an agent is final.
        if (
            may_change
            and "final" not in record.attributes
            and record.time - self._died_time < self.settle
        ):
            return None
        dead = record.attributes["died_ranks"].split(",")
        subject = f"Rank {dead[0]} was" if len(dead) == 1 else f"Ranks {', '.join(dead)} were"
        texts = {0: "no rank is left", 1: "1 rank still runs"}
        rest = texts.get(running, f"{running} ranks still run")
        exit_details = {
            key: record.attributes[key]
            for key in ("signal", "exit_code")
            if key in record.attributes
        }
        killer = f" by {exit_details['signal']}" if "signal" in exit_details else ""
        return Finding(
            summary=f"{subject} killed{killer} at step {record.step} without an error message; "
            f"{rest}.",
            evidence={
                "ranks_gone": record.values["ranks_gone"],
                "last_step": record.step,
                **exit_details,
            },
            rank=int(dead[0]),
        )
