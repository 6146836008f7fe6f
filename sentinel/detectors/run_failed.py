"""Run failed: the training function raised an exception or exited with a non-zero code.

Formula
    Finding    = the STOP of a rank is `exception`, or `exit` with a code, before any rank died; or
                 `sentinel run` saw the command fail although no rank did, or none had started; in a
                 run on several nodes once all other nodes have reported since, and not if a lost
                 node explains it (see `node_lost`)

Units
    `ranks_failed`: ranks of the current attempt that ended with an error of their own.

Source
    The launcher ends the other ranks once one fails, so only the first failure is the cause.

Defaults
    No settings. A keyboard interrupt is not reported.
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
        "Read the traceback in the trainer's log, fix the error, then resume from a checkpoint."
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
        how = f"raised {error}" if cause == "exception" else f"exited with code {code}"
        return Finding(
            summary=f"Rank {first} {how} at step {record.step}.",
            evidence={
                "ranks_failed": record.values["ranks_failed"],
                "last_step": record.step,
                "error": error if cause == "exception" else f"exit code {code}",
            },
            rank=int(first),
        )

    def _command_finding(self, record: Record) -> Finding:
        code, killer = record.attributes.get("code", "non-zero"), record.attributes.get("signal")
        how = f"was killed by {killer}" if killer else f"exited with code {code}"
        when = (
            "before any rank started"
            if "failed_before" in record.attributes
            else "after every rank had ended"
        )
        return Finding(
            summary=f"The command {how} {when}.",
            evidence={
                "ranks_failed": record.values["ranks_failed"],
                "last_step": record.step,
                "error": killer or f"exit code {code}",
            },
        )
