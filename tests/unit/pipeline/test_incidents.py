"""Incidents: one page when an episode fires, one when it is over, none without a reason."""

from __future__ import annotations

from typing import ClassVar

from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.incident import Incident, IncidentKey, IncidentState
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.incidents import IncidentBook

KEY = IncidentKey("run", WHOLE_RUN, "probe")
BAD, CALM = Finding("Bad.", {"x": 1.0}), Clear()


class Probe:
    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "loss"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = "Mend it."

    def update(self, record):
        return None


def fold(book, *opinions):
    """The pages that come of these opinions, one record each, steps counted from 1."""
    records = (Record("run", WHOLE_RUN, i, float(i)) for i in range(1, len(opinions) + 1))
    folded = (
        book.update_incident(KEY, r, o, Probe()) for r, o in zip(records, opinions, strict=True)
    )
    return [page for page in folded if isinstance(page, Notification)]


def test_one_page_however_often_it_is_found():
    (page,) = fold(IncidentBook(), *[BAD] * 50)

    assert (page.reason, page.step, page.incident.state) == (
        NotificationReason.OPENED,
        1,
        IncidentState.FIRING,
    )
    assert page.incident.remedy == "Mend it."


def test_resolves_after_enough_calm_in_a_row():
    book = IncidentBook(clears_to_resolve=3, cooldown_records=0)
    opened, resolved = fold(book, BAD, CALM, CALM, BAD, CALM, CALM, CALM)

    assert (opened.reason, resolved.reason) == (
        NotificationReason.OPENED,
        NotificationReason.RESOLVED,
    )
    assert (resolved.step, resolved.incident.resolved_step) == (7, 7)
    assert not book.open_incidents


def test_silence_is_not_calm():
    """A signal that turns into NaN does not end what its detector found."""
    book = IncidentBook(clears_to_resolve=3)
    fold(book, BAD, *[None] * 50)

    assert KEY in book.open_incidents


def test_a_second_episode_has_a_page_and_a_name_of_its_own():
    book = IncidentBook(clears_to_resolve=1, cooldown_records=0)
    pages = fold(book, BAD, CALM, BAD)

    assert [p.reason for p in pages] == [
        NotificationReason.OPENED,
        NotificationReason.RESOLVED,
        NotificationReason.OPENED,
    ]
    assert [p.name for p in pages] == [
        "run/probe#1:opened",
        "run/probe#1:resolved",
        "run/probe#2:opened",
    ]


def test_a_pending_incident_that_calms_down_was_never_told():
    book = IncidentBook(findings_to_fire=3)

    assert fold(book, BAD, BAD, CALM, BAD, BAD) == []
    (page,) = fold(book, BAD)
    assert page.incident.episode == 1


def test_it_is_told_again_only_if_it_gets_worse():
    worse = Finding("Worse.", severity=Severity.CRITICAL)
    first, second = fold(IncidentBook(), BAD, BAD, worse, worse, BAD)

    assert (first.incident.severity, second.incident.severity) == (
        Severity.WARNING,
        Severity.CRITICAL,
    )
    assert (second.reason, second.name) == (
        NotificationReason.ESCALATED,
        "run/probe#1:escalated-critical",
    )


def test_what_was_only_noted_opens_when_it_becomes_worth_telling():
    """The step at which people are told is the one that counts as its opening."""
    noted, loud = Finding("Odd.", severity=Severity.INFO), Finding("Bad.")
    first, second = fold(IncidentBook(), noted, noted, loud)

    assert (first.incident.severity, first.incident.opened_step) == (Severity.INFO, 1)
    assert (second.reason, second.incident.opened_step) == (NotificationReason.OPENED, 3)
    assert second.incident.onset_step == 1


def test_a_page_tells_of_its_moment_while_the_incident_lives_on():
    book = IncidentBook()
    (page,) = fold(book, BAD, Finding("Later."))

    assert page.incident.finding.summary == "Bad."
    assert book.open_incidents[KEY].finding.summary == "Later."


