"""An episode has one notification when it fires, one when it ends, and one if it escalates."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest

from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.incident import Incident, IncidentKey, IncidentState
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.incidents import IncidentBook

KEY = IncidentKey("run", WHOLE_RUN, "probe")
BAD, CLEAR = Finding("Bad.", {"x": 1.0}), Clear()


class Probe:
    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "loss"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = "Repair it."

    def update(self, record):
        return None


def update(book, *outputs):
    """The notifications for these outputs, each of one record; steps count from 1."""
    records = (Record("run", WHOLE_RUN, i, float(i)) for i in range(1, len(outputs) + 1))
    changes = (
        book.update_incident(KEY, r, o, Probe()) for r, o in zip(records, outputs, strict=True)
    )
    return [change for change in changes if isinstance(change, Notification)]


def test_consecutive_findings_are_one_notification():
    (notification,) = update(IncidentBook(), *[BAD] * 50)

    assert (notification.reason, notification.step, notification.incident.state) == (
        NotificationReason.OPENED,
        1,
        IncidentState.FIRING,
    )
    assert notification.incident.remedy == "Repair it."


def test_an_incident_resolves_after_enough_clear_records_in_a_row():
    book = IncidentBook(clears_to_resolve=3, cooldown_records=0)
    opened, resolved = update(book, BAD, CLEAR, CLEAR, BAD, CLEAR, CLEAR, CLEAR)

    assert (opened.reason, resolved.reason) == (
        NotificationReason.OPENED,
        NotificationReason.RESOLVED,
    )
    assert (resolved.step, resolved.incident.resolved_step) == (5, 5), "the first clear record"
    assert not book.open_incidents


def test_no_evidence_does_not_resolve_an_incident():
    """As when the signal becomes NaN."""
    book = IncidentBook(clears_to_resolve=3)
    update(book, BAD, *[None] * 50)

    assert KEY in book.open_incidents


def test_a_second_episode_has_notifications_of_its_own():
    book = IncidentBook(clears_to_resolve=1, cooldown_records=0)
    notifications = update(book, BAD, CLEAR, BAD)

    assert [each.reason for each in notifications] == [
        NotificationReason.OPENED,
        NotificationReason.RESOLVED,
        NotificationReason.OPENED,
    ]
    assert [each.name for each in notifications] == [
        "run/probe#1:opened",
        "run/probe#1:resolved",
        "run/probe#2:opened",
    ]


def test_a_pending_incident_that_clears_is_not_notified():
    book = IncidentBook(findings_to_fire=3)

    assert update(book, BAD, BAD, CLEAR, BAD, BAD) == []
    (notification,) = update(book, BAD)
    assert notification.incident.episode == 1


def test_a_higher_severity_is_notified_once():
    worse = Finding("Worse.", severity=Severity.CRITICAL)
    first, second = update(IncidentBook(), BAD, BAD, worse, worse, BAD)

    assert (first.incident.severity, second.incident.severity) == (
        Severity.WARNING,
        Severity.CRITICAL,
    )
    assert (second.reason, second.name) == (
        NotificationReason.ESCALATED,
        "run/probe#1:escalated-critical",
    )


def test_an_incident_of_severity_info_opens_when_its_severity_rises():
    """It is opened at the step of its first notification above info."""
    info, warning = Finding("Odd.", severity=Severity.INFO), Finding("Bad.")
    first, second = update(IncidentBook(), info, info, warning)

    assert (first.incident.severity, first.incident.opened_step) == (Severity.INFO, 1)
    assert (second.reason, second.incident.opened_step) == (NotificationReason.OPENED, 3)
    assert second.incident.onset_step == 1


def test_a_notification_does_not_change_with_its_incident():
    book = IncidentBook()
    (notification,) = update(book, BAD, Finding("Later."))

    assert notification.incident.finding.summary == "Bad."
    assert book.open_incidents[KEY].finding.summary == "Later."


def test_the_onset_is_that_of_the_finding():
    (notification,) = update(IncidentBook(), None, None, Finding("Bad.", onset_step=2))

    assert (notification.incident.onset_step, notification.incident.opened_step) == (2, 3)


@pytest.mark.fault("D13")
def test_an_incident_that_flaps_is_one_episode():
    """It is notified once when it opens, and once when it stays resolved."""
    book = IncidentBook(clears_to_resolve=2, cooldown_records=4)
    wave = [BAD, BAD, CLEAR, CLEAR, CLEAR] * 10
    opened, resolved = update(book, *wave, CLEAR, CLEAR, CLEAR)

    assert (opened.reason, resolved.reason) == (
        NotificationReason.OPENED,
        NotificationReason.RESOLVED,
    )
    assert (resolved.incident.flaps, resolved.incident.episode) == (9, 1)
    assert (resolved.step, resolved.incident.resolved_step) == (48, 48)
    assert not book.open_incidents


def test_an_incident_that_reopens_with_a_higher_severity_is_notified():
    book = IncidentBook(clears_to_resolve=1, cooldown_records=9)
    worse = Finding("Worse.", severity=Severity.CRITICAL)
    notifications = update(book, BAD, CLEAR, CLEAR, worse, CLEAR, BAD, CLEAR, worse)

    assert [each.name for each in notifications] == [
        "run/probe#1:opened",
        "run/probe#1:escalated-critical",
    ]
    assert notifications[1].incident.flaps == 1


def test_an_incident_of_severity_info_that_reopens_as_a_warning_opens():
    book = IncidentBook(clears_to_resolve=1, cooldown_records=9)
    (notification,) = update(book, Finding("Odd.", severity=Severity.INFO), CLEAR, BAD)[1:]

    assert (
        notification.reason,
        notification.incident.opened_step,
        notification.incident.flaps,
    ) == (
        NotificationReason.OPENED,
        3,
        1,
    )


def test_a_note_that_becomes_a_warning_takes_its_onset_and_the_checkpoint_before_it():
    book = IncidentBook()
    for step in (40, 90):
        book.update(Record("run", WHOLE_RUN, step, 0.0, Event.SAVE))
    outputs = [Finding("Odd.", severity=Severity.INFO, onset_step=100), Finding("x", onset_step=80)]
    _, warning = (
        book.update_incident(KEY, Record("run", WHOLE_RUN, 101, 0.0), output, Probe())
        for output in outputs
    )

    assert (warning.incident.onset_step, warning.incident.last_good_step) == (80, 40)


def test_resolving_and_reopening_are_changes_without_a_notification():
    book = IncidentBook(clears_to_resolve=1, cooldown_records=9)
    records = [Record("run", WHOLE_RUN, i, float(i)) for i in range(1, 6)]
    changes = [
        book.update_incident(KEY, record, output, Probe())
        for record, output in zip(records, [BAD, CLEAR, CLEAR, BAD, BAD], strict=True)
    ]
    resolved, reopened = changes[1], changes[3]

    assert changes[2] is changes[4] is None
    assert isinstance(resolved, Incident)
    assert (resolved.state, resolved.resolved_step) == (IncidentState.RESOLVED, 2)
    assert (reopened.state, reopened.resolved_step, reopened.flaps) == (
        IncidentState.FIRING,
        None,
        1,
    )


def test_a_resolved_incident_ends_with_the_run():
    book = IncidentBook(clears_to_resolve=1, cooldown_records=9)
    update(book, BAD, CLEAR)
    (notification,) = book.update(Record("run", WHOLE_RUN, 8, 8.0, Event.STOP))

    assert (notification.reason, notification.step, notification.time) == (
        NotificationReason.RESOLVED,
        2,
        8.0,
    )
    assert not book.open_incidents


def test_a_firing_incident_stays_open_at_the_end_of_a_log():
    book = IncidentBook()
    update(book, BAD)

    assert book.update(Record("run", WHOLE_RUN, 8, 8.0, Event.STOP)) == ()
    assert KEY in book.open_incidents


def test_the_last_good_checkpoint_is_the_last_one_before_the_onset():
    """A checkpoint of the onset itself may hold the problem already."""
    book = IncidentBook()
    for step in (10, 20, 30):
        book.update(Record("run", WHOLE_RUN, step, 0.0, Event.SAVE))
    finding = Finding("Bad.", onset_step=30)
    notification = book.update_incident(KEY, Record("run", WHOLE_RUN, 35, 35.0), finding, Probe())

    assert notification.incident.last_good_step == 20


def test_an_incident_has_the_onset_range_of_its_first_finding():
    first = Finding("Bad.", onset_step=5, onset_range=(3, 6))
    (notification,) = update(IncidentBook(), first, Finding("Bad.", onset_range=(9, 9)))

    assert notification.incident.onset_range == (3, 6)


def test_a_larger_value_of_an_open_info_is_shown_without_a_notification():
    book = IncidentBook()
    sizes = [2.0, 2.1, 8.0, 3.0]
    outputs = [Finding(f"{size}", {"size": size}, Severity.INFO) for size in sizes]
    records = [Record("run", WHOLE_RUN, i, float(i)) for i in range(1, 5)]
    changes = [
        book.update_incident(KEY, r, o, Probe()) for r, o in zip(records, outputs, strict=True)
    ]

    assert [type(change).__name__ for change in changes] == [
        "Notification",
        "NoneType",
        "Incident",
        "NoneType",
    ]
    assert changes[2].finding.summary == "8.0"


NOW = 1_700_000_000.0


def update_timed(book, *spans):
    """The notifications for spans of (output, count, seconds between records)."""
    step, time, changes = 0, NOW, []
    for output, count, seconds in spans:
        for _ in range(count):
            step, time = step + 1, time + seconds
            record = Record("run", WHOLE_RUN, step, time)
            changes.append(book.update_incident(KEY, record, output, Probe()))
    return [change for change in changes if isinstance(change, Notification)]


def test_fast_steps_do_not_make_an_incident_flap():
    """Slow batches at the start of each epoch of 5 s; 48 records are 2.4 s."""
    epochs = [(BAD, 20, 0.05), (CLEAR, 80, 0.05)] * 6
    opened, resolved = update_timed(IncidentBook(), *epochs, (CLEAR, 7_000, 0.05))

    assert (opened.reason, opened.incident.onset_step) == (NotificationReason.OPENED, 1)
    assert (resolved.reason, resolved.incident.flaps) == (NotificationReason.RESOLVED, 0)
    assert resolved.step == 5 * 100 + 21, "the first clear record after the last finding"
    assert resolved.time - (NOW + 0.05 * resolved.step) == pytest.approx(300, abs=0.1)


def test_an_incident_that_returns_within_minutes_is_one_and_later_another():
    book = IncidentBook()
    again = replace(BAD, onset_step=3_000)
    notifications = update_timed(
        book, (BAD, 1, 1.0), (CLEAR, 200, 1.0), (BAD, 1, 1.0), (CLEAR, 400, 1.0), (again, 1, 1.0)
    )

    assert [(each.name, each.incident.onset_step) for each in notifications] == [
        ("run/probe#1:opened", 1),
        ("run/probe#1:resolved", 1),
        ("run/probe#2:opened", 3_000),
    ]
    assert notifications[1].incident.flaps == 1


def test_slow_steps_resolve_an_incident_after_as_many_records():
    assert len(update_timed(IncidentBook(), (BAD, 1, 60.0), (CLEAR, 47, 60.0))) == 1
    assert len(update_timed(IncidentBook(), (BAD, 1, 60.0), (CLEAR, 48, 60.0))) == 2


def test_a_clock_that_is_set_back_does_not_keep_an_incident_open():
    spans = (BAD, 1, 1.0), (CLEAR, 20, 1.0), (CLEAR, 1, -3_600.0), (CLEAR, 40, 1.0)

    assert len(update_timed(IncidentBook(), *spans)) == 2


def update_with(outputs):
    book = IncidentBook()
    records = [Record("run", WHOLE_RUN, i, float(i)) for i in range(1, len(outputs) + 1)]
    changes = [
        book.update_incident(KEY, r, o, Probe()) for r, o in zip(records, outputs, strict=True)
    ]
    return [type(change).__name__ for change in changes]


def test_a_value_that_rises_in_small_steps_is_shown_too():
    """It is compared with the one that was shown last, not with the last record's."""
    sizes = [1.05**n for n in range(7)]
    shown = update_with([Finding("x", {"size": size}, Severity.INFO) for size in sizes])

    assert shown == ["Notification", "NoneType", "Incident"] + ["NoneType", "Incident"] * 2


def test_an_incident_whose_rank_is_found_later_has_changed():
    ranks = [None, None, 1, 1]
    changes = update_with([Finding("x", {"size": 1.0}, Severity.WARNING, rank=r) for r in ranks])

    assert changes == ["Notification", "NoneType", "Incident", "NoneType"]
