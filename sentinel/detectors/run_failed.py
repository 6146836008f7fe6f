"""Run failed: the training function raised, or asked for a non-zero exit.

Formula
    Finding    = a rank's STOP says `exception`, or `exit` with a code, before any rank died; or
                 `sentinel run` saw the command fail though no rank did, or none had begun;
                 of several nodes, once all others have spoken since, and not where one that is lost
                 explains it: then `node_lost` tells of both

Units
    `ranks_failed`: ranks of the current attempt that ended by their own error.

Source
    The launcher ends the other ranks once one fails, so only the first to fall is named as cause.

Defaults
    None to choose. An interrupt from the keyboard is nobody's emergency and is not reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record


@dataclass
class RunFailed:
    needs: ClassVar[frozenset[str]] = frozenset({"ranks_failed"})
    signal: ClassVar[str] = "ranks_failed"
    severity: ClassVar[Severity] = Severity.CRITICAL
    remedy: ClassVar[str] = (
        "Read the traceback in the trainer's own log, mend it, and resume from the last checkpoint."
    )

    def update(self, record: Record) -> DetectorOutput:
        cause = record.attributes.get("cause")
        if cause not in {"exception", "exit"}:
            return Clear()
        if record.attributes.get("failure_origin"):
            return None
        if not record.attributes["failed_ranks"]:
            return self._command_finding(record)
        first = record.attributes["failed_ranks"].split(",")[0]
        error = record.attributes.get("exception", "an exception")
        code = record.attributes.get("code", "non-zero")
        how = f"raised {error}" if cause == "exception" else f"left with exit code {code}"
        return Finding(
            summary=f"Rank {first} {how} at step {record.step}.",
            evidence={
                "ranks_failed": record.values["ranks_failed"],
                "last_step": record.step,
                "cause": error if cause == "exception" else f"exit code {code}",
            },
            rank=int(first),
        )

    def _command_finding(self, record: Record) -> Finding:
        code, killer = record.attributes.get("code", "non-zero"), record.attributes.get("signal")
        how = f"was ended by {killer}" if killer else f"left with exit code {code}"
        when = (
            "before any rank began"
            if "failed_before" in record.attributes
            else "after every rank had ended"
        )
        return Finding(
            summary=f"The command {how} {when}.",
            evidence={
                "ranks_failed": record.values["ranks_failed"],
                "last_step": record.step,
                "cause": killer or f"exit code {code}",
            },
        )
