"""Align: a step closes when all have spoken, or by the deadline, and then the missing are named."""

from __future__ import annotations

from dataclasses import replace
from math import nan

from sentinel.aggregate.aligner import MAX_PENDING_STEPS, Aligner
from sentinel.model.record import WHOLE_RUN, Event, Record


def start(rank, *, of=2, attempt=0):
    values = {"local_world_size": float(of), "world_size": float(of)}
    return Record("run", rank, 0, 100.0, Event.START, values=values, attempt=attempt)


def step(rank, beat, *, attempt=0, number=None, **values):
    return Record(
        "run",
        rank,
        beat if number is None else number,
        100.0 + beat,
        values=values or {"loss": 1.0},
        attempt=attempt,
        step_index=beat,
    )


def stop(rank, outcome="finished", *, beat=9):
    return Record(
        "run", rank, beat, 200.0, Event.STOP, attributes={"outcome": outcome}, step_index=beat
    )


def tick(time, **facts):
    return Record("run", WHOLE_RUN, 0, time, Event.HEARTBEAT, attributes=facts)


def fed(aligner, *records):
    """The combined records that come of these, ticks left out."""
    out = [made for record in records for made in aligner.process(record)]
    return [r for r in out if r.rank == WHOLE_RUN and r.event is not Event.HEARTBEAT]


def started(*ranks, of=None):
    aligner = Aligner()
    fed(aligner, tick(100.0), *(start(rank, of=of or len(ranks)) for rank in ranks))
    return aligner


def test_records_of_single_ranks_pass_through_first():
    aligner = started(0)
    record = step(0, 1)

    assert next(iter(aligner.process(record))) is record


def test_a_step_closes_once_every_rank_has_moved_past_it():
    aligner = started(0, 1)

    assert fed(aligner, step(0, 1, loss=1.0), step(0, 2), step(1, 1, loss=3.0)) == []
    (first,) = fed(aligner, step(1, 2))
    assert (first.step, first.values["loss"]) == (1, 2.0)


def test_a_step_all_have_spoken_of_closes_after_a_moment_of_silence():
    """Slow runs are not judged one step late."""
    aligner = started(0, 1)

    assert fed(aligner, step(0, 1), step(1, 1), tick(100.4)) == []
    assert [r.step for r in fed(aligner, tick(100.6))] == [1]


def test_a_silent_rank_is_waited_for_until_the_deadline_and_then_named():
    aligner = started(0, 1, 2)

    fed(aligner, *(step(rank, 1) for rank in (0, 1, 2)), tick(120.0))
    assert fed(aligner, step(0, 2), step(2, 2), tick(129.0)) == []
    (second,) = fed(aligner, tick(145.0))
    assert second.attributes["missing"] == "1"


def test_a_rank_that_never_speaks_is_not_waited_for_for_ever():
    """Often the first rank alone logs; the others have nothing to add, and are not missing."""
    aligner = started(0, 1)
    fed(aligner, step(0, 1), tick(111.0))

    (second,) = fed(aligner, step(0, 2), tick(111.6))
    assert (second.step, second.attributes) == (2, {})


def test_a_rank_that_ended_is_not_waited_for_or_called_missing():
    aligner = started(0, 1)

    assert fed(aligner, step(0, 1), stop(1, "died"), tick(100.4)) == []
    (first,) = fed(aligner, tick(100.6))
    assert "missing" not in first.attributes


def test_a_rank_that_never_starts_is_given_up_after_the_deadline():
    aligner = started(0, of=4)

    assert fed(aligner, step(0, 1), step(0, 2), tick(101.0)) == []
    assert [r.step for r in fed(aligner, tick(111.0), step(0, 3))] == [1, 2]


def test_steps_close_in_order_even_where_the_trainer_counts_backwards():
    aligner = started(0)
    numbers = (5, 6, 4, 4)

    closed = fed(aligner, *(step(0, i, number=n) for i, n in enumerate(numbers, 1)), stop(0))
    assert [r.step for r in closed[:-1]] == [5, 6, 4, 4]


def test_a_late_word_on_a_signal_nobody_gave_is_still_judged():
    aligner = started(0, 1)
    fed(aligner, step(0, 1, loss=1.0), tick(111.0))

    (late,) = fed(aligner, step(1, 1, loss=2.0, reward=0.5))
    assert late.values == {"reward": 0.5}


def test_a_late_word_that_is_no_news_is_counted():
    aligner = started(0, 1)

    assert fed(aligner, step(0, 1), tick(111.0), step(1, 1))[1:] == []
    assert aligner.counters.values["sentinel_dropped_records_total", "late"] == 1


