"""Notifications about a case, before a sink renders them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf

from sentinel.model.diagnosis import Diagnosis, PossibleCause
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
    CORRECTED = "corrected"
    """An update whose cause replaces the one that the receiver got."""
    ENDED = "ended"
    """The run finished while the case fires and is critical. It stays open."""
    RESOLVED = "resolved"

    @property
    def is_new_message(self) -> bool:
        """Whether it is a further message of a case, also where the earlier one can be changed."""
        return self in _NEW_MESSAGES


_NEW_MESSAGES = frozenset(
    {NotificationReason.ESCALATED, NotificationReason.CORRECTED, NotificationReason.ENDED}
)


@dataclass(frozen=True, slots=True)
class RunContext:
    """Where a run can be found, for people; a field is empty if it is not known.

    `host` is the node of rank 0, `command` the script it runs and `model` the model it trains. The
    URLs are those of the run's page, of a dashboard and of the runbook of the notification.
    `open_command` writes the page to a file, if the URL is that of an agent, which ends with the
    run. `checkpoint_path` is the file or folder of the last checkpoint before the onset. `is_drill`
    is whether the fault was injected to test how notifications arrive. `trackers` names its runs at
    experiment trackers by `sentinel.signals.tracker_runs`. `rows` states those of the data set that
    are behind the incident.
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
    rows: str = ""


@dataclass(frozen=True, slots=True)
class Notification:
    """The state of a case at a step and time, and the reason to report it.

    `incident` leads the case; `others` are its other incidents. `diagnosis` is their common cause,
    if one is known. `notes` are sentences about the notification itself: who acknowledged the
    incident, why it is delayed. `number` counts the updates of the case. `context` is filled in
    when the notification is queued, and so are `is_acknowledged` and `replaced_cause`, the title of
    the cause that its receiver got before, if that is another one. `possible_causes` are those that
    fit if no `diagnosis` is confident enough.
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
    replaced_cause: str = ""
    possible_causes: tuple[PossibleCause, ...] = ()

    @property
    def name(self) -> str:
        """Identity of the notification: a name that was sent is never sent again."""
        suffix = {
            NotificationReason.ESCALATED: f"-{self.incident.severity.value}",
            NotificationReason.UPDATED: f"-{self.number}",
            NotificationReason.CORRECTED: f"-{self.number}",
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

    Other incidents of the case, which the cause need not explain, have dates of their own.
    """
    if diagnosis is None or diagnosis.onset_step is None or not dates_case(lead, diagnosis):
        return lead.onset_step, lead.last_good_step
    return diagnosis.onset_step, diagnosis.last_good_step


def dates_case(lead: Incident, diagnosis: Diagnosis) -> bool:
    """Whether the dates of a case with that lead are those of the diagnosis.

    A cause that begins after the lead was found does not date the case: it began before.
    """
    onset_step = diagnosis.onset_step
    return onset_step is not None and not onset_step > lead.opened_step >= lead.onset_step


def redate_diagnosis(
    diagnosis: Diagnosis, incident: str, onset: Onset, others: Iterable[Incident]
) -> Diagnosis:
    """The diagnosis in which the incident of that name began at the estimated onset.

    If that is later than before, one of `others` may date the diagnosis now.
    """
    is_dated_by_it = diagnosis.onset_incident == incident
    if not is_dated_by_it and all(each.incident != incident for each in diagnosis.evidence):
        return diagnosis
    evidence = [
        replace(each, step=onset.step) if each.incident == incident else each
        for each in diagnosis.evidence
    ]
    evidence.sort(key=lambda each: inf if each.step is None else each.step)
    redated = replace(diagnosis, evidence=tuple(evidence))
    other = diagnosis.onset_step
    if not is_dated_by_it and other is not None and other < onset.step:
        return redated
    shown = {each.incident for each in evidence}
    dates = [(onset.step, onset.last_good_step, incident)]
    dates += [
        (each.onset_step, each.last_good_step, each.name) for each in others if each.name in shown
    ]
    step, last_good_step, name = min(dates, key=lambda each: each[0])
    return replace(redated, onset_step=step, last_good_step=last_good_step, onset_incident=name)
