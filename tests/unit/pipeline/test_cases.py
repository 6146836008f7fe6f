"""Cases: incidents of one cause are one page, whatever else goes wrong is another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.case_books import CaseBookDriver, Storm, opened, resolved

from sentinel.model.diagnosis import Evidence
from sentinel.model.finding import Severity
from sentinel.model.incident import IncidentState
from sentinel.model.notification import NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.cases import MAX_JOIN_GAP_STEPS, RUN_END_DETECTORS, CaseBook
from sentinel.pipeline.snapshot import deserialize, serialize


@pytest.fixture
def house():
    return CaseBookDriver(CaseBook({"storm": Storm()}))


def test_what_the_named_cause_explains_costs_no_page(house):
    assert house.update(opened("wind"), opened("rain")) == [(NotificationReason.OPENED, "wind")]
    assert house.update(opened("dark")) == [(NotificationReason.UPDATED, "wind")]

    assert [each.key.detector for each in house.current_notification().others] == ["rain", "dark"]


def test_what_joins_a_case_without_a_name_is_told_once(house):
    """Nobody could know of it from what was told before."""
    house.update(opened("wind"))

    assert house.update(opened("dark")) == [(NotificationReason.INCIDENT_ADDED, "wind")]
    assert house.update(opened("dark", episode=2)) == [(NotificationReason.UPDATED, "wind")]


def test_a_cause_that_is_named_makes_the_case_as_loud_as_itself(house):
    house.update(opened("wind"))

    assert house.update(opened("rain", onset=80)) == [(NotificationReason.ESCALATED, "wind")]
    page = house.current_notification()
    assert page.incident.severity is Severity.CRITICAL
    assert page.diagnosis.cause == "storm"
    assert page.diagnosis.confidence == pytest.approx(0.75)
    assert [clue.step for clue in page.diagnosis.evidence] == [80, 90]


def test_nobody_is_told_of_a_case_again_at_the_same_loudness(house):
    house.update(opened("wind", Severity.CRITICAL))

    assert house.update(opened("wind", Severity.CRITICAL, episode=2)) == [
        (NotificationReason.UPDATED, "wind")
    ]
    assert house.update(opened("wind", episode=3)) == [(NotificationReason.UPDATED, "wind")]


def test_who_heard_of_a_case_before_its_cause_is_told_the_name_once(house):
    house.update(opened("wind", Severity.CRITICAL))

    assert house.update(opened("rain")) == [(NotificationReason.CAUSE_FOUND, "wind")]
    assert house.update(opened("dark")) == [(NotificationReason.UPDATED, "wind")]


def test_who_was_told_the_cause_is_not_told_its_name_again(house):
    house.update(opened("wind"), opened("rain"))

    assert house.update(opened("dark")) == [(NotificationReason.UPDATED, "wind")]


def test_both_at_once_are_one_page_with_the_name(house):
    assert house.update(opened("wind"), opened("rain")) == [(NotificationReason.OPENED, "wind")]
    assert house.current_notification().diagnosis.cause == "storm"


def test_what_no_cause_explains_together_is_told_apart(house):
    house.update(opened("wind"))

    assert house.update(opened("theft", Severity.CRITICAL)) == [
        (NotificationReason.OPENED, "theft")
    ]


def test_what_comes_long_after_is_told_apart(house):
    house.update(opened("wind"))
    house.update(steps=MAX_JOIN_GAP_STEPS)

    assert house.update(opened("rain")) == [(NotificationReason.OPENED, "rain")]


@pytest.mark.parametrize("ending", sorted(RUN_END_DETECTORS))
def test_the_end_of_a_run_is_always_told(ending):
    class Flood(Storm):
        explains = Storm.explains | RUN_END_DETECTORS

    house = CaseBookDriver(CaseBook({"flood": Flood()}))
    house.update(opened("wind", Severity.CRITICAL))

    assert house.update(opened(ending, Severity.CRITICAL)) == [(NotificationReason.OPENED, ending)]


def test_what_nobody_is_told_of_is_evidence_all_the_same(house):
    assert house.update(opened("wind", Severity.INFO)) == []
    assert house.update(opened("rain")) == [(NotificationReason.OPENED, "rain")]

    assert house.current_notification().diagnosis.cause == "storm"
    assert house.current_notification().others == ()


def test_quiet_news_may_name_the_cause_of_a_case(house):
    house.update(opened("rain"))

    assert house.update(opened("wind", Severity.INFO)) == [(NotificationReason.ESCALATED, "rain")]


def test_what_is_noted_beside_a_case_names_no_cause_that_has_nothing_to_do_with_it(house):
    house.update(opened("wind", Severity.INFO), opened("rain", Severity.INFO))

    assert house.update(opened("theft")) == [(NotificationReason.OPENED, "theft")]
    assert house.current_notification().diagnosis is None


def test_what_was_over_long_ago_is_no_evidence(house):
    quiet = opened("wind", Severity.INFO, state=IncidentState.FIRING)
    house.update(quiet)
    house.update(replace(quiet.incident, state=IncidentState.RESOLVED))
    house.update(steps=MAX_JOIN_GAP_STEPS)
    house.update(opened("rain"))

    assert house.current_notification().diagnosis is None


def test_what_still_fires_is_evidence_however_old(house):
    house.update(opened("wind", Severity.INFO))
    house.update(steps=2 * MAX_JOIN_GAP_STEPS)
    house.update(opened("rain"))

    assert house.current_notification().diagnosis.cause == "storm"


def test_settings_and_values_are_there_for_the_cause(house):
    house.update(event=Event.METADATA, metadata={"season": "autumn"})
    house.update(values={"hours": 3.0})
    house.update(opened("wind"), opened("rain"))

    diagnosis = house.current_notification().diagnosis
    assert diagnosis.remedy == "Stay in for 3 hours."
    assert diagnosis.evidence[-1] == Evidence(0.2, "It is autumn.")
    assert diagnosis.confidence == pytest.approx(0.8)


def test_the_last_good_checkpoint_is_that_before_the_first_sign(house):
    house.update(opened("wind", onset=90, last_good_step=80), opened("rain", onset=40))

    assert house.current_notification().diagnosis.last_good_step is None
    house.update(opened("rain", onset=40, last_good_step=30))
    assert house.current_notification().diagnosis.last_good_step == 30


def test_a_case_is_over_with_the_last_of_its_incidents(house):
    house.update(opened("wind"))
    house.update(opened("dark"))

    assert house.update(resolved("wind", 300)) == []
    assert house.update(resolved("dark", 400)) == [(NotificationReason.RESOLVED, "wind")]
    assert list(house.book.current_notifications()) == []


def test_the_end_of_a_case_is_told_as_of_its_last_incident(house):
    house.update(opened("wind"), opened("rain"))
    record = Record("grpo-7b", WHOLE_RUN, 500, 500.0)
    (page,) = house.book.update(record, [resolved("rain", 450), resolved("wind", 400)])

    assert (page.step, page.incident.resolved_step) == (450, 450)
    assert (page.incident.key.detector, page.incident.state) == ("wind", IncidentState.RESOLVED)
    assert page.diagnosis.cause == "storm"


def test_what_comes_after_the_end_is_a_new_case(house):
    house.update(opened("wind"))
    house.update(resolved("wind"))

    assert house.update(opened("wind", episode=2)) == [(NotificationReason.OPENED, "wind")]


def test_cases_are_the_same_after_a_restart(house):
    house.update(opened("wind"))
    house.update(opened("dark", Severity.INFO))
    house.book.runs = deserialize(serialize(house.book.runs))

    assert house.update(opened("rain")) == [(NotificationReason.ESCALATED, "wind")]
    assert house.update(resolved("wind"), resolved("rain")) == [
        (NotificationReason.RESOLVED, "wind")
    ]


@pytest.mark.swallows_errors
def test_a_cause_that_fails_costs_no_page():
    class Broken(Storm):
        def evidence(self, context):
            raise ZeroDivisionError

    house = CaseBookDriver(CaseBook({"broken": Broken(), "storm": Storm()}))

    assert house.update(opened("wind"), opened("rain")) == [(NotificationReason.OPENED, "wind")]
    assert house.current_notification().diagnosis.cause == "storm"


@pytest.mark.swallows_errors
@pytest.mark.parametrize("weight", [float("nan"), 1.5, -1.0, "0.5", None])
def test_a_clue_that_weighs_nothing_sensible_costs_the_cause_and_no_page(weight):
    class Odd(Storm):
        def evidence(self, context):
            yield Evidence(weight, "It blows.", 3)
            yield Evidence(0.9, "It blows.", 3)

    house = CaseBookDriver(CaseBook({"odd": Odd()}))

    assert house.update(opened("wind")) == [(NotificationReason.OPENED, "wind")]
    assert house.current_notification().diagnosis is None


def test_texts_of_a_cause_have_an_end():
    class Wordy(Storm):
        title = "storm " * 9999

        def evidence(self, context):
            while True:
                yield Evidence(0.5, "It blows. " * 9999, 3)

        def remedy(self, context):
            return "Stay in. " * 9999

    house = CaseBookDriver(CaseBook({"wordy": Wordy()}))
    house.update(opened("wind"))

    assert len(serialize(house.current_notification().diagnosis)) < 64_000


def test_what_is_kept_of_a_run_does_not_grow_with_its_quiet_incidents(house):
    for episode in range(500):
        quiet = opened("dark", Severity.INFO, episode=episode)
        house.update(quiet)
        house.update(replace(quiet.incident, state=IncidentState.RESOLVED))
        house.update(steps=10)

    assert len(house.book.runs["grpo-7b"].unnotified_incidents) < 30
