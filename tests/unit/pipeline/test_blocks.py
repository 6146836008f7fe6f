"""A block of records gives the results that its records give one by one."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from math import nan
from random import Random
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.log_files import healthy_rows

from sentinel.config.plugins import load_classes
from sentinel.model.counters import Counters
from sentinel.model.finding import CLEAR, Finding, Severity
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.pipeline import Pipeline
from sentinel.readers.rows import RowConverter

DETECTORS = load_classes("detectors")


def log_records(seed, count=220):
    """A log with incidents, evaluations, checkpoints, a gap in a signal, and a run started over."""
    random, converter = Random(seed), RowConverter("run")
    for row in healthy_rows(seed, count):
        late = max(0, row["step"] - count // 2)
        row["kl"] *= min(2.0 ** (late / 8), 300.0)
        row["reward"] -= 0.02 * late
        row["grad_norm"] = 0.5 + 0.1 * random.random() + (random.random() < 0.02) * 50.0
        if count // 3 <= row["step"] < count // 3 + 10:
            row["loss"] = nan
        if random.random() < 0.1:
            del row["kl"]
        yield converter.to_record(row)
        if row["step"] % 40 == 0:
            yield converter.to_record({"step": row["step"], "eval/loss": 2.0 + late / 100})
            yield Record("run", WHOLE_RUN, row["step"], row["time"], Event.SAVE)
    for row in healthy_rows(seed + 1, 40):
        yield converter.to_record(row)


def states(results):
    return [
        (result.record, dict(result.findings), result.notifications, result.changed_incidents,
         result.case_notifications, dict(result.thresholds))
        for result in results
    ]  # fmt: skip


def blocks_of(records, sizes):
    """The records in blocks of these sizes, in turn."""
    at = 0
    while at < len(records):
        size = sizes[0]
        sizes = [*sizes[1:], size]
        yield records[at : at + size]
        at += size


def in_blocks(pipeline, records, sizes):
    return [
        result for block in blocks_of(records, sizes) for result in pipeline.process_block(block)
    ]


@settings(max_examples=10)
@given(st.sampled_from(range(3)), st.lists(st.integers(1, 90), min_size=1, max_size=4))
def test_blocks_of_any_size_give_the_results_of_single_records(seed, sizes):
    records = [*log_records(seed)]
    single, blocks = Pipeline(DETECTORS, Counters()), Pipeline(DETECTORS, Counters())
    expected = [result for record in records for result in single.process(record)]

    found = in_blocks(blocks, records, sizes)

    assert repr(states(found)) == repr(states(expected))
    assert blocks.serialize() == single.serialize()
    assert sum(len(result.notifications) for result in found) > 3


@dataclass
class Failing:
    """Finds every value above 1, and raises at every third record."""

    needs: ClassVar[frozenset[str]] = frozenset({"loss"})
    signal: ClassVar[str] = "loss"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = "Lower it."
    count: int = 0

    def update(self, record):
        self.count += 1
        if self.count % 3 == 0:
            raise ZeroDivisionError
        return Finding(f"Loss at {record.step}.") if record.values["loss"] > 1.0 else CLEAR


class TakingBaselines(Failing):
    baselines: ClassVar[frozenset[str]] = frozenset({"loss"})

    def update(self, record, baselines):
        return super().update(record)


class Bad(Failing):
    """Returns what is no output."""

    def update(self, record):
        return "high"


@pytest.mark.swallows_errors
@pytest.mark.parametrize("size", [2, 5, 64])
def test_a_detector_that_raises_is_switched_off_after_the_same_record(size, caplog):
    factories = {"failing": Failing, "taking": TakingBaselines, "bad": Bad}
    records = [
        Record("run", WHOLE_RUN, step, float(step), values={"loss": step % 4 / 2})
        for step in range(40)
    ]
    logs, results, counts = [], [], []
    for sizes in ([1], [size]):
        caplog.clear()
        pipeline = Pipeline(factories, Counters())
        with caplog.at_level(logging.ERROR):
            results.append(repr(states(in_blocks(pipeline, records, sizes))))
        logs.append([record.getMessage() for record in caplog.records])
        counts.append(pipeline.engine.error_counts)

    assert results[0] == results[1]
    assert logs[0] == logs[1]
    assert counts[0] == counts[1] == {"failing": 3, "taking": 3, "bad": 3}


@pytest.mark.swallows_errors
def test_a_record_that_cannot_be_processed_leaves_the_others_of_its_block(monkeypatch, caplog):
    pipeline = Pipeline({"failing": Failing}, Counters())
    update = pipeline.engine.case_book.update

    def fail_at_3(record, *arguments):
        if record.step == 3:
            raise ZeroDivisionError
        return update(record, *arguments)

    monkeypatch.setattr(pipeline.engine.case_book, "update", fail_at_3)
    first = Record("run", WHOLE_RUN, 0, 0.0, values={"loss": 0.5})
    with caplog.at_level(logging.CRITICAL):
        results = [*pipeline.process_block([replace(first, step=step) for step in range(8)])]

    assert [result.record.step for result in results] == [0, 1, 2, 4, 5, 6, 7]
    assert pipeline.counters.values["sentinel_dropped_records_total", "processing_failed"] == 1
