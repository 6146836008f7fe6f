"""Failed run: the training function raised an exception or exited with a non-zero code.

Formula
    Finding    = the first failure of the run is a STOP with `exception`, or `exit` with a code; or
                 `sentinel run` saw the command fail although no rank did, or none had started. It
                 is held for `settle` seconds while ranks still run, three times as long if it is an
                 error of the connection to another rank, so that a rank that is gone is named
                 instead; in a run on several nodes until all other nodes have reported since, and
                 not if a lost node explains it (see `node_lost`)

    A connection error is recognized by its class (such as DistBackendError) or by words of its
    message (connection closed by peer, NCCL, gloo, process group). It is reported only if no rank
    ended by itself. A finding that turns out to follow from the end of another rank is withdrawn.

Units
    `ranks_failed`: ranks of the current attempt that ended with an error of their own. `settle`:
    seconds.

Source
    The launcher ends the other ranks once one fails, so only the first failure is the cause. The
    exception is named by its class, the first line of its message, and the last line of the user's
    code in its traceback. Messages are cut to 200 characters, and credentials in URLs, values of
    names like `password` or `api_key`, addresses of e-mail, and long random texts are masked;
    `[privacy] messages = false` leaves messages out.

Defaults
    `settle` 1: peers of a dead rank raise some milliseconds before its process is gone. A keyboard
    interrupt is not reported.
"""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.detectors._rank_ends import (
    followers_text,
    format_ranks,
    ranks_in,
    unreported_ranks_text,
)
from sentinel.model.finding import Clear, DetectorOutput, Finding, Scope, Severity
from sentinel.model.record import Record

CONSEQUENCE_SETTLE_FACTOR = 3.0
"""How much longer a connection error is held than another one."""
EXIT_CODE_SIGNALS = {"134": "SIGABRT", "137": "SIGKILL", "139": "SIGSEGV"}
"""Exit codes by which shells and launchers report a signal."""


@dataclass
class RunFailed:
    """Evaluates `ranks_failed`."""

    settle: float = 1.0

    needs = frozenset({"ranks_failed"})
    signal = "ranks_failed"
    severity = Severity.CRITICAL
    scope = Scope.PROCESS
    remedy = (
        "Read the traceback in the trainer's log, and fix the error. Resume from the last "
        "checkpoint."
    )

    def __post_init__(self) -> None:
        self._failed_time: float | None = None

    def update(self, record: Record) -> DetectorOutput:
        attributes = record.attributes
        cause = attributes.get("cause")
        if cause not in {"exception", "exit"}:
            self._failed_time = None
            # Another rank is the cause after all.
            return Clear(withdraws=cause in {"died", "stopped"})
        self._failed_time = (
            record.time if self._failed_time is None else min(record.time, self._failed_time)
        )
        if attributes.get("failure_origin"):
            return None
        if not attributes["failed_ranks"]:
            return self._command_finding(record)
        settle = self.settle
        if attributes.get("end_kind") == "consequence":
            settle *= CONSEQUENCE_SETTLE_FACTOR
        may_change = bool(record.values.get("ranks_running")) and "final" not in attributes
        if may_change and record.time - self._failed_time < settle:
            return None
        return _rank_finding(record)

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


def _rank_finding(record: Record) -> Finding:
    attributes = record.attributes
    culprits = ranks_in(attributes, "culprit_ranks") or ranks_in(attributes, "failed_ranks")[:1]
    error = attributes.get("exception", "an exception")
    message, location = attributes.get("message", ""), attributes.get("location", "")
    evidence: dict[str, float | str] = {
        "ranks_failed": record.values["ranks_failed"],
        "last_step": record.step,
    }
    if attributes["cause"] == "exception":
        place = f" ({location})" if location else ""
        reason = f": {message.rstrip('.')}" if message else ""
        what = f"raised {error} at step {record.step}{place}{reason}"
        evidence["error"] = f"{error}: {message}" if message else error
    else:
        code = attributes.get("code", "non-zero")
        name = f" ({EXIT_CODE_SIGNALS[code]})" if code in EXIT_CODE_SIGNALS else ""
        what = f"exited with code {code}{name} at step {record.step}"
        evidence["error"] = f"exit code {code}"
    evidence |= {name: attributes[name] for name in ("location", "caused_by") if name in attributes}
    sentences = [f"{format_ranks(culprits)} {what}."]
    if rest := followers_text(attributes, int(record.values.get("ranks_running", 0.0))):
        sentences.append(f"{rest[0].upper()}{rest[1:]}.")
    if attributes.get("end_kind") == "consequence":
        sentences.append("This is an error of a connection; no rank is known that ended before.")
        if unreported := unreported_ranks_text(attributes):
            sentences.append(unreported)
            evidence["ranks_without_data"] = attributes["unreported_ranks"]
    return Finding(summary=" ".join(sentences), evidence=evidence, rank=culprits[0])
