"""The text of a notification, which every sink renders in the format of its receiver.

All parts are plain text without control and hidden characters. A sink escapes them with
`sentinel.model.clean_text.clean` and its own table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from sentinel.model.clean_text import clean
from sentinel.model.diagnosis import describe_possible_causes
from sentinel.model.evidence_text import capitalized, evidence_text, label_of, split_unit
from sentinel.model.finding import Severity
from sentinel.model.incident import Incident, Resolution
from sentinel.model.notification import Notification, NotificationReason, RunContext
from sentinel.model.quantity_text import format_duration, format_time
from sentinel.model.record import WHOLE_RUN

MAX_HEADLINE_CHARS = 200
MAX_FACTS = 6
MAX_ALSO = 8
DRILL_LABEL = "DRILL"
DRILL_NOTE = "This is a drill: `sentinel chaos` injected the fault into a run of its own."

_MAX_PLACE_CHARS = 80
_MAX_NAME_CHARS = 40
_MAX_FACT_CHARS = 400
_MAX_REMEDY_CHARS = 1500
_MAX_CAUSE_CHARS = 110
_PARENTHESES = re.compile(r"\s*\([^()]*\)")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9])|;\s+")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_ROUNDED_DIGITS = 2
"""Digits of a number in a summary that cannot be another value by chance."""
_NO_ESCAPES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Link:
    """A web address and the text to show for it."""

    label: str
    url: str


@dataclass(frozen=True, slots=True)
class Message:
    """A notification in words.

    `status` is `firing` or `resolved`. `title` names the cause or the kind of problem, without
    values. `label` is the first word of the headline, such as the severity, `subject` the finding
    or the cause, and `place` the run with its host. `since` names the step at which the problem
    began and the time at which it was found, `facts` are up to `MAX_FACTS` sentences, `remedy` what
    to do, `checkpoint` the last one before the onset. `also` are incidents of the case that the
    facts do not contain, `notes` sentences about the notification itself, and `run` describes the
    run in one line. A part that is not known is empty.
    """

    status: str
    severity: Severity
    label: str
    subject: str
    place: str
    since: str
    title: str = ""
    facts: tuple[str, ...] = ()
    remedy: str = ""
    checkpoint: str = ""
    links: tuple[Link, ...] = ()
    also: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    run: str = ""

    @property
    def headline(self) -> str:
        """One line: what happened, and in which run."""
        return self.cut_headline(MAX_HEADLINE_CHARS)

    def cut_headline(self, max_chars: int, escapes: Mapping[str, str] = _NO_ESCAPES) -> str:
        """The headline, escaped and of at most `max_chars` characters.

        One that is too long loses the model and the host, then the parentheses of the subject, and
        then the last words of the subject.
        """
        start, run = f"{self.label}: ", self.place.partition(" (")[0]
        shorter, shortest = (
            _PARENTHESES.sub("", self.subject, count) or self.subject for count in (1, 0)
        )
        place = subject = ""
        for subject, place in (
            (self.subject, self.place),
            (self.subject, run),
            (shorter, run),
            (shortest, run),
        ):
            end = f", {clean(place, None, escapes)}" if place else ""
            line = f"{start}{clean(subject, None, escapes)}{end}"
            if len(line) <= max_chars:
                return line
        end = f", {clean(place, max_chars // 2, escapes)}" if place else ""
        text = clean(subject, max_chars - len(start) - len(end), escapes)
        words = text.removesuffix("…").rpartition(" ")[0].rstrip(" ,:")
        return f"{start}{f'{words}…' if words else text}{end}"

    @property
    def text(self) -> str:
        """The whole message as plain text."""
        parts = [self.headline, self.since, *(f"- {fact}" for fact in self.facts)]
        parts += [f"What to do: {self.remedy}"] if self.remedy else []
        parts += [f"Last good checkpoint: {self.checkpoint}"] if self.checkpoint else []
        parts += [f"Also: {text}" for text in self.also]
        parts += [*self.notes, self.run, *(f"{link.label}: {link.url}" for link in self.links)]
        return "\n".join(part for part in parts if part)


def build_message(
    notification: Notification, now: float | None, *, is_dated: bool = False
) -> Message:
    """The message of a notification; `now` (epoch seconds) is when it is sent.

    Without `now` it does not state how long ago the problem was found. With `is_dated`, for a place
    that shows it much later, the subject names the step of which its values are.
    """
    is_resolved = notification.reason is NotificationReason.RESOLVED
    context = notification.context
    rows = [context.rows] if context.rows and not is_resolved else []
    facts = [*_facts(notification)[: MAX_FACTS - len(rows)], *rows]
    drill_notes = (DRILL_NOTE,) if context.is_drill else ()
    notes = (*drill_notes, *_case_notes(notification), *notification.notes, *_open_note(context))
    return Message(
        status="resolved" if is_resolved else "firing",
        severity=notification.incident.severity,
        label=_label(notification),
        subject=_subject(notification, is_dated=is_dated),
        place=_place(notification),
        since=_duration(notification) if is_resolved else _since(notification, now),
        title=_title(notification),
        facts=tuple(clean(fact, _MAX_FACT_CHARS) for fact in facts),
        remedy="" if is_resolved else clean(notification.remedy, _MAX_REMEDY_CHARS),
        checkpoint=_checkpoint(notification),
        links=_links(notification),
        also=tuple(_also(notification)[:MAX_ALSO]),
        notes=tuple(clean(note, _MAX_FACT_CHARS) for note in notes),
        run=_run_line(notification),
    )


def incident_title(incident: Incident) -> str:
    """The noun phrase that names what the incident is about."""
    return incident.title or label_of(incident.key.detector)


def _title(notification: Notification) -> str:
    """The title of the cause, or of the incident if no cause is known."""
    diagnosis = notification.diagnosis
    title = incident_title(notification.incident) if diagnosis is None else diagnosis.title
    return capitalized(clean(title))


def _label(notification: Notification) -> str:
    label = _state_label(notification)
    return f"{DRILL_LABEL}, {label.lower()}" if notification.context.is_drill else label


def _state_label(notification: Notification) -> str:
    severity = notification.incident.severity.value
    if notification.reason is NotificationReason.RESOLVED:
        return "Resolved"
    # The end of the run can be a part of the first message.
    is_first = notification.reason in (NotificationReason.OPENED, NotificationReason.ESCALATED)
    is_ended = is_first and notification.incident.is_ended_firing
    if is_ended or notification.reason is NotificationReason.ENDED:
        return "Ended while firing"
    if notification.reason is NotificationReason.ESCALATED:
        return f"Now {severity}"
    is_update = notification.reason is not NotificationReason.OPENED
    return f"Update, {severity}" if is_update else severity.capitalize()


def _subject(notification: Notification, *, is_dated: bool) -> str:
    """The cause if it is known, with its strongest evidence, else the start of the finding.

    It is the title alone if the problem is over. If the problem lasted to the end of the run, it
    states that, since what the run has saved may be affected.
    """
    diagnosis, title = notification.diagnosis, _title(notification)
    if notification.reason in (NotificationReason.ENDED, NotificationReason.RESOLVED):
        end = notification.incident.lasted_until
        return title if end is None else f"{title} lasted until {end.value}"
    if notification.reason is NotificationReason.CORRECTED and diagnosis is not None:
        replaced = notification.replaced_cause
        return f"The cause is now {clean(diagnosis.title)}" + (
            f", not {clean(replaced)}" if replaced else ""
        )
    if notification.reason is NotificationReason.CORRECTED:
        return f"Cause withdrawn, {clean(notification.replaced_cause)}: {_title(notification)}"
    if diagnosis is None:
        found = _clauses(notification.incident.finding.summary)[0].rstrip(".")
        step = notification.incident.finding_step
        has_step = is_dated and step is not None and _has_value(found)
        return f"As of step {step}: {found}" if has_step else found
    if not diagnosis.evidence:
        return title
    strongest = max(diagnosis.evidence, key=lambda each: each.weight)
    statement = _clauses(strongest.text)[0].rstrip(".")
    # The start of a long statement still names the rank or the metric.
    subjects = (f"{title}: {text}" for text in (statement, statement.partition(": ")[0]))
    subject = next((each for each in subjects if len(each) <= _MAX_CAUSE_CHARS), title)
    statement = subject.removeprefix(title)
    step = _step_of(notification, strongest.text) if is_dated and _has_value(statement) else None
    return subject if step is None else f"{title}, as of step {step}{statement}"


def _step_of(notification: Notification, summary: str) -> int | None:
    """The step at which an incident of the case was found with that summary, if one was."""
    for each in notification.incidents:
        if summary == each.finding.summary and each.finding_step is not None:
            return each.finding_step
        if summary == each.opened_summary:
            return each.opened_step
    return None


def _has_value(text: str) -> bool:
    """Whether the text states a value, which may be another one later."""
    return any(map(str.isdigit, text))


def _place(notification: Notification) -> str:
    """The run, its model or command, and its host, for people who watch several."""
    context = notification.context
    run = clean(notification.incident.key.run, _MAX_NAME_CHARS)
    what = clean(context.model or context.command, _MAX_NAME_CHARS)
    host = f"on {clean(context.host, _MAX_NAME_CHARS)}" if context.host else ""
    detail = " ".join(part for part in (what, host) if part)
    return clean(f"run {run} ({detail})" if detail else f"run {run}", _MAX_PLACE_CHARS)


def _since(notification: Notification, now: float | None) -> str:
    """The step at which it began, and when it was found."""
    incident, onset = notification.incident, notification.onset_step
    is_one_step = onset == incident.opened_step
    text = f"At step {onset}" if is_one_step else f"Since step {onset}"
    found = "" if is_one_step else f"; found at step {incident.opened_step}"
    if time := format_time(incident.opened_time):
        age = "" if now is None else format_duration(now - incident.opened_time, parts=1)
        found += f", {age} ago ({time})" if age else f" ({time})"
    if notification.diagnosis is not None:
        return f"{text}{found}. Confidence in the cause: {notification.diagnosis.confidence_text}."
    # A finding whose sentence is that of its opening has no newer values.
    is_new = incident.finding.summary != incident.opened_summary and incident.finding.evidence
    step = notification.step if incident.finding_step is None else incident.finding_step
    is_later = step != incident.opened_step and is_new
    return f"{text}{found}.{f' Values are of step {step}.' if is_later else ''}"


def _duration(notification: Notification) -> str:
    """From which step to which step it lasted, how long, and what ended it."""
    incident, onset = notification.incident, notification.onset_step
    end = notification.step if incident.resolved_step is None else incident.resolved_step
    end_time = notification.time if incident.resolved_time is None else incident.resolved_time
    lasted = format_duration(end_time - incident.opened_time)
    end_text, resolution = format_time(end_time), incident.resolution
    at = f" ({end_text})" if end_text else ""
    closed = {
        Resolution.RESUMED: f"Training continues at step {end}, {lasted} after step {onset}",
        Resolution.RESTARTED: f"Another training began at step {end}, {lasted} after step {onset}",
        Resolution.ACKNOWLEDGED: f"It was acknowledged {lasted} after it was found",
        Resolution.CORRECTED: f"Another cause was found {lasted} later",
        Resolution.STARTED_AGAIN: "Training was started again, so it is closed",
        Resolution.EXPIRED: "It was not acknowledged for 24 h, so it is closed",
    }
    if resolution in closed:
        return f"{closed[resolution]}{at}."
    until = f", until {end_text}" if end_text else ""
    has_other_reason = resolution not in (None, Resolution.CLEARED)
    why = f", when {resolution.value}" if resolution and has_other_reason else ""
    # The time of the onset is not known.
    found = f"{lasted} after it was found"
    return f"It lasted from step {onset} to step {end}{until}{why}, {found}."


def _facts(notification: Notification) -> list[str]:
    """What is known of the problem, in the order in which it began."""
    diagnosis, incident = notification.diagnosis, notification.incident
    if diagnosis is not None:
        return [
            each.text if each.step is None else f"Step {each.step}: {each.text}"
            for each in diagnosis.evidence
        ]
    recurred = [f"It recurred {_times(incident.flaps)}."] if incident.flaps else []
    if notification.reason is NotificationReason.RESOLVED:
        first = incident.opened_summary
        return [*([f"At step {incident.opened_step}: {first}"] if first else []), *recurred]
    recurred += describe_possible_causes(notification.possible_causes)
    summary = incident.finding.summary
    evidence = incident.finding.evidence
    values = (evidence_text(*pair) for pair in evidence.items() if not _is_in(summary, *pair))
    # What the summary states is not repeated.
    new = (
        text
        for text in values
        if any(part not in summary for part in text.partition(": ")[2].split(": "))
    )
    return [*map(_as_sentence, _clauses(summary)[1:]), *recurred, *islice(new, MAX_FACTS)]


def _is_in(summary: str, key: str, value: float | str) -> bool:
    """Whether a value is empty, or a number that the summary states, perhaps with fewer digits."""
    if isinstance(value, str):
        return value == ""
    _, unit = split_unit(key)
    shown = abs(value * (1.0 if unit is None else unit.factor))
    return any(
        len(text.replace(".", "").lstrip("0")) >= _ROUNDED_DIGITS
        and f"{shown:.{len(text.partition('.')[2])}f}" == text
        for text in _NUMBER.findall(summary)
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _clauses(text: str) -> list[str]:
    """The parts of a text that can stand alone: its sentences, and parts behind a semicolon."""
    return _SENTENCE_END.split(clean(text).strip())


def _as_sentence(clause: str) -> str:
    return f"{capitalized(clause.rstrip('.'))}."


def _checkpoint(notification: Notification) -> str:
    step = notification.last_good_step
    if step is None or notification.reason is NotificationReason.RESOLVED:
        return ""
    path = clean(notification.context.checkpoint_path)
    return f"step {step}, {path}" if path else f"step {step}"


def _links(notification: Notification) -> tuple[Link, ...]:
    context = notification.context
    links = (
        Link("Run page", context.page_url),
        Link("Dashboard", context.dashboard_url),
        Link("Runbook", context.runbook_url),
    )
    return tuple(link for link in links if link.url)


def _case_notes(notification: Notification) -> Iterator[str]:
    """What changed since the message before, and what happens to a case that outlives its run."""
    reason, diagnosis = notification.reason, notification.diagnosis
    is_in_subject = reason is NotificationReason.CORRECTED
    if notification.replaced_cause and diagnosis is not None and not is_in_subject:
        yield f"The cause is now {diagnosis.title}, not {notification.replaced_cause}."
    if notification.incident.is_ended_firing and reason is not NotificationReason.RESOLVED:
        end = notification.incident.resolution
        after = (
            " It stays open until it is acknowledged, the run starts again, or 24 h have passed."
            if end is Resolution.RUN_FINISHED
            else ""
        )
        what = "training" if end is Resolution.TRAINING_FINISHED else "run"
        yield f"The {what} finished while this fires, so what it saved may be affected.{after}"


def _open_note(context: RunContext) -> tuple[str, ...]:
    """What shows the page once the agent, whose address the link has, ended."""
    where = f" on {context.host}" if context.host else ""
    if not context.open_command:
        return ()
    commands = f"`{context.open_command}`{where} writes its page to a file; `sentinel serve`"
    return (f"After the run, {commands} shows it.",)


def _also(notification: Notification) -> list[str]:
    """The incidents that neither the headline nor the facts contain."""
    diagnosis, others = notification.diagnosis, notification.others
    if diagnosis is not None:
        facts = {each.text for each in diagnosis.evidence}
        steps = {each.step for each in diagnosis.evidence}
        others = tuple(
            each
            for each in notification.incidents
            if each.finding.summary not in facts and each.onset_step not in steps
        )
    return [
        f"{clean(incident_title(each), _MAX_NAME_CHARS)}, {each.severity.value},"
        f" since step {each.onset_step}"
        for each in others
    ]


def _run_line(notification: Notification) -> str:
    """The run, its command, model, host and rank, at the current step."""
    context, incident = notification.context, notification.incident
    rank = incident.finding.rank if incident.key.rank == WHOLE_RUN else incident.key.rank
    fields = {
        "Run": incident.key.run,
        "command": context.command,
        "model": context.model,
        "host": context.host,
        "rank": "" if rank is None else str(rank),
        "step": str(notification.step),
    }
    return ", ".join(f"{name} {clean(text, 200)}" for name, text in fields.items() if text)