def save(rank, beat):
    return Record("run", rank, beat, 101.0, Event.SAVE, step_index=beat)


def test_a_checkpoint_is_told_once_however_many_ranks_mark_it():
    aligner = started(0, 1)
    marks = (save(0, 1), save(1, 1), save(0, 1), save(1, 5), save(0, 5))

    assert [(r.event, r.step) for r in fed(aligner, *marks)] == [(Event.SAVE, 1), (Event.SAVE, 5)]


def test_a_checkpoint_that_is_marked_before_its_step_is_told_does_not_close_the_step():
    """In a slow run a step's record leaves long after the checkpoint of that step was marked."""
    aligner = started(0, 1)
    fed(aligner, save(0, 1), tick(150.0))

    (told,) = fed(aligner, step(0, 1, loss=1.0), step(1, 1, loss=3.0), tick(151.0))
    assert told.values["loss"] == 2.0


def test_an_evaluation_of_one_rank_misses_nobody():
    aligner = started(0, 1)
    found = Record("run", 0, 1, 101.0, Event.EVAL, {"eval_loss": 0.7}, step_index=1)
    fed(aligner, step(0, 1), step(1, 1), found)

    closed = fed(aligner, step(0, 2), step(1, 2))
    assert [r.event for r in closed] == [Event.STEP, Event.EVAL]
    assert (closed[1].values, closed[1].attributes) == ({"eval_loss": 0.7}, {})


def test_a_slow_run_is_given_time_by_its_own_pace():
    aligner = started(0, 1)
    fed(aligner, step(0, 1), step(1, 1), tick(160.0), step(0, 2), step(1, 2), tick(161.0))

    assert fed(aligner, tick(220.0), step(0, 3), tick(240.0)) == []
    assert [r.values["loss"] for r in fed(aligner, step(1, 3, loss=3.0), tick(241.0))] == [2.0]


def test_the_run_ends_when_all_have_and_the_first_to_fall_is_the_cause():
    aligner = started(0, 1, 2)

    assert fed(aligner, step(0, 1), step(1, 1), step(2, 1), stop(1, "exception")) == []
    *_, last = fed(aligner, stop(0, "died"), stop(2, "died"))
    assert last.event is Event.STOP
    assert last.attributes == {"outcome": "exception", "ranks": "1"}


def test_a_short_run_is_not_over_with_the_rank_that_is_read_first():
    aligner = started(0, of=2)

    assert fed(aligner, step(0, 1), stop(0), start(1), step(1, 1, loss=3.0)) == []
    closed, last = fed(aligner, stop(1), tick(101.0, state="finished"))
    assert (closed.values["loss"], last.event) == (2.0, Event.STOP)


def test_a_run_is_over_once_nobody_is_left_though_some_were_never_heard():
    aligner = started(0, of=2)

    assert fed(aligner, step(0, 1), stop(0), tick(101.0, state="running")) == []
    told = fed(aligner, tick(101.5, state="failed"))
    assert [r.event for r in told] == [Event.STEP, Event.STOP]
    assert fed(aligner, tick(102.0, state="failed")) == []


def test_a_restart_closes_what_was_open_and_begins_anew():
    aligner = started(0, 1)

    closed = fed(aligner, step(0, 3), start(0, attempt=1))
    assert [(r.event, r.attempt) for r in closed] == [(Event.STEP, 0), (Event.START, 1)]
    assert fed(aligner, step(1, 4, attempt=0)) == []
    assert aligner.counters.values["sentinel_dropped_records_total", "old_attempt"] == 1
    assert [r.step for r in fed(aligner, step(0, 1, attempt=1), tick(111.0))] == [1]


def test_memory_stays_bounded_when_a_rank_runs_far_ahead():
    aligner = started(0, 1)

    fed(aligner, *(step(0, beat) for beat in range(1, MAX_PENDING_STEPS + 50)))
    assert len(aligner.pending_steps) <= MAX_PENDING_STEPS


def facts(rank, **texts):
    return Record("run", rank, 0, 100.5, Event.METADATA, attributes=texts)


def test_what_the_run_says_of_itself_decides_what_its_keys_mean():
    aligner = started(0)
    fed(aligner, facts(0, framework="trl", algorithm="AsyncGRPOConfig"), step(0, 1, kl=0.5))
    (first, *_) = fed(aligner, step(0, 2, kl=0.5))

    assert first.values == {"kl_mismatch": 0.5}
    assert first.attributes["kl_mismatch.kind"] == "mismatch k3 token_mean unsigned cap=inf"