def test_onset_is_where_the_detector_says_it_began():
    (page,) = fold(IncidentBook(), None, None, Finding("Bad.", onset_step=2))

    assert (page.incident.onset_step, page.incident.opened_step) == (2, 3)


def test_what_comes_and_goes_is_one_episode_with_one_page_and_one_end():
    """A square wave wakes somebody once, and says that it is over once it stays so."""
    book = IncidentBook(clears_to_resolve=2, cooldown_records=4)
    wave = [BAD, BAD, CALM, CALM, CALM] * 10
    opened, resolved = fold(book, *wave, CALM, CALM, CALM)

    assert (opened.reason, resolved.reason) == (
        NotificationReason.OPENED,
        NotificationReason.RESOLVED,
    )
    assert (resolved.incident.flaps, resolved.incident.episode) == (9, 1)
    assert (resolved.step, resolved.incident.resolved_step) == (49, 49)
    assert not book.open_incidents


def test_what_comes_back_worse_is_told():
    book = IncidentBook(clears_to_resolve=1, cooldown_records=9)
    worse = Finding("Worse.", severity=Severity.CRITICAL)
    pages = fold(book, BAD, CALM, CALM, worse, CALM, BAD, CALM, worse)

    assert [p.name for p in pages] == ["run/probe#1:opened", "run/probe#1:escalated-critical"]
    assert pages[1].incident.flaps == 1


def test_what_was_only_noted_and_comes_back_loud_opens():
    book = IncidentBook(clears_to_resolve=1, cooldown_records=9)
    (page,) = fold(book, Finding("Odd.", severity=Severity.INFO), CALM, BAD)[1:]

    assert (page.reason, page.incident.opened_step, page.incident.flaps) == (
        NotificationReason.OPENED,
        3,
        1,
    )


def test_calming_down_and_coming_back_are_shown_though_nobody_is_told():
    book = IncidentBook(clears_to_resolve=1, cooldown_records=9)
    records = [Record("run", WHOLE_RUN, i, float(i)) for i in range(1, 6)]
    told = [
        book.update_incident(KEY, record, opinion, Probe())
        for record, opinion in zip(records, [BAD, CALM, CALM, BAD, BAD], strict=True)
    ]
    calmed, back = told[1], told[3]

    assert told[2] is told[4] is None
    assert isinstance(calmed, Incident)
    assert (calmed.state, calmed.resolved_step) == (IncidentState.RESOLVED, 2)
    assert (back.state, back.resolved_step, back.flaps) == (IncidentState.FIRING, None, 1)


def test_at_the_end_of_the_run_what_rests_is_over():
    """Nothing can come back, so nobody is left to wonder."""
    book = IncidentBook(clears_to_resolve=1, cooldown_records=9)
    fold(book, BAD, CALM)
    (page,) = book.update(Record("run", WHOLE_RUN, 8, 8.0, Event.STOP))

    assert (page.reason, page.step, page.time) == (NotificationReason.RESOLVED, 2, 8.0)
    assert not book.open_incidents


def test_at_the_end_of_the_run_what_fires_goes_on():
    book = IncidentBook()
    fold(book, BAD)

    assert book.update(Record("run", WHOLE_RUN, 8, 8.0, Event.STOP)) == ()
    assert KEY in book.open_incidents


def test_the_last_good_checkpoint_is_the_last_one_before_it_began():
    """One made at the very step may hold the trouble already."""
    book = IncidentBook()
    for step in (10, 20, 30):
        book.update(Record("run", WHOLE_RUN, step, 0.0, Event.SAVE))
    finding = Finding("Bad.", onset_step=30)
    page = book.update_incident(KEY, Record("run", WHOLE_RUN, 35, 35.0), finding, Probe())

    assert page.incident.last_good_step == 20
