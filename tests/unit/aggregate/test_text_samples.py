"""The texts of a step are aggregated into signals of the run."""

from __future__ import annotations

import pytest
from support.sample_records import run_record, sample

from sentinel.aggregate.text_samples import MAX_OPEN_STEPS, MAX_TEXTS_PER_STEP, TextSampleAggregator
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.pipeline.pipeline import Pipeline
from sentinel.pipeline.snapshot import deserialize, serialize
from sentinel.transport.batch_codec import decode_standalone, encode_standalone


def statistics(aggregator, *records):
    """Statistics of the run that these complete."""
    out = [made for record in records for made in aggregator.process(record)]
    return [r for r in out if r.event is Event.SAMPLE and r.rank == WHOLE_RUN]


def test_texts_are_aggregated_once_the_run_has_moved_past_their_step():
    aggregator = TextSampleAggregator()
    texts = [sample(4, "a b c d a b c d", rank=0), sample(4, "e f", rank=1, finished=0.0)]

    assert statistics(aggregator, *texts, run_record(Event.STEP, 4)) == []
    (record,) = statistics(aggregator, run_record(Event.STEP, 5))

    assert (record.step, record.step_index, record.attributes) == (4, 4, {})
    assert record.values["sample_repetition"] == pytest.approx(0.1)
    assert record.values["sample_truncated"] == 1.0
    assert record.values["sample_length"] == pytest.approx(9.0)
    assert statistics(aggregator, run_record(Event.STEP, 6)) == []


def test_texts_of_the_last_step_are_aggregated_after_the_settle_time():
    aggregator = TextSampleAggregator()

    assert statistics(aggregator, sample(4), run_record(Event.HEARTBEAT, time=105.0)) == []
    assert len(statistics(aggregator, run_record(Event.HEARTBEAT, time=110.0))) == 1


@pytest.mark.parametrize("end", [Event.STOP, Event.START])
def test_open_texts_are_aggregated_before_the_end_of_the_attempt(end):
    aggregator = TextSampleAggregator()
    records = [
        made for record in (sample(4), run_record(end)) for made in aggregator.process(record)
    ]

    assert [(r.event, r.rank) for r in records] == [
        (Event.SAMPLE, 0),
        (Event.SAMPLE, WHOLE_RUN),
        (end, WHOLE_RUN),
    ]


def test_the_truncation_mark_is_not_part_of_the_text():
    text = "a b c d […9 characters left out…] a b c d"
    (record,) = statistics(
        TextSampleAggregator(),
        sample(1, text, head_chars=7.0, tail_chars=7.0),
        run_record(Event.STOP),
    )

    assert record.values["sample_repetition"] == 0.5
    assert record.values["sample_distinct_1"] == 0.5


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -5.0, 1e300])
def test_invalid_lengths_are_ignored(odd):
    invalid = sample(1, head_chars=odd, tail_chars=odd, finished=odd, length=odd)
    assert len(statistics(TextSampleAggregator(), invalid, run_record(Event.STOP))) == 1


def test_memory_is_bounded():
    aggregator = TextSampleAggregator()
    output = statistics(aggregator, *(sample(step) for step in range(3 * MAX_OPEN_STEPS)))
    for number in range(3 * MAX_TEXTS_PER_STEP):
        statistics(aggregator, sample(999, f"text {number}"))

    assert [record.step for record in output] == list(range(2 * MAX_OPEN_STEPS))
    assert len(aggregator.texts_by_step) == MAX_OPEN_STEPS
    assert len(aggregator.texts_by_step[0, 999].texts) == MAX_TEXTS_PER_STEP


def test_a_pipeline_restored_within_a_step_gives_the_same_records():
    def play(restart_at):
        pipeline, output = Pipeline({}, Counters()), []
        records = [sample(n // 2, f"a b c d {n} a b c d", rank=n % 2) for n in range(8)]
        records.append(run_record(Event.HEARTBEAT, time=200.0))
        for at, record in enumerate(records):
            if at == restart_at:
                state, pipeline = pipeline.serialize(), Pipeline({}, Counters())
                pipeline.restore(state)
            output += [
                result.record
                for result in pipeline.process(
                    decode_standalone(encode_standalone([record]), record.run)[0]
                )
            ]
        return output

    assert all(play(restart_at) == play(None) for restart_at in range(9))


def test_a_text_of_a_rank_passes_the_aligner_once():
    pipeline = Pipeline({}, Counters())
    assert [v.record.rank for v in pipeline.process(sample(1, rank=3))] == [3]


def test_an_aggregator_with_any_text_can_be_serialized():
    aggregator = TextSampleAggregator()
    statistics(aggregator, sample(1, "\ud83d \x00 \x1b"))
    assert deserialize(serialize(aggregator)) == aggregator
