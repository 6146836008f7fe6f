"""The trainings of a run are numbered, whichever rank reports another one, and when."""

from dataclasses import replace

import pytest

from sentinel.aggregate.aligner import Aligner
from sentinel.aggregate.trainings import TrainingTracker
from sentinel.model.record import STATE_LOADED_KEY, WHOLE_RUN, Event, Record


def run_record(kind, step=0, attempt=0, **values):
    return Record("run", WHOLE_RUN, step, 100.0 + step, kind, values=values, attempt=attempt)


def numbers(records):
    tracker = TrainingTracker()
    out = [each for record in records for each in tracker.process(record)]
    return [
        (each.event.value, each.step, each.values.get("training_number"))
        for each in out
        if each.event in (Event.STEP, Event.TRAINING)
    ]


def attempt(number, first_step, *others):
    return [
        run_record(Event.START, attempt=number),
        *others,
        *(run_record(Event.STEP, step, number, loss=1.0) for step in (first_step, first_step + 1)),
    ]


def test_a_step_that_starts_again_with_an_attempt_begins_a_training():
    assert numbers([*attempt(0, 1), *attempt(1, 1)]) == [
        ("step", 1, None),
        ("step", 2, None),
        ("new_training", 1, 2.0),
        ("step", 1, None),
        ("step", 2, None),
    ]


@pytest.mark.parametrize(
    "resumed",
    [
        attempt(1, 2),
        attempt(1, 1, run_record(Event.METADATA, attempt=1, **{STATE_LOADED_KEY: 0.0})),
        attempt(1, 1, run_record(Event.METADATA, attempt=1, resumed_from=100.0)),
    ],
)
def test_a_number_that_continues_or_a_loaded_state_is_a_resume(resumed):
    """A state that the first attempt loaded, or one loaded later, is none of this attempt."""
    first = attempt(0, 1, run_record(Event.METADATA, **{STATE_LOADED_KEY: 0.0}))

    assert "new_training" not in [name for name, *_ in numbers([*first, *resumed])]
    assert ("new_training", 1, 2.0) in numbers([*first, *resumed, *attempt(2, 1)])


def test_an_evaluation_before_the_first_step_is_of_the_new_training():
    evaluated = attempt(1, 1, run_record(Event.EVAL, attempt=1, eval_loss=2.0))

    assert numbers([*attempt(0, 1), *evaluated])[2] == ("new_training", 0, 2.0)


def test_an_attempt_without_a_step_before_it_begins_none():
    assert numbers([run_record(Event.START), *attempt(1, 1)])[0] == ("step", 1, None)


def rank_record(kind, rank, step_index, **values):
    return Record(
        "run", rank, step_index, 100.0 + step_index, kind, values=values, step_index=step_index
    )


def combined(*records):
    aligner, tracker = Aligner(), TrainingTracker()
    sizes = {"local_world_size": 2.0, "world_size": 2.0}
    starts = [replace(rank_record(Event.START, rank, 0), values=sizes) for rank in (0, 1)]
    out = [
        each
        for record in (*starts, *records)
        for aligned in aligner.process(record)
        for each in tracker.process(aligned)
    ]
    return [
        (each.event.value, each.step_index)
        for each in out
        if each.rank == WHOLE_RUN and each.event is not Event.START
    ]


def test_the_ranks_report_one_training_between_the_same_steps():
    """One rank is ahead by the steps that the other still has to report."""
    ahead = [rank_record(Event.STEP, 0, index, loss=1.0) for index in (1, 2)]
    ahead += [rank_record(Event.TRAINING, 0, 2, training_number=2.0)]
    ahead += [rank_record(Event.STEP, 0, index, loss=3.0) for index in (3, 4, 5)]
    behind = [replace(record, rank=1) for record in ahead]

    assert combined(*ahead, *behind)[:4] == [
        ("step", 1), ("step", 2), ("new_training", 2), ("step", 3),
    ]  # fmt: skip


