"""The scene: what a cause is told of a run beside the incidents of its case."""

from __future__ import annotations

from collections.abc import Iterable

from test_cases import House, Storm, found

from sentinel.cases import CaseBook
from sentinel.diagnosis import RESUMED, Clue, Scene
from sentinel.finding import Severity
from sentinel.record import Event


class Seen(Storm):
    """Tells what it was shown."""

    def clues(self, scene: Scene) -> Iterable[Clue]:
        times = {name: sign.times for name, sign in scene.signs.items()}
        yield Clue(0.9, f"{times} {scene.facts.get(RESUMED)}")


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