def test_a_rank_that_starts_late_does_not_unsay_what_others_found_out():
    aligner = started(0, of=2)
    late = Record("run", 1, 0, 101.0, Event.START, attributes={"framework": "torch"})
    fed(aligner, facts(0, framework="trl", algorithm="KTOConfig"), late)

    assert aligner.metadata.metadata == {"framework": "trl", "algorithm": "KTOConfig"}
    fed(aligner, start(0, attempt=1))
    assert aligner.metadata.metadata == {}


def test_the_kind_of_a_kl_is_told_by_the_keys_beside_it_where_the_run_says_nothing():
    aligner = started(0)
    fed(aligner, step(0, 1, **{"kl": 3.0, "rewards/chosen": 1.0}))
    (first, *_) = fed(aligner, step(0, 2))

    assert first.attributes["kl_ref.kind"] == "ref k1 sequence_sum unsigned cap=inf"


def test_parts_of_a_gradient_make_its_norm_once_all_ranks_of_the_run_gave_theirs():
    aligner = started(0, 1)
    fed(aligner, step(0, 1, grad_norm_local=3.0), step(1, 1, grad_norm_local=4.0), step(0, 2))
    (whole,) = fed(aligner, step(1, 2))
    fed(aligner, step(0, 3), step(1, 3))
    late = fed(aligner, step(0, 2, grad_norm_local=3.0))

    assert whole.values == {"grad_norm": 5.0}
    assert [record.values for record in late] == [{"grad_norm_local": 3.0}]


def test_a_late_word_by_another_name_of_a_signal_is_no_news():
    aligner = started(0)
    fed(aligner, step(0, 1, loss=1.0), step(0, 2), step(0, 3))

    assert fed(aligner, step(0, 1, **{"train/loss": 1.0})) == []
    assert aligner.counters.values["sentinel_dropped_records_total", "late"] == 1


def test_a_step_that_an_evaluation_overtook_is_told_of_once_it_comes():
    """The trainer evaluates for long, and the step before is sent only when the next one begins."""
    aligner = Aligner()
    fed(aligner, start(0), start(1), step(0, 1), step(1, 1))
    (evaluation,) = fed(aligner, evaluated(0, 2, eval_loss=2.0), tick(103.0), tick(120.0))[-1:]
    overtaken, later = fed(
        aligner, step(0, 2), step(1, 2, loss=3.0), step(0, 3), step(1, 3), step(0, 4), step(1, 4)
    )

    assert (evaluation.event, evaluation.step_index) == (Event.EVAL, 2)
    assert (overtaken.event, overtaken.step_index, overtaken.values) == (
        Event.STEP,
        2,
        {"loss": 2.0},
    )
    assert (later.step_index, dict(aligner.counters.values)) == (3, {})

    assert fed(aligner, step(0, 2)) == []
    assert aligner.counters.values["sentinel_dropped_records_total", "late"] == 1.0


def evaluated(rank, beat, **values):
    return replace(step(rank, beat, **values), event=Event.EVAL)


def test_an_evaluation_after_the_last_one_of_the_same_step_is_told_of_too():
    """A trainer evaluates at its last step, and whoever wrote the script does so again."""
    aligner = Aligner()
    fed(aligner, start(0, of=1), step(0, 1), evaluated(0, 1, eval_loss=2.0), tick(120.0))
    told = fed(aligner, evaluated(0, 1, eval_loss=nan), tick(121.0), tick(122.0))
    told += fed(aligner, evaluated(0, 1, eval_loss=2.1), stop(0))

    assert [str(r.values["eval_loss"]) for r in told if r.event is Event.EVAL] == ["nan", "2.1"]
    assert aligner.counters.values == {}


def test_the_rest_of_an_evaluation_is_judged_at_once_and_another_ranks_word_on_it_is_late():
    aligner = Aligner()
    fed(aligner, start(0), start(1), *[step(r, 1) for r in (0, 1)])
    fed(aligner, evaluated(0, 1, eval_loss=2.0, global_step=1.0), tick(130.0))

    (rest,) = fed(aligner, evaluated(0, 1, eval_reward=0.5, global_step=1.0))
    assert rest.values == {"eval_reward": 0.5}
    assert fed(aligner, evaluated(1, 1, eval_loss=2.2), tick(150.0)) == []
    assert aligner.counters.values["sentinel_dropped_records_total", "late"] == 1.0
