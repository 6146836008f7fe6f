"""Pages as an incident book makes them, for tests of how they are worded and delivered."""

from __future__ import annotations

from dataclasses import replace

from sentinel.finding import Finding, Severity
from sentinel.incident import Incident, Key, Page, Reason, State
from sentinel.record import WHOLE_RUN

RUN = "grpo-7b"
NOW = 1_700_000_000.0


def page(
    reason=Reason.OPENED,
    *,
    detector="kl_blowup",
    severity=Severity.CRITICAL,
    episode=1,
    rank=WHOLE_RUN,
    run=RUN,
    **finding,
):
    """A page at step 120; `finding` holds fields of its finding."""
    told = {"summary": "KL is 2 nats.", "evidence": {"kl": 2.0, "limit": 0.4}, **finding}
    incident = Incident(
        key=Key(run, rank, detector),
        episode=episode,
        severity=severity,
        signal="kl_ref",
        remedy="Raise the KL coefficient.",
        finding=Finding(**told),
        onset_step=90,
        opened_step=100,
        opened_time=NOW,
        state=State.FIRING,
    )
    if reason is Reason.RESOLVED:
        incident = replace(
            incident, state=State.RESOLVED, resolved_step=120, resolved_time=NOW + 60
        )
    return Page(reason, incident, 120, NOW + 60)
