"""A step closes when all ranks have reported, or at the deadline with the missing ranks named."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

from sentinel.aggregate.aligner import MAX_PENDING_STEPS, Aligner
from sentinel.model.record import WHOLE_RUN, Event, Record


def start(rank, *, of=2, attempt=0):
    values = {"local_world_size": float(of), "world_size": float(of)}
    return Record("run", rank, 0, 100.0, Event.START, values=values, attempt=attempt)


def step(rank, step_index, *, attempt=0, number=None, **values):
    return Record(
        "run",
        rank,
        step_index if number is None else number,
        100.0 + step_index,
        values=values or {"loss": 1.0},
        attempt=attempt,
        step_index=step_index,
    )


def stop(rank, outcome="finished", *, step_index=9, time=200.0):
    return Record(
        "run",
        rank,
        step_index,
        time,
        Event.STOP,
        attributes={"outcome": outcome},
        step_index=step_index,
    )


def heartbeat(time, **attributes):
    return Record("run", WHOLE_RUN, 0, time, Event.HEARTBEAT, attributes=attributes)


def process(aligner, *records):
    """The records of the run that these complete, without heartbeats."""
    out = [made for record in records for made in aligner.process(record)]
    return [r for r in out if r.rank == WHOLE_RUN and r.event is not Event.HEARTBEAT]


def started(*ranks, of=None):
    aligner = Aligner()
    process(aligner, heartbeat(100.0), *(start(rank, of=of or len(ranks)) for rank in ranks))
    return aligner


def test_records_of_single_ranks_pass_through_first():
    aligner = started(0)
    record = step(0, 1)

    assert next(iter(aligner.process(record))) is record


def test_a_step_closes_once_every_rank_has_moved_past_it():
    aligner = started(0, 1)

    assert process(aligner, step(0, 1, loss=1.0), step(0, 2), step(1, 1, loss=3.0)) == []
    (first,) = process(aligner, step(1, 2))
    assert (first.step, first.values["loss"]) == (1, 2.0)


def test_a_step_that_all_ranks_reported_closes_after_the_settle_time():
    """Results of slow runs are not delayed by one step."""
    aligner = started(0, 1)

    assert process(aligner, step(0, 1), step(1, 1), heartbeat(100.4)) == []
    assert [r.step for r in process(aligner, heartbeat(100.6))] == [1]


def test_a_silent_rank_is_awaited_until_the_deadline_and_then_named():
    aligner = started(0, 1, 2)

    process(aligner, *(step(rank, 1) for rank in (0, 1, 2)), heartbeat(120.0))
    assert process(aligner, step(0, 2), step(2, 2), heartbeat(129.0)) == []
    (second,) = process(aligner, heartbeat(145.0))
    assert second.attributes["missing"] == "1"


def test_a_rank_that_never_reports_is_not_awaited_beyond_the_deadline():
    """Often only rank 0 logs; the other ranks are not missing."""
    aligner = started(0, 1)
    process(aligner, step(0, 1), heartbeat(111.0))

    (second,) = process(aligner, step(0, 2), heartbeat(111.6))
    assert (second.step, second.attributes) == (2, {})


def test_a_stopped_rank_is_neither_awaited_nor_missing():
    aligner = started(0, 1)

    assert process(aligner, step(0, 1), stop(1, "died"), heartbeat(100.4)) == []
    (first,) = process(aligner, heartbeat(100.6))
    assert "missing" not in first.attributes


def test_a_rank_that_never_starts_is_not_awaited_after_the_deadline():
    aligner = started(0, of=4)

    assert process(aligner, step(0, 1), step(0, 2), heartbeat(101.0)) == []
    assert [r.step for r in process(aligner, heartbeat(111.0), step(0, 3))] == [1, 2]


def test_steps_close_in_order_even_if_the_trainer_counts_backwards():
    aligner = started(0)
    numbers = (5, 6, 4, 4)

    closed = process(aligner, *(step(0, i, number=n) for i, n in enumerate(numbers, 1)), stop(0))
    assert [r.step for r in closed[:-1]] == [5, 6, 4, 4]


def test_late_values_of_a_new_signal_are_reported():
    aligner = started(0, 1)
    process(aligner, step(0, 1, loss=1.0), heartbeat(111.0))

    (late,) = process(aligner, step(1, 1, loss=2.0, reward=0.5))
    assert late.values == {"reward": 0.5}


def test_late_values_of_a_known_signal_are_dropped_and_counted():
    aligner = started(0, 1)

    assert process(aligner, step(0, 1), heartbeat(111.0), step(1, 1))[1:] == []
    assert aligner.counters.values["sentinel_dropped_records_total", "late"] == 1


def save(rank, step_index):
    return Record("run", rank, step_index, 101.0, Event.SAVE, step_index=step_index)


def test_a_checkpoint_is_reported_once_however_many_ranks_save_it():
    aligner = started(0, 1)
    saves = (save(0, 1), save(1, 1), save(0, 1), save(1, 5), save(0, 5))

    assert [(r.event, r.step) for r in process(aligner, *saves)] == [
        (Event.SAVE, 1),
        (Event.SAVE, 5),
    ]


def test_a_checkpoint_saved_before_its_step_is_reported_does_not_close_the_step():
    """In a slow run the record of a step is sent long after its checkpoint was saved."""
    aligner = started(0, 1)
    process(aligner, save(0, 1), heartbeat(150.0))

    (combined,) = process(aligner, step(0, 1, loss=1.0), step(1, 1, loss=3.0), heartbeat(151.0))
    assert combined.values["loss"] == 2.0


def test_an_evaluation_by_one_rank_has_no_missing_ranks():
    aligner = started(0, 1)
    evaluation = Record("run", 0, 1, 101.0, Event.EVAL, {"eval_loss": 0.7}, step_index=1)
    process(aligner, step(0, 1), step(1, 1), evaluation)

    closed = process(aligner, step(0, 2), step(1, 2))
    assert [r.event for r in closed] == [Event.STEP, Event.EVAL]
    assert (closed[1].values, closed[1].attributes) == ({"eval_loss": 0.7}, {})


def test_the_deadline_of_a_slow_run_grows_with_its_step_time():
    aligner = started(0, 1)
    process(
        aligner, step(0, 1), step(1, 1), heartbeat(160.0), step(0, 2), step(1, 2), heartbeat(161.0)
    )

    assert process(aligner, heartbeat(220.0), step(0, 3), heartbeat(240.0)) == []
    assert [r.values["loss"] for r in process(aligner, step(1, 3, loss=3.0), heartbeat(241.0))] == [
        2.0
    ]


def test_the_run_stops_with_its_last_rank_and_the_outcome_of_the_first_failure():
    aligner = started(0, 1, 2)

    assert process(aligner, step(0, 1), step(1, 1), step(2, 1), stop(1, "exception")) == []
    *_, last = process(aligner, stop(0, "died", time=200.5), stop(2, "died", time=200.5))
    assert last.event is Event.STOP
    assert last.attributes == {"outcome": "exception", "ranks": "1"}


def test_a_rank_that_died_precedes_the_connection_errors_that_are_read_before():
    aligner = started(0, 1)
    lost = replace(
        stop(0, time=199.0),
        attributes={"outcome": "exception", "message": "Connection closed by peer"},
    )
    killed = replace(stop(1), attributes={"outcome": "died", "signal": "SIGKILL"})

    *_, last = process(aligner, lost, killed)
    assert last.attributes == {"outcome": "died", "signal": "SIGKILL", "ranks": "1"}


def test_a_short_run_does_not_end_with_the_rank_that_is_read_first():
    aligner = started(0, of=2)

    assert process(aligner, step(0, 1), stop(0), start(1), step(1, 1, loss=3.0)) == []
    closed, last = process(aligner, stop(1), heartbeat(101.0, state="finished"))
    assert (closed.values["loss"], last.event) == (2.0, Event.STOP)


def test_a_run_ends_when_no_rank_is_left_even_if_some_never_started():
    aligner = started(0, of=2)

    assert process(aligner, step(0, 1), stop(0), heartbeat(101.0, state="running")) == []
    closed = process(aligner, heartbeat(101.5, state="failed"))
    assert [r.event for r in closed] == [Event.STEP, Event.STOP]
    assert process(aligner, heartbeat(102.0, state="failed")) == []


def test_a_restart_closes_pending_steps_and_resets_the_aligner():
    aligner = started(0, 1)

    closed = process(aligner, step(0, 3), start(0, attempt=1))
    assert [(r.event, r.attempt) for r in closed] == [(Event.STEP, 0), (Event.START, 1)]
    assert process(aligner, step(1, 4, attempt=0)) == []
    assert aligner.counters.values["sentinel_dropped_records_total", "old_attempt"] == 1
    assert [r.step for r in process(aligner, step(0, 1, attempt=1), heartbeat(111.0))] == [1]


def test_memory_stays_bounded_when_a_rank_runs_far_ahead():
    aligner = started(0, 1)

    process(aligner, *(step(0, step_index) for step_index in range(1, MAX_PENDING_STEPS + 50)))
    assert len(aligner.steps.pending) <= MAX_PENDING_STEPS


def test_too_many_steps_close_the_oldest_only_before_all_ranks_have_started():
    aligner = started(0)
    process(aligner, start(0, of=2))

    made = process(aligner, *(step(0, at) for at in range(1, MAX_PENDING_STEPS + 4)))
    assert [record.step for record in made] == [1, 2, 3]


def metadata(rank, **texts):
    return Record("run", rank, 0, 100.5, Event.METADATA, attributes=texts)


def test_run_metadata_decides_what_keys_mean():
    aligner = started(0)
    process(aligner, metadata(0, framework="trl", algorithm="AsyncGRPOConfig"), step(0, 1, kl=0.5))
    (first, *_) = process(aligner, step(0, 2, kl=0.5))

    assert first.values == {"kl_mismatch": 0.5}
    assert first.attributes["kl_mismatch.kind"] == "mismatch k3 token_mean unsigned cap=inf"


def test_a_late_start_does_not_replace_known_metadata():
    aligner = started(0, of=2)
    late = Record("run", 1, 0, 101.0, Event.START, attributes={"framework": "torch"})
    process(aligner, metadata(0, framework="trl", algorithm="KTOConfig"), late)

    assert aligner.steps.metadata.metadata == {"framework": "trl", "algorithm": "KTOConfig"}
    process(aligner, start(0, attempt=1))
    assert aligner.steps.metadata.metadata == {}


def test_without_metadata_the_kind_of_a_kl_follows_from_other_keys():
    aligner = started(0)
    process(aligner, step(0, 1, **{"kl": 3.0, "rewards/chosen": 1.0}))
    (first, *_) = process(aligner, step(0, 2))

    assert first.attributes["kl_ref.kind"] == "ref k1 sequence_sum unsigned cap=inf"


def test_partial_norms_are_combined_only_if_all_ranks_reported_theirs():
    aligner = started(0, 1)
    process(aligner, step(0, 1, grad_norm_local=3.0), step(1, 1, grad_norm_local=4.0), step(0, 2))
    (combined,) = process(aligner, step(1, 2))
    process(aligner, step(0, 3), step(1, 3))
    late = process(aligner, step(0, 2, grad_norm_local=3.0))

    assert combined.values == {"grad_norm": 5.0}
    assert [record.values for record in late] == [{"grad_norm_local": 3.0}]


def test_late_values_under_another_key_of_a_known_signal_are_dropped():
    aligner = started(0)
    process(aligner, step(0, 1, loss=1.0), step(0, 2), step(0, 3))

    assert process(aligner, step(0, 1, **{"train/loss": 1.0})) == []
    assert aligner.counters.values["sentinel_dropped_records_total", "late"] == 1


def test_a_step_reported_after_a_later_evaluation_is_combined_once():
    """During a long evaluation the step before is sent only when the next one begins."""
    aligner = Aligner()
    process(aligner, start(0), start(1), step(0, 1), step(1, 1))
    (evaluation,) = process(
        aligner, evaluated(0, 2, eval_loss=2.0), heartbeat(103.0), heartbeat(120.0)
    )[-1:]
    overtaken, later = process(
        aligner, step(0, 2), step(1, 2, loss=3.0), step(0, 3), step(1, 3), step(0, 4), step(1, 4)
    )

    assert (evaluation.event, evaluation.step_index) == (Event.EVAL, 2)
    assert (overtaken.event, overtaken.step_index, overtaken.values) == (
        Event.STEP,
        2,
        {"loss": 2.0},
    )
    assert (later.step_index, dict(aligner.counters.values)) == (3, {})

    assert process(aligner, step(0, 2)) == []
    assert aligner.counters.values["sentinel_dropped_records_total", "late"] == 1.0


def evaluated(rank, step_index, **values):
    return replace(step(rank, step_index, **values), event=Event.EVAL)


def test_a_second_evaluation_of_the_same_step_is_reported():
    """A trainer evaluates at its last step, and many scripts evaluate once more after it."""
    aligner = Aligner()
    process(aligner, start(0, of=1), step(0, 1), evaluated(0, 1, eval_loss=2.0), heartbeat(120.0))
    closed = process(aligner, evaluated(0, 1, eval_loss=nan), heartbeat(121.0), heartbeat(122.0))
    closed += process(aligner, evaluated(0, 1, eval_loss=2.1), stop(0))

    assert [str(r.values["eval_loss"]) for r in closed if r.event is Event.EVAL] == ["nan", "2.1"]
    assert aligner.counters.values == {}


def test_later_signals_of_an_evaluation_are_reported_and_values_of_other_ranks_are_late():
    aligner = Aligner()
    process(aligner, start(0), start(1), *[step(r, 1) for r in (0, 1)])
    process(aligner, evaluated(0, 1, eval_loss=2.0, global_step=1.0), heartbeat(130.0))

    (rest,) = process(aligner, evaluated(0, 1, eval_reward=0.5, global_step=1.0))
    assert rest.values == {"eval_reward": 0.5}
    assert process(aligner, evaluated(1, 1, eval_loss=2.2), heartbeat(150.0)) == []
    assert aligner.counters.values["sentinel_dropped_records_total", "late"] == 1.0


def test_a_step_is_not_closed_while_records_of_it_may_be_unread():
    """The agent was suspended: its clock is far ahead of what it has read."""
    aligner = started(0, 1)

    assert process(aligner, step(0, 1), step(0, 2), heartbeat(500.0, unread_ranks="1")) == []
    closed = process(aligner, step(1, 1), step(1, 2), heartbeat(900.0))
    assert [(r.step, r.attributes) for r in closed] == [(1, {}), (2, {})]
    assert aligner.counters.values["sentinel_dropped_records_total", "late"] == 0


def test_a_rank_whose_start_is_unread_is_awaited():
    aligner = started(0, of=2)

    assert process(aligner, step(0, 1), stop(0), heartbeat(500.0, unread_ranks="1")) == []
    closed = process(aligner, start(1), step(1, 1), stop(1), heartbeat(501.0))
    assert [(r.event, r.attributes.get("missing")) for r in closed] == [
        (Event.STEP, None),
        (Event.STOP, None),
    ]


def test_an_unread_rank_that_has_passed_a_step_does_not_hold_it_up():
    aligner = started(0, 1)
    process(aligner, step(0, 1), step(1, 1), step(1, 2))

    (first,) = process(aligner, heartbeat(100.6, unread_ranks="1"), step(0, 2))
    assert first.step == 1


def test_rings_are_not_read_ahead_while_many_steps_wait_for_unread_records():
    """Otherwise the oldest steps would close without the ranks that are behind."""
    aligner = started(0, 1)
    process(aligner, heartbeat(100.0, unread_ranks="1"))
    process(aligner, *(step(0, at) for at in range(1, MAX_PENDING_STEPS // 2)))
    assert aligner.max_step_index == inf

    process(aligner, step(0, 9000))
    assert aligner.max_step_index == 9000
    process(aligner, heartbeat(100.5))
    assert aligner.max_step_index == inf
