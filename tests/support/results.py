"""Results of the engine, built by hand for tests of the consumers of results."""

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


def make_result(event=Event.STEP, step=1, rank=WHOLE_RUN, **fields):
    """A result without notifications; `fields` are further fields of its record."""
    return Result(Record(RUN, rank, step, fields.pop("time", NOW + step), event, **fields))


def step_result(step=1, rank=WHOLE_RUN, **values):
    """A result of one training step with these values."""
    return make_result(step=step, rank=rank, values=values)


def make_spread(low, high, bad_ranks=(), min_rank=0, max_rank=1):
    """The spread of one signal over two ranks."""
    mean = (low + high) / 2
    return Spread(2, mean, low, high, low + high, (high - low) / 2, min_rank, max_rank, bad_ranks)


def make_incident(detector="kl_blowup", severity=Severity.CRITICAL, episode=1, rank=WHOLE_RUN):
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


def incident_result(reason=NotificationReason.OPENED, of=None, **changes):
    """A result with a notification of the incident `of`, with these fields changed."""
    incident = replace(of or make_incident(), **changes)
    notification = Notification(reason, incident, 100, NOW)
    return replace(step_result(step=100), notifications=(notification,))


DIAGNOSIS = Diagnosis(
    cause="policy_collapse",
    title="policy collapse",
    confidence=0.826,
    severity=Severity.CRITICAL,
    evidence=(Evidence(0.5, "KL is 2 nats.", 86), Evidence(0.3, "The KL coefficient is 0.0001.")),
    remedy="Go back.",
    last_good_step=80,
    onset_step=86,
)


def case_result(reason=NotificationReason.OPENED, of=(), diagnosis=DIAGNOSIS, has_incidents=True):
    """A result that opens or resolves these incidents as one case; the first leads it.

    Without `has_incidents` the result has the notification of the case only.
    """
    lead, *others = of or (make_incident(), make_incident("reward_collapse", Severity.WARNING))
    single = (
        tuple(Notification(reason, each, 100, NOW) for each in (lead, *others))
        if has_incidents
        else ()
    )
    case = Notification(reason, lead, 100, NOW, diagnosis=diagnosis, others=tuple(others))
    return replace(step_result(step=100), notifications=single, case_notifications=(case,))
