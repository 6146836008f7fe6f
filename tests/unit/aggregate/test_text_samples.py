"""Samples: the texts of a step become signals of the run, and stay where they belong."""

from __future__ import annotations

import pytest
from support.sample_records import sample, whole

from sentinel.aggregate.text_samples import MAX_OPEN_STEPS, MAX_TEXTS_PER_STEP, TextSampleAggregator
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.pipeline.pipeline import Pipeline
from sentinel.pipeline.snapshot import deserialize, serialize
from sentinel.transport.batch_codec import decode_standalone, encode_standalone

CANARY = "CANARY-7c1e"
SENT_AWAY = {"outbox": "notification", "incident": "body", "step": "attributes"}
"""Columns of what is shown to others, or sent."""


def judged(stage, *records):
    """Statistics that come of these."""
    told = [made for record in records for made in stage.process(record)]
    return [r for r in told if r.event is Event.SAMPLE and r.rank == WHOLE_RUN]


def test_a_step_is_judged_once_the_run_has_moved_past_it():
    stage = TextSampleAggregator()
    texts = [sample(4, "a b c d a b c d", rank=0), sample(4, "e f", rank=1, finished=0.0)]

    assert judged(stage, *texts, whole(Event.STEP, 4)) == []
    (record,) = judged(stage, whole(Event.STEP, 5))

    assert (record.step, record.step_index, record.attributes) == (4, 4, {})
    assert record.values["sample_repetition"] == pytest.approx(0.1)
    assert record.values["sample_truncated"] == 1.0
    assert record.values["sample_length"] == pytest.approx(9.0)
    assert judged(stage, whole(Event.STEP, 6)) == []


def test_a_step_nobody_moves_past_is_judged_when_its_texts_are_old():
    stage = TextSampleAggregator()

    assert judged(stage, sample(4), whole(Event.HEARTBEAT, time=105.0)) == []
    assert len(judged(stage, whole(Event.HEARTBEAT, time=110.0))) == 1


@pytest.mark.parametrize("end", [Event.STOP, Event.START])
def test_what_is_open_at_the_end_is_judged_before_it(end):
    stage = TextSampleAggregator()
    told = [made for record in (sample(4), whole(end)) for made in stage.process(record)]

    assert [(r.event, r.rank) for r in told] == [
        (Event.SAMPLE, 0),
        (Event.SAMPLE, WHOLE_RUN),
        (end, WHOLE_RUN),
    ]


def test_a_cut_text_is_judged_without_what_we_put_into_it():
    said = "a b c d […9 characters left out…] a b c d"
    (record,) = judged(
        TextSampleAggregator(), sample(1, said, head_chars=7.0, tail_chars=7.0), whole(Event.STOP)
    )

    assert record.values["sample_repetition"] == 0.5
    assert record.values["sample_distinct_1"] == 0.5


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -5.0, 1e300])
def test_numbers_that_make_no_sense_do_no_harm(odd):
    told = sample(1, head_chars=odd, tail_chars=odd, finished=odd, length=odd)
    assert len(judged(TextSampleAggregator(), told, whole(Event.STOP))) == 1


def test_what_is_held_is_bounded():
    stage = TextSampleAggregator()
    found = judged(stage, *(sample(step) for step in range(3 * MAX_OPEN_STEPS)))
    for number in range(3 * MAX_TEXTS_PER_STEP):
        judged(stage, sample(999, f"text {number}"))

    assert [record.step for record in found] == list(range(2 * MAX_OPEN_STEPS))
    assert len(stage.texts_by_step) == MAX_OPEN_STEPS
    assert len(stage.texts_by_step[0, 999].texts) == MAX_TEXTS_PER_STEP


def test_a_fold_restored_in_the_middle_of_a_step_goes_on_as_if_nothing_had_been():
    def play(halt):
        fold, found = Pipeline({}, Counters()), []
        records = [sample(n // 2, f"a b c d {n} a b c d", rank=n % 2) for n in range(8)]
        records.append(whole(Event.HEARTBEAT, time=200.0))
        for at, record in enumerate(records):
            if at == halt:
                state, fold = fold.serialize(), Pipeline({}, Counters())
                fold.restore(state)
            found += [
                verdict.record
                for verdict in fold.process(
                    decode_standalone(encode_standalone([record]), record.run)[0]
                )
            ]
        return found

    assert all(play(halt) == play(None) for halt in range(9))


def test_texts_of_a_rank_pass_the_aligner_once():
    fold = Pipeline({}, Counters())
    assert [v.record.rank for v in fold.process(sample(1, rank=3))] == [3]


def test_a_stage_with_any_text_in_it_can_be_stored():
    stage = TextSampleAggregator()
    judged(stage, sample(1, "\ud83d \x00 \x1b"))
    assert deserialize(serialize(stage)) == stage
