"""Fold: its memory goes over to the next agent whole, or not at all."""

from __future__ import annotations

import pytest

from sentinel.detectors.nan_or_inf import NanOrInf
from sentinel.model.counters import Tally
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.pipeline import Fold
from sentinel.pipeline.snapshot import freeze


def fold():
    return Fold({"nan_or_inf": NanOrInf}, Tally())


def fed(folded, steps):
    """The combined losses that come of these steps of one rank."""
    told = [
        Record("run", 0, n, 100.0 + n, Event.STEP if n else Event.START, {"loss": float(n)}, beat=n)
        for n in steps
    ]
    verdicts = [verdict.record for record in told for verdict in folded.feed(record)]
    return [r.values["loss"] for r in verdicts if r.rank == WHOLE_RUN and r.event is Event.STEP]


def test_the_next_one_goes_on_where_the_last_one_was():
    first, second = fold(), fold()
    before = fed(first, range(5))
    second.restore(first.freeze())

    assert before + fed(second, range(5, 9)) == fed(fold(), range(9))


@pytest.mark.parametrize(
    "state",
    [
        pytest.param("{", id="damaged"),
        pytest.param(freeze({"stamp": "0.1.0 []", "align": 3}), id="of another version"),
        pytest.param(fold().freeze().replace('"beats"', '"hearts"'), id="of other fields"),
        pytest.param(Fold({}, Tally()).freeze(), id="of other detectors"),
    ],
)
def test_a_memory_that_does_not_fit_is_left_and_the_watch_goes_on(state):
    """Whatever was stored must not end every agent that takes over."""
    taken = fold()
    taken.restore(state)

    assert fed(taken, range(9)) == fed(fold(), range(9))


@pytest.mark.quiet
def test_a_record_that_cannot_be_judged_ends_no_watch(monkeypatch):
    """It would end that of every next agent, too."""
    folded = fold()
    hear = folded.aligner.feed

    def falls(record):
        if record.beat == 3:
            raise OverflowError
        return hear(record)

    monkeypatch.setattr(folded.aligner, "feed", falls)

    assert fed(folded, range(9)) == [1.0, 2.0, 4.0, 5.0, 6.0, 7.0]
    assert folded.tally.counts["sentinel_dropped_records_total", "unjudged"] == 1
