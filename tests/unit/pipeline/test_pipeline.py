"""Fold: its memory goes over to the next agent whole, or not at all."""

from __future__ import annotations

import pytest

from sentinel.detectors.nan_or_inf import NanOrInf
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.pipeline import Pipeline
from sentinel.pipeline.snapshot import serialize


def fold():
    return Pipeline({"nan_or_inf": NanOrInf}, Counters())


def fed(folded, steps):
    """The combined losses that come of these steps of one rank."""
    told = [
        Record(
            "run",
            0,
            n,
            100.0 + n,
            Event.STEP if n else Event.START,
            {"loss": float(n)},
            step_index=n,
        )
        for n in steps
    ]
    verdicts = [verdict.record for record in told for verdict in folded.process(record)]
    return [r.values["loss"] for r in verdicts if r.rank == WHOLE_RUN and r.event is Event.STEP]


def test_the_next_one_goes_on_where_the_last_one_was():
    first, second = fold(), fold()
    before = fed(first, range(5))
    second.restore(first.serialize())

    assert before + fed(second, range(5, 9)) == fed(fold(), range(9))


@pytest.mark.parametrize(
    "state",
    [
        pytest.param("{", id="damaged"),
        pytest.param(serialize({"fingerprint": "0.1.0 []", "aligner": 3}), id="of another version"),
        pytest.param(
            fold().serialize().replace('"step_index_by_rank"', '"hearts"'), id="of other fields"
        ),
        pytest.param(Pipeline({}, Counters()).serialize(), id="of other detectors"),
    ],
)
def test_a_memory_that_does_not_fit_is_left_and_the_watch_goes_on(state):
    """Whatever was stored must not end every agent that takes over."""
    taken = fold()
    taken.restore(state)

    assert fed(taken, range(9)) == fed(fold(), range(9))


@pytest.mark.swallows_errors
def test_a_record_that_cannot_be_judged_ends_no_watch(monkeypatch):
    """It would end that of every next agent, too."""
    folded = fold()
    hear = folded.aligner.process

    def falls(record):
        if record.step_index == 3:
            raise OverflowError
        return hear(record)

    monkeypatch.setattr(folded.aligner, "process", falls)

    assert fed(folded, range(9)) == [1.0, 2.0, 4.0, 5.0, 6.0, 7.0]
    assert folded.counters.values["sentinel_dropped_records_total", "processing_failed"] == 1
