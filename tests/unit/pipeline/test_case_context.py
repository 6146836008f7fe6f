"""The scene: what a cause is told of a run beside the incidents of its case."""

from __future__ import annotations

from collections.abc import Iterable

from support.case_books import CaseBookDriver, Storm, opened

from sentinel.model.diagnosis import RESUMED_STEP_KEY, CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.model.record import Event
from sentinel.pipeline.cases import CaseBook


class Seen(Storm):
    """Tells what it was shown."""

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        times = {name: symptom.occurrences for name, symptom in context.symptoms.items()}
        yield Evidence(0.9, f"{times} {context.metadata.get(RESUMED_STEP_KEY)}")


def test_a_cause_knows_how_often_something_came():
    house = CaseBookDriver(CaseBook({"seen": Seen()}))
    house.update(opened("wind", Severity.INFO, flaps=2))
    house.update(opened("rain"), opened("wind", episode=2))

    assert "'wind': 4" in house.current_notification().diagnosis.evidence[0].text


def test_a_cause_knows_where_a_run_went_on_after_it_had_begun_again():
    house = CaseBookDriver(CaseBook({"seen": Seen()}))
    house.update(event=Event.START)
    house.update(opened("wind"))
    assert "None" in house.current_notification().diagnosis.evidence[0].text

    house.update(event=Event.START)
    house.update()
    house.update(opened("rain"))

    assert "102" in house.current_notification().diagnosis.evidence[0].text


def test_the_last_good_checkpoint_is_from_before_all_that_is_quoted():
    class Late(Storm):
        explains = frozenset({"wind"})

        def evidence(self, context: CaseContext) -> Iterable[Evidence]:
            yield Evidence(0.9, "It was dark.", context.symptoms["dark"].onset_step)

    house = CaseBookDriver(CaseBook({"late": Late()}))
    house.update(opened("dark", Severity.INFO, onset=60, last_good_step=50))
    house.update(opened("wind", onset=90, last_good_step=80))

    assert house.current_notification().diagnosis.last_good_step == 50


def test_what_was_noted_long_before_and_is_not_quoted_takes_no_checkpoint_away():
    class Wind(Storm):
        def evidence(self, context: CaseContext) -> Iterable[Evidence]:
            yield Evidence(0.9, "It blows.", context.symptoms["wind"].onset_step)

    house = CaseBookDriver(CaseBook({"wind": Wind()}))
    house.update(opened("dark", Severity.INFO, onset=1))
    house.update(opened("wind", onset=90, last_good_step=80))

    assert house.current_notification().diagnosis.last_good_step == 80
