"""The scene: what a cause is told of a run beside the incidents of its case."""

from __future__ import annotations

from collections.abc import Iterable

from support.case_books import House, Storm, found

from sentinel.model.diagnosis import RESUMED_STEP_KEY, CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.model.record import Event
from sentinel.pipeline.cases import CaseBook


class Seen(Storm):
    """Tells what it was shown."""

    def clues(self, scene: CaseContext) -> Iterable[Evidence]:
        times = {name: sign.occurrences for name, sign in scene.symptoms.items()}
        yield Evidence(0.9, f"{times} {scene.metadata.get(RESUMED_STEP_KEY)}")


def test_a_cause_knows_how_often_something_came():
    house = House(CaseBook({"seen": Seen()}))
    house.hear(found("wind", Severity.INFO, flaps=2))
    house.hear(found("rain"), found("wind", episode=2))

    assert "'wind': 4" in house.page().diagnosis.evidence[0].text


def test_a_cause_knows_where_a_run_went_on_after_it_had_begun_again():
    house = House(CaseBook({"seen": Seen()}))
    house.hear(event=Event.START)
    house.hear(found("wind"))
    assert "None" in house.page().diagnosis.evidence[0].text

    house.hear(event=Event.START)
    house.hear()
    house.hear(found("rain"))

    assert "102" in house.page().diagnosis.evidence[0].text


def test_the_last_good_checkpoint_is_from_before_all_that_is_quoted():
    class Late(Storm):
        explains = frozenset({"wind"})

        def clues(self, scene: CaseContext) -> Iterable[Evidence]:
            yield Evidence(0.9, "It was dark.", scene.symptoms["dark"].onset_step)

    house = House(CaseBook({"late": Late()}))
    house.hear(found("dark", Severity.INFO, onset=60, last_good_step=50))
    house.hear(found("wind", onset=90, last_good_step=80))

    assert house.page().diagnosis.last_good_step == 50


def test_what_was_noted_long_before_and_is_not_quoted_takes_no_checkpoint_away():
    class Wind(Storm):
        def clues(self, scene: CaseContext) -> Iterable[Evidence]:
            yield Evidence(0.9, "It blows.", scene.symptoms["wind"].onset_step)

    house = House(CaseBook({"wind": Wind()}))
    house.hear(found("dark", Severity.INFO, onset=1))
    house.hear(found("wind", onset=90, last_good_step=80))

    assert house.page().diagnosis.last_good_step == 80
