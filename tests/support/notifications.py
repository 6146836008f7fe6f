"""Notifications, built by hand for tests of rendering and delivery."""

from __future__ import annotations

from dataclasses import replace

from sentinel.model.diagnosis import Diagnosis, Evidence
from sentinel.model.finding import Finding, Severity
from sentinel.model.incident import Incident, IncidentKey, IncidentState
from sentinel.model.notification import Notification, NotificationReason, RunContext
from sentinel.model.record import WHOLE_RUN

RUN = "grpo-7b"
NOW = 1_700_000_000.0
CONTEXT = RunContext(
    host="gpu-3",
    command="train.py",
    model="Qwen/Qwen2.5-7B",
    page_url="http://gpu-3:13130",
    dashboard_url="https://grafana.example/d/run?var-run=grpo-7b",
    runbook_url="http://gpu-3:13130/runbooks/kl_blowup",
    checkpoint_path="/out/checkpoint-80",
)


def make_notification(
    reason=NotificationReason.OPENED,
    *,
    detector="kl_blowup",
    severity=Severity.CRITICAL,
    episode=1,
    rank=WHOLE_RUN,
    run=RUN,
    **finding,
):
    """A notification at step 120; `finding` holds fields of its finding."""
    fields = {"summary": "KL is 2 nats.", "evidence": {"kl": 2.0, "limit": 0.4}, **finding}
    incident = Incident(
        key=IncidentKey(run, rank, detector),
        episode=episode,
        severity=severity,
        signal="kl_ref",
        remedy="Raise the KL coefficient.",
        finding=Finding(**fields),
        onset_step=90,
        opened_step=100,
        opened_time=NOW,
        state=IncidentState.FIRING,
    )
    if reason is NotificationReason.RESOLVED:
        incident = replace(
            incident, state=IncidentState.RESOLVED, resolved_step=120, resolved_time=NOW + 60
        )
    return Notification(reason, incident, 120, NOW + 60)


def with_diagnosis(notification=None, *, others=("reward_collapse",), **changes):
    """The notification with a diagnosis and other incidents; `changes` are diagnosis fields."""
    diagnosis = Diagnosis(
        cause="policy_collapse",
        title="policy collapse",
        confidence=0.826,
        severity=Severity.CRITICAL,
        evidence=(
            Evidence(0.5, "KL is 2 nats.", 86, f"{RUN}/kl_blowup#1"),
            Evidence(0.5, "The reward fell.", 95, f"{RUN}/reward_collapse#1"),
            Evidence(0.3, "The KL coefficient is 0.0001."),
        ),
        remedy="Go back, and raise `beta`.",
        last_good_step=80,
        onset_step=86,
        onset_incident=f"{RUN}/kl_blowup#1",
    )
    other_incidents = tuple(
        make_notification(detector=name, severity=Severity.WARNING, summary="It fell.").incident
        for name in others
    )
    return replace(
        notification or make_notification(),
        diagnosis=replace(diagnosis, **changes),
        others=other_incidents,
    )
