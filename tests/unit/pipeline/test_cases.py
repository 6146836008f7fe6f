"""Cases: incidents of one cause are one page, whatever else goes wrong is another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.case_books import House, Storm, found, over

from sentinel.model.diagnosis import Clue
from sentinel.model.finding import Severity
from sentinel.model.incident import Reason, State
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.cases import ENDINGS, JOINS_WITHIN, CaseBook
from sentinel.pipeline.snapshot import freeze, thaw


@pytest.fixture
def house():
    return House(CaseBook({"storm": Storm()}))


def test_what_the_named_cause_explains_costs_no_page(house):
    assert house.hear(found("wind"), found("rain")) == [(Reason.OPENED, "wind")]
    assert house.hear(found("dark")) == [(Reason.UPDATED, "wind")]

    assert [each.key.detector for each in house.page().others] == ["rain", "dark"]


def test_what_joins_a_case_without_a_name_is_told_once(house):
    """Nobody could know of it from what was told before."""
    house.hear(found("wind"))

    assert house.hear(found("dark")) == [(Reason.JOINED, "wind")]
    assert house.hear(found("dark", episode=2)) == [(Reason.UPDATED, "wind")]


def test_a_cause_that_is_named_makes_the_case_as_loud_as_itself(house):
    house.hear(found("wind"))

    assert house.hear(found("rain", onset=80)) == [(Reason.WORSENED, "wind")]
    page = house.page()
    assert page.incident.severity is Severity.CRITICAL
    assert page.diagnosis.cause == "storm"
    assert page.diagnosis.confidence == pytest.approx(0.75)
    assert [clue.step for clue in page.diagnosis.evidence] == [80, 90]


def test_nobody_is_told_of_a_case_again_at_the_same_loudness(house):
    house.hear(found("wind", Severity.CRITICAL))

    assert house.hear(found("wind", Severity.CRITICAL, episode=2)) == [(Reason.UPDATED, "wind")]
    assert house.hear(found("wind", episode=3)) == [(Reason.UPDATED, "wind")]


def test_who_heard_of_a_case_before_its_cause_is_told_the_name_once(house):
    house.hear(found("wind", Severity.CRITICAL))

    assert house.hear(found("rain")) == [(Reason.NAMED, "wind")]
    assert house.hear(found("dark")) == [(Reason.UPDATED, "wind")]


def test_who_was_told_the_cause_is_not_told_its_name_again(house):
    house.hear(found("wind"), found("rain"))

    assert house.hear(found("dark")) == [(Reason.UPDATED, "wind")]


def test_both_at_once_are_one_page_with_the_name(house):
    assert house.hear(found("wind"), found("rain")) == [(Reason.OPENED, "wind")]
    assert house.page().diagnosis.cause == "storm"


def test_what_no_cause_explains_together_is_told_apart(house):
    house.hear(found("wind"))

    assert house.hear(found("theft", Severity.CRITICAL)) == [(Reason.OPENED, "theft")]


def test_what_comes_long_after_is_told_apart(house):
    house.hear(found("wind"))
    house.hear(steps=JOINS_WITHIN)

    assert house.hear(found("rain")) == [(Reason.OPENED, "rain")]


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_end_of_a_run_is_always_told(ending):
    class Flood(Storm):
        explains = Storm.explains | ENDINGS

    house = House(CaseBook({"flood": Flood()}))
    house.hear(found("wind", Severity.CRITICAL))

    assert house.hear(found(ending, Severity.CRITICAL)) == [(Reason.OPENED, ending)]


def test_what_nobody_is_told_of_is_evidence_all_the_same(house):
    assert house.hear(found("wind", Severity.INFO)) == []
    assert house.hear(found("rain")) == [(Reason.OPENED, "rain")]

    assert house.page().diagnosis.cause == "storm"
    assert house.page().others == ()


def test_quiet_news_may_name_the_cause_of_a_case(house):
    house.hear(found("rain"))

    assert house.hear(found("wind", Severity.INFO)) == [(Reason.WORSENED, "rain")]


def test_what_is_noted_beside_a_case_names_no_cause_that_has_nothing_to_do_with_it(house):
    house.hear(found("wind", Severity.INFO), found("rain", Severity.INFO))

    assert house.hear(found("theft")) == [(Reason.OPENED, "theft")]
    assert house.page().diagnosis is None


def test_what_was_over_long_ago_is_no_evidence(house):
    quiet = found("wind", Severity.INFO, state=State.FIRING)
    house.hear(quiet)
    house.hear(replace(quiet.incident, state=State.RESOLVED))
    house.hear(steps=JOINS_WITHIN)
    house.hear(found("rain"))

    assert house.page().diagnosis is None


def test_what_still_fires_is_evidence_however_old(house):
    house.hear(found("wind", Severity.INFO))
    house.hear(steps=2 * JOINS_WITHIN)
    house.hear(found("rain"))

    assert house.page().diagnosis.cause == "storm"


def test_settings_and_values_are_there_for_the_cause(house):
    house.hear(event=Event.FACTS, facts={"season": "autumn"})
    house.hear(values={"hours": 3.0})
    house.hear(found("wind"), found("rain"))

    diagnosis = house.page().diagnosis
    assert diagnosis.remedy == "Stay in for 3 hours."
    assert diagnosis.evidence[-1] == Clue(0.2, "It is autumn.")
    assert diagnosis.confidence == pytest.approx(0.8)


def test_the_last_good_checkpoint_is_that_before_the_first_sign(house):
    house.hear(found("wind", onset=90, last_good_step=80), found("rain", onset=40))

    assert house.page().diagnosis.last_good_step is None
    house.hear(found("rain", onset=40, last_good_step=30))
    assert house.page().diagnosis.last_good_step == 30


def test_a_case_is_over_with_the_last_of_its_incidents(house):
    house.hear(found("wind"))
    house.hear(found("dark"))

    assert house.hear(over("wind", 300)) == []
    assert house.hear(over("dark", 400)) == [(Reason.RESOLVED, "wind")]
    assert list(house.book.standing()) == []


def test_the_end_of_a_case_is_told_as_of_its_last_incident(house):
    house.hear(found("wind"), found("rain"))
    record = Record("grpo-7b", WHOLE_RUN, 500, 500.0)
    (page,) = house.book.fold(record, [over("rain", 450), over("wind", 400)])

    assert (page.step, page.incident.resolved_step) == (450, 450)
    assert (page.incident.key.detector, page.incident.state) == ("wind", State.RESOLVED)
    assert page.diagnosis.cause == "storm"


def test_what_comes_after_the_end_is_a_new_case(house):
    house.hear(found("wind"))
    house.hear(over("wind"))

    assert house.hear(found("wind", episode=2)) == [(Reason.OPENED, "wind")]


def test_cases_are_the_same_after_a_restart(house):
    house.hear(found("wind"))
    house.hear(found("dark", Severity.INFO))
    house.book.runs = thaw(freeze(house.book.runs))

    assert house.hear(found("rain")) == [(Reason.WORSENED, "wind")]
    assert house.hear(over("wind"), over("rain")) == [(Reason.RESOLVED, "wind")]


@pytest.mark.quiet
def test_a_cause_that_fails_costs_no_page():
    class Broken(Storm):
        def clues(self, scene):
            raise ZeroDivisionError

    house = House(CaseBook({"broken": Broken(), "storm": Storm()}))

    assert house.hear(found("wind"), found("rain")) == [(Reason.OPENED, "wind")]
    assert house.page().diagnosis.cause == "storm"


@pytest.mark.quiet
@pytest.mark.parametrize("weight", [float("nan"), 1.5, -1.0, "0.5", None])
def test_a_clue_that_weighs_nothing_sensible_costs_the_cause_and_no_page(weight):
    class Odd(Storm):
        def clues(self, scene):
            yield Clue(weight, "It blows.", 3)
            yield Clue(0.9, "It blows.", 3)

    house = House(CaseBook({"odd": Odd()}))

    assert house.hear(found("wind")) == [(Reason.OPENED, "wind")]
    assert house.page().diagnosis is None


def test_texts_of_a_cause_have_an_end():
    class Wordy(Storm):
        title = "storm " * 9999

        def clues(self, scene):
            while True:
                yield Clue(0.5, "It blows. " * 9999, 3)

        def remedy(self, scene):
            return "Stay in. " * 9999

    house = House(CaseBook({"wordy": Wordy()}))
    house.hear(found("wind"))

    assert len(freeze(house.page().diagnosis)) < 64_000


def test_what_is_kept_of_a_run_does_not_grow_with_its_quiet_incidents(house):
    for episode in range(500):
        quiet = found("dark", Severity.INFO, episode=episode)
        house.hear(quiet)
        house.hear(replace(quiet.incident, state=State.RESOLVED))
        house.hear(steps=10)

    assert len(house.book.runs["grpo-7b"].noted) < 30
