"""Verdicts as the agent's loop would hand them to an outlet, for tests of outlets."""

from __future__ import annotations

from dataclasses import replace

from sentinel.model.diagnosis import Diagnosis, Evidence
from sentinel.model.finding import Finding, Severity
from sentinel.model.incident import Incident, IncidentKey, IncidentState
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record, Spread
from sentinel.pipeline.engine import Result

RUN = "grpo-7b"
NOW = 1_700_000_000.0


def said(event=Event.STEP, step=1, rank=WHOLE_RUN, **more):
    """A verdict on one record, without pages; `more` are fields of the record."""
    return Result(Record(RUN, rank, step, more.pop("time", NOW + step), event, **more))


def measured(step=1, rank=WHOLE_RUN, **values):
    """A verdict on one training step with these values."""
    return said(step=step, rank=rank, values=values)


def spread(low, high, bad_ranks=(), min_rank=0, max_rank=1):
    """How two ranks differ in one signal."""
    mean = (low + high) / 2
    return Spread(2, mean, low, high, low + high, (high - low) / 2, min_rank, max_rank, bad_ranks)


def incident(detector="kl_blowup", severity=Severity.CRITICAL, episode=1, rank=WHOLE_RUN):
    """A firing incident of that detector."""
    return Incident(
        key=IncidentKey(RUN, rank, detector),
        episode=episode,
        severity=severity,
        signal="kl_ref",
        remedy="Raise the KL coefficient.",
        finding=Finding("KL is 2 nats.", {"kl": 2.0}),
        onset_step=90,
        opened_step=100,
        opened_time=NOW,
        state=IncidentState.FIRING,
    )


def paged(reason=NotificationReason.OPENED, of=None, **changes):
    """A verdict whose record is due a page about that incident."""
    told = replace(of or incident(), **changes)
    return replace(measured(step=100), pages=(Notification(reason, told, 100, NOW),))


DIAGNOSIS = Diagnosis(
    cause="policy_collapse",
    title="policy collapse",
    confidence=0.826,
    severity=Severity.CRITICAL,
    evidence=(Evidence(0.5, "KL is 2 nats.", 86), Evidence(0.3, "The KL coefficient is 0.0001.")),
    remedy="Go back.",
    last_good_step=80,
)


def concluded(reason=NotificationReason.OPENED, of=(), diagnosis=DIAGNOSIS, pages=True):
    """A verdict that opens these incidents, the first leading, or ends them, as one case."""
    lead, *others = of or (incident(), incident("reward_collapse", Severity.WARNING))
    single = (
        tuple(Notification(reason, each, 100, NOW) for each in (lead, *others)) if pages else ()
    )
    told = Notification(reason, lead, 100, NOW, diagnosis=diagnosis, others=tuple(others))
    return replace(measured(step=100), pages=single, told=(told,))