def test_ranks_that_differ_in_when_it_began_report_it_once():
    records = []
    for index in range(1, 7):
        for rank in (0, 1):
            records.append(rank_record(Event.STEP, rank, index, loss=1.0))
            if index == 2 + rank:
                records.append(rank_record(Event.TRAINING, rank, index, training_number=2.0))

    assert [name for name, _ in combined(*records)].count("new_training") == 1


def test_one_rank_declares_a_stage_for_all():
    records = []
    for index in range(1, 6):
        records += [rank_record(Event.STEP, rank, index, loss=1.0) for rank in (0, 1)]
        if index == 2:
            records.append(rank_record(Event.STAGE, 0, index, stage_number=1.0))

    assert combined(*records)[:4] == [("step", 1), ("step", 2), ("stage", 2), ("step", 3)]


def test_settings_and_saves_of_another_training_come_after_its_start():
    """The limits of a new training must not be applied to the last steps of the one before."""
    first = [rank_record(Event.STEP, rank, index, loss=1.0) for index in (1, 2) for rank in (0, 1)]
    new = [
        rank_record(Event.TRAINING, 0, 2, training_number=2.0),
        rank_record(Event.METADATA, 0, 2, max_steps=1.0),
        rank_record(Event.SAVE, 0, 2),
        rank_record(Event.TRAINING, 1, 2, training_number=2.0),
        *(rank_record(Event.STEP, rank, 3, loss=3.0) for rank in (0, 1)),
        *(rank_record(Event.STEP, rank, 4, loss=3.0) for rank in (0, 1)),
    ]

    assert [name for name, _ in combined(*first, *new)][:6] == [
        "step", "step", "new_training", "metadata", "save", "step",
    ]  # fmt: skip


def test_a_save_between_two_trainings_is_of_the_one_before_it_though_its_rank_is_ahead():
    """A checkpoint of one training must not become the last good one of the next."""
    ahead = []
    for index in range(1, 7):
        ahead.append(rank_record(Event.STEP, 0, index, loss=1.0))
        if index in {3, 4}:
            ahead.append(rank_record(Event.SAVE, 0, index))
        if index in {2, 4}:
            training = rank_record(Event.TRAINING, 0, index, training_number=1.0 + index / 2)
            ahead += [training, rank_record(Event.METADATA, 0, index, max_steps=2.0)]
    awaited = [each for each in ahead if each.event in (Event.STEP, Event.TRAINING)]
    behind = [replace(record, rank=1) for record in awaited]

    events = [name for name, _ in combined(*ahead, *behind) if name != "step"]
    assert events == ["new_training", "metadata", "save", "save", "new_training", "metadata"]


def test_held_events_of_a_rank_that_is_reported_again_are_dropped():
    """The agent of its own node reports the training and its settings too."""
    gathered = {"via_collective": "yes"}
    rank_start = rank_record(Event.START, 1, 0, local_world_size=1.0, world_size=2.0)
    new = [
        rank_record(Event.TRAINING, 1, 1, training_number=2.0),
        rank_record(Event.METADATA, 1, 1, max_steps=1.0),
    ]
    aligner = Aligner()
    records = [
        rank_record(Event.START, 0, 0, expected_ranks=2.0, world_size=2.0),
        replace(rank_start, attributes=gathered),
        rank_record(Event.STEP, 1, 1, loss=1.0),
        *new,
        rank_start,
        rank_record(Event.STEP, 1, 1, loss=1.0),
        *new,
        rank_record(Event.STEP, 0, 1, loss=1.0),
        rank_record(Event.TRAINING, 0, 1, training_number=2.0),
        *(rank_record(Event.STEP, rank, 2, loss=1.0) for rank in (0, 1, 0, 1)),
        *(rank_record(Event.STEP, rank, 3, loss=1.0) for rank in (0, 1)),
    ]
    run = [each for record in records for each in aligner.process(record) if each.rank == WHOLE_RUN]

    assert [each.event for each in run if each.event is not Event.START][:4] == [
        Event.STEP, Event.TRAINING, Event.METADATA, Event.STEP,
    ]  # fmt: skip
    assert not any(step.held for step in aligner.steps.pending.values())


