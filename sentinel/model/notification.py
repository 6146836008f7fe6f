"""Notifications about a case, before a sink renders them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf

from sentinel.model.diagnosis import Diagnosis
from sentinel.model.incident import Incident, Onset


class NotificationReason(Enum):
    """Why a notification is made."""

    OPENED = "opened"
    ESCALATED = "escalated"
    """The severity of the case rose."""
    UPDATED = "updated"
    """Its cause is found, an incident joined, or its culprit or its dates changed.

    It is sent only to receivers that can change the message they have.
    """
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class RunContext:
    """Where a run can be found, for people; a field is empty if it is not known.

    `host` is the node of rank 0, `command` the script it runs and `model` the model it trains. The
    URLs are those of the run's page, of a dashboard and of the runbook of the notification.
    `open_command` shows the page after the run, if the URL is that of an agent which ends with it.
    `checkpoint_path` is the file or folder of the last checkpoint before the onset. `is_drill` is
    whether the fault was injected to test how notifications arrive. `trackers` names its runs at
    experiment trackers by `sentinel.signals.tracker_runs`.
    """

    host: str = ""
    command: str = ""
    model: str = ""
    page_url: str = ""
    dashboard_url: str = ""
    runbook_url: str = ""
    open_command: str = ""
    checkpoint_path: str = ""
    is_drill: bool = False
    trackers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Notification:
    """The state of a case at a step and time, and the reason to report it.

    `incident` leads the case; `others` are its other incidents. `diagnosis` is their common cause,
    if one is known. `notes` are sentences about the notification itself: who acknowledged the
    incident, why it is delayed. `number` counts the updates of the case. `context` is filled in
    when the notification is queued, and so is `is_acknowledged`.
    """

    reason: NotificationReason
    incident: Incident
    step: int
    time: float
    notes: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    others: tuple[Incident, ...] = ()
    number: int = 0
    context: RunContext = RunContext()
    is_acknowledged: bool = False

    @property
    def name(self) -> str:
        """Identity of the notification: a name that was sent is never sent again."""
        suffix = {
            NotificationReason.ESCALATED: f"-{self.incident.severity.value}",
            NotificationReason.UPDATED: f"-{self.number}",
        }
        return f"{self.incident.name}:{self.reason.value}{suffix.get(self.reason, '')}"

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """All incidents of the case, the lead first."""
        return (self.incident, *self.others)

    @property
    def is_silent(self) -> bool:
        """Whether it ends a case in a way that is no news for people."""
        resolution = self.incident.resolution
        is_resolved = self.reason is NotificationReason.RESOLVED
        return is_resolved and resolution is not None and resolution.is_silent

    @property
    def subject(self) -> str:
        """The title of the cause if it is known, else the name of the detector."""
        return self.incident.key.detector if self.diagnosis is None else self.diagnosis.title

    @property
    def remedy(self) -> str:
        """What to do: the remedy of the cause if it is known, else that of the detector."""
        return self.incident.remedy if self.diagnosis is None else self.diagnosis.remedy

    @property
    def onset_step(self) -> int:
        """The onset of its cause, or of its lead if no cause with an onset is known."""
        return case_dates(self.incident, self.diagnosis)[0]

    @property
    def last_good_step(self) -> int | None:
        """Step of the last checkpoint before the onset, if there is one."""
        return case_dates(self.incident, self.diagnosis)[1]


def case_dates(lead: Incident, diagnosis: Diagnosis | None) -> tuple[int, int | None]:
    """Onset of a case, and the last checkpoint before it: those of its cause, or of its lead.

    Other incidents of the case, which the cause need not explain, have dates of their own. A cause
    that begins after the lead was found does not date the case: it began before.
    """
    onset_step = None if diagnosis is None else diagnosis.onset_step
    if diagnosis is None or onset_step is None or onset_step > lead.opened_step >= lead.onset_step:
        return lead.onset_step, lead.last_good_step
    return onset_step, diagnosis.last_good_step


def redate(notification: Notification, onsets: Mapping[str, Onset]) -> Notification:
    """The notification with the estimated onsets of its incidents, by name, as its dates.

    They are known some seconds after it was made. Evidence of an incident begins with it.
    """
    estimates = {
        each.onset_step: onsets[each.name]
        for each in reversed(notification.incidents)
        if each.name in onsets
    }
    if not estimates:
        return notification
    lead, *others = (_redate_incident(each, onsets) for each in notification.incidents)
    redated = replace(
        notification,
        incident=lead,
        others=tuple(others),
        diagnosis=_redate_diagnosis(notification.diagnosis, estimates),
    )
    if redated.last_good_step != notification.last_good_step:
        redated = replace(redated, context=replace(redated.context, checkpoint_path=""))
    return redated


def _redate_incident(incident: Incident, onsets: Mapping[str, Onset]) -> Incident:
    onset = onsets.get(incident.name)
    if onset is None:
        return incident
    return replace(incident, onset_step=onset.step, last_good_step=onset.last_good_step)


def _redate_diagnosis(
    diagnosis: Diagnosis | None, estimates: Mapping[int, Onset]
) -> Diagnosis | None:
    """The diagnosis with these estimates, by the step that they replace, as its dates."""
    if diagnosis is None:
        return None
    steps = {each.step for each in diagnosis.evidence} | {diagnosis.onset_step}
    dates = [(each.step, each.last_good_step) for step, each in estimates.items() if step in steps]
    if diagnosis.onset_step is not None and diagnosis.onset_step not in estimates:
        dates.append((diagnosis.onset_step, diagnosis.last_good_step))
    if not dates:
        return diagnosis
    onset_step, last_good_step = min(dates, key=lambda date: date[0])
    evidence = (
        each
        if each.step is None or each.step not in estimates
        else replace(each, step=estimates[each.step].step)
        for each in diagnosis.evidence
    )
    in_order = sorted(evidence, key=lambda each: inf if each.step is None else each.step)
    return replace(
        diagnosis, evidence=tuple(in_order), onset_step=onset_step, last_good_step=last_good_step
    )
