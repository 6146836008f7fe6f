"""The state of a pipeline is restored completely or not at all."""

from __future__ import annotations

import pytest

from sentinel.config.settings import load_settings
from sentinel.detectors.nan_or_inf import NanOrInf
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.pipeline import Pipeline, build
from sentinel.pipeline.snapshot import serialize


def make_pipeline():
    return Pipeline({"nan_or_inf": NanOrInf}, Counters())


def combined_losses(pipeline, steps):
    """The losses of the combined records that these steps of one rank complete."""
    records = [
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
    combined = [result.record for record in records for result in pipeline.process(record)]
    return [r.values["loss"] for r in combined if r.rank == WHOLE_RUN and r.event is Event.STEP]


def test_a_restored_pipeline_continues_where_the_last_one_stopped():
    first, second = make_pipeline(), make_pipeline()
    before = combined_losses(first, range(5))
    second.restore(first.serialize())

    assert before + combined_losses(second, range(5, 9)) == combined_losses(
        make_pipeline(), range(9)
    )


def test_a_restored_pipeline_has_the_times_of_its_own_settings():
    settings = {"baselines": False}
    first = build(load_settings(settings, environ={}))
    changed = settings | {"resolve_seconds": 5.0, "cooldown_seconds": 7.0}
    second = build(load_settings(changed, environ={}))
    second.restore(first.serialize())
    book = second.engine.incident_book

    assert (book.resolve_seconds, book.cooldown_seconds) == (5.0, 7.0)


@pytest.mark.parametrize(
    "state",
    [
        pytest.param("{", id="damaged"),
        pytest.param(serialize({"fingerprint": "0.1.0 []", "aligner": 3}), id="of another version"),
        pytest.param(
            make_pipeline().serialize().replace('"step_index_by_rank"', '"hearts"'),
            id="of other fields",
        ),
        pytest.param(Pipeline({}, Counters()).serialize(), id="of other detectors"),
    ],
)
def test_an_unusable_state_is_ignored(state):
    """A stored state must not end every agent that takes over."""
    pipeline = make_pipeline()
    pipeline.restore(state)

    assert combined_losses(pipeline, range(9)) == combined_losses(make_pipeline(), range(9))


@pytest.mark.swallows_errors
def test_a_record_that_raises_is_counted_and_skipped(monkeypatch):
    """It would end every agent that takes over."""
    pipeline = make_pipeline()
    process = pipeline.aligner.process

    def fail_at_step_3(record):
        if record.step_index == 3:
            raise OverflowError
        return process(record)

    monkeypatch.setattr(pipeline.aligner, "process", fail_at_step_3)

    assert combined_losses(pipeline, range(9)) == [1.0, 2.0, 4.0, 5.0, 6.0, 7.0]
    assert pipeline.counters.values["sentinel_dropped_records_total", "processing_failed"] == 1