def test_a_stored_run_has_the_numbers_of_the_live_one():
    tracker = TrainingTracker()
    live = [
        each
        for record in [*attempt(0, 1), *attempt(1, 1), *attempt(2, 1)]
        for each in tracker.process(record)
    ]

    assert numbers(live) == [
        (each.event.value, each.step, each.values.get("training_number"))
        for each in live
        if each.event in (Event.STEP, Event.TRAINING)
    ]


def logged(*global_steps, **more):
    return [
        run_record(Event.STEP, step, global_step=float(step), loss=1.0, **more)
        for step in global_steps
    ]


def test_steps_of_a_log_that_go_back_to_the_first_ones_begin_a_training():
    found = numbers(logged(10, 20, 30, 10, 20, 30, 40, 20))

    assert [step for kind, step, _ in found if kind == "new_training"] == [10, 20]


def test_the_first_step_of_an_appended_training_may_differ():
    found = numbers(logged(*range(84, 5000, 60), 151, 211))

    assert [step for kind, step, _ in found if kind == "new_training"] == [151]


def test_steps_of_a_log_that_go_back_less_far_are_a_resume():
    assert {kind for kind, *_ in numbers(logged(*range(10, 1000, 10), *range(500, 800, 10)))} == {
        "step"
    }


def test_the_client_reports_its_trainings_itself():
    records = logged(10, 20, 30, 10, 20, optimizer_steps=1.0)

    assert {kind for kind, *_ in numbers(records)} == {"step"}


def test_a_stored_log_has_the_same_trainings_once():
    tracker, again = TrainingTracker(), TrainingTracker()
    records = [out for each in logged(1, 2, 3, 1, 2) for out in tracker.process(each)]
    replayed = [out for each in records for out in again.process(each)]

    assert replayed == records


def test_levels_start_anew_once_when_another_key_stands_for_the_loss():
    tracker = TrainingTracker()
    records = [
        replace(each, attributes={"loss": key})
        for each, key in zip(logged(1, 2, 3, 4, 5), ("a", "a", "b", "a", "b"), strict=True)
    ]
    events = [out.event.value for each in records for out in tracker.process(each)]

    assert events == ["step", "step", "stage", "step", "step", "step"]


def test_epochs_that_start_over_begin_a_training_in_a_log_without_steps():
    epochs = [*range(1, 11), *range(1, 11)]
    records = [
        run_record(Event.STEP, row, epoch=float(epoch), loss=1.0)
        for row, epoch in enumerate(epochs, start=1)
    ]
    counted = [replace(each, values={**each.values, "global_step": each.step}) for each in records]

    assert [step for kind, step, _ in numbers(records) if kind == "new_training"] == [11]
    assert {kind for kind, *_ in numbers(counted)} == {"step"}


def test_a_training_that_follows_the_time_of_a_whole_one_is_another():
    """Its first logged epoch is far from the first of the one before; a resume goes on."""

    def rows(*epochs, **last):
        logged = [run_record(Event.STEP, n, loss=1.0, epoch=e) for n, e in enumerate(epochs)]
        return [*logged, run_record(Event.STEP, 9, epoch=epochs[-1], **last)]

    first = rows(0.2, 0.4, 2.8, 3.0, train_runtime=60.0)
    kinds = [
        [kind for kind, _, _ in numbers([*first, *later])].count("new_training")
        for later in (rows(2.2, 4.4), rows(3.2, 3.4))
    ]

    assert kinds == [1, 0]
    assert "new_training" not in [kind for kind, _, _ in numbers([*rows(0.2, 3.0), *rows(2.2)])]
