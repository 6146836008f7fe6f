"""The records of the ranks of one node give the same results one by one and as batches."""

from __future__ import annotations

from math import nan
from random import Random

import pytest

from sentinel.config.settings import Settings
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import RecordBatch, coalesce
from sentinel.pipeline import pipeline

RANKS = 3


def turns(seed, steps=90):
    """What an agent reads in each turn: some steps of every rank, then a heartbeat."""
    random, now, done = Random(seed), 100.0, 0
    sizes = {"local_world_size": float(RANKS), "world_size": float(RANKS)}
    yield [Record("run", rank, 0, now, Event.START, sizes) for rank in range(RANKS)]
    fault = random.randrange(30, 80)
    while done < steps:
        count = random.randint(1, 4)
        records = [
            record
            for rank in range(RANKS)
            for step in range(done + 1, done + count + 1)
            for record in rank_records(random, rank, step, now, is_faulty=step >= fault)
        ]
        done += count
        now += random.choice([0.1, 0.5, 1.0])
        yield [
            *records,
            Record(
                "run",
                WHOLE_RUN,
                done,
                now,
                Event.HEARTBEAT,
                {"ranks_running": 3.0, "idle_seconds": 0.0},
            ),
        ]
    stop = {"outcome": "finished"}
    yield [
        Record("run", rank, done, now, Event.STOP, {}, stop, step_index=done)
        for rank in range(RANKS)
    ]


def rank_records(random, rank, step, now, *, is_faulty):
    loss = nan if is_faulty and rank == 1 else 2.0 + random.gauss(0.0, 0.1)
    values = {"loss": loss, "grad_norm": 1.0 + step / 100}
    if rank == 0 and step % 3 == 0:
        values["learning_rate"] = 1e-3
    yield Record("run", rank, step, now, values=values, step_index=step, sequence=2 * step)
    if rank == 0 and step % 40 == 0:
        yield Record("run", rank, step, now, Event.EVAL, {"loss": 2.0}, step_index=step)


def results_of(engine_pipeline, entries):
    """Results of the run as text, by which NaN equals itself."""
    for entry in entries:
        for result in engine_pipeline.process(entry):
            if result.record.rank == WHOLE_RUN:
                yield repr(result)


@pytest.mark.parametrize("seed", range(2))
def test_batches_of_local_ranks_give_the_results_of_their_records(seed):
    counters = (Counters(), Counters())
    by_record, by_batch = (pipeline.build(Settings(), each) for each in counters)
    expected, found, batches = list[str](), list[str](), 0

    for records in turns(seed):
        entries = coalesce(records)
        batches += sum(isinstance(entry, RecordBatch) for entry in entries)
        expected += results_of(by_record, records)
        found += results_of(by_batch, entries)

    assert batches > 80
    assert found == expected
    assert any("nan_or_inf" in each for each in found)
    assert counters[0].values == counters[1].values
