"""Several trainings, processes or kinds of rows in one log: each is judged by itself."""

from __future__ import annotations

import json
from math import exp
from random import Random

import pytest

from sentinel.config.settings import Settings
from sentinel.model.finding import Severity
from sentinel.pipeline.pipeline import build
from sentinel.pipeline.replay import replay_records
from sentinel.readers.format_detection import open_log
from sentinel.readers.row_kinds import SECOND_WRITER

EVERY = 10


def training(count=200, start=8.0, end=2.0, seed=0, **more):
    """Rows of a healthy training whose loss falls, logged at every 10th step."""
    rng = Random(seed)
    return [
        {
            "step": EVERY * (at + 1),
            "loss": (end + (start - end) * exp(-at / 40)) * exp(rng.gauss(0.0, 0.03)),
            "grad_norm": 1.5 * exp(rng.gauss(0.0, 0.15)),
            **more,
        }
        for at in range(count)
    ]


def with_noise(rows, seed=1):
    """The rows of a resume, which has other values at the same steps."""
    rng = Random(seed)
    return [{**row, "loss": row["loss"] * exp(rng.gauss(0.0, 0.03))} for row in rows]


def in_turns(first, second, block=1):
    """Rows that two processes write, `block` at a time."""
    starts = range(0, len(first), block)
    return [row for at in starts for rows in (first, second) for row in rows[at : at + block]]


def write(tmp_path, *parts):
    """A log to which each part is appended."""
    path = tmp_path / "log.jsonl"
    for rows in parts:
        with path.open("a") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
    return path


def replayed(tmp_path, *parts):
    return replay(open_log(write(tmp_path, *parts)))


def replay(log):
    return replay_records(log, build(Settings(sinks={})))


def found(result):
    return [each.incident.key.detector for each in result.incidents]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_appended_trainings_are_judged_by_themselves(tmp_path, count):
    result = replayed(tmp_path, *(training(seed=seed) for seed in range(count)))

    assert found(result) == ["step_regression"] * (count - 1)
    assert all(each.incident.resolved_step is not None for each in result.incidents)


def test_a_fault_of_an_appended_training_is_found(tmp_path):
    sick = training(seed=1)
    for at, row in enumerate(sick[120:]):
        row["loss"] = 6.0 + at / 10

    assert {"step_regression", "loss_divergence"} <= {*found(replayed(tmp_path, training(), sick))}


@pytest.mark.parametrize("back", [2, 3, 30])
def test_a_resume_that_repeats_steps_with_other_values_is_a_regression(tmp_path, back):
    rows = training()
    result = replayed(tmp_path, rows[:100], with_noise(rows[100 - back :]))

    assert found(result) == ["step_regression"]
    assert result.incidents[0].incident.onset_step == EVERY * (101 - back)
    assert result.incidents[0].incident.severity is Severity.WARNING


@pytest.mark.parametrize("back", [2, 3, 30, 100])
def test_steps_that_are_taken_again_alike_are_a_regression(tmp_path, back):
    """A resume with the same random numbers."""
    rows = training()

    assert found(replayed(tmp_path, rows[:100], rows[100 - back :])) == ["step_regression"]


def test_rows_that_are_written_twice_are_no_regression(tmp_path):
    result = replayed(tmp_path, [row for row in training() for _ in range(2)])

    assert found(result) == []
    assert (result.steps, result.skipped) == (200, 0)


def test_a_restart_after_two_rows_is_a_regression(tmp_path):
    result = replayed(tmp_path, training()[:2], training(seed=1))

    assert found(result) == ["step_regression"]


def test_two_restarts_far_apart_are_a_warning_each(tmp_path):
    rows = training(400)
    parts = rows[:100], with_noise(rows[98:300]), with_noise(rows[298:], seed=2)
    result = replayed(tmp_path, *parts)

    assert [each.incident.severity for each in result.incidents] == [Severity.WARNING] * 2


@pytest.mark.parametrize("block", [1, 2, 3])
def test_two_processes_that_write_the_same_steps_in_turns_are_healthy(tmp_path, block):
    """Two ranks, whose losses are of one level."""
    result = replayed(tmp_path, in_turns(training(), training(seed=1), block))

    assert found(result) == []


def test_rows_of_a_second_writer_are_left_out(tmp_path):
    """Its loss has another level."""
    log = open_log(write(tmp_path, in_turns(training(), training(end=5.0, seed=1), 8)))
    losses = [record.values["loss"] for record in log if "loss" in record.values]

    assert log.unread_counts == {"another writer repeats the steps of the first one": 200 - 8}
    assert max(losses[-100:]) < 4.0


def test_trainings_that_log_the_same_steps_are_separated_by_their_losses(tmp_path):
    second = training(end=5.0, seed=1)
    log = open_log(write(tmp_path, in_turns(training(), second)))

    assert found(replay(log)) == []
    assert log.other_trainings == [SECOND_WRITER]
    log.writer = SECOND_WRITER
    losses = [record.values["loss"] for record in log if "loss" in record.values]
    assert losses == [row["loss"] for row in second]
    assert found(replay(log)) == []


def test_micro_batches_of_one_step_are_one_training(tmp_path):
    rows = training(400)
    micro_batches = [{**row, "step": row["step"] // 20} for row in rows]
    log = open_log(write(tmp_path, micro_batches))

    assert sum("loss" in record.values for record in log) == 400
    assert log.other_trainings == []


@pytest.mark.parametrize("key", ["trial", "run_id"])
def test_trainings_that_name_themselves_are_separated(tmp_path, key):
    first, second = training(**{key: "1"}), training(end=5.0, seed=1, **{key: "2"})
    path = write(tmp_path, in_turns(first, second))
    log = open_log(path)
    result = replay(log)

    assert found(result) == []
    assert log.other_trainings == [f"{key}=2"]
    log.writer = f"{key}=2"
    losses = [record.values["loss"] for record in log if "loss" in record.values]
    assert losses == [row["loss"] for row in second]
    assert log.other_trainings == []


def test_ranks_that_name_themselves_are_one_training(tmp_path):
    log = open_log(write(tmp_path, in_turns(training(rank=0), training(seed=1, rank=1))))

    assert found(replay(log)) == []
    assert log.unread_counts == {"it is of another writer (rank=1)": 199}
    assert log.other_trainings == []


def test_a_name_that_another_one_replaces_is_another_training(tmp_path):
    log = open_log(write(tmp_path, training(run_id="a"), training(seed=1, run_id="b")))

    assert sum("loss" in record.values for record in log) == 400
    assert log.unread_counts == {}


def test_a_seed_of_each_step_names_no_writer(tmp_path):
    rows = [{**row, "seed": at % 90} for at, row in enumerate(training())]

    assert sum("loss" in record.values for record in open_log(write(tmp_path, rows))) == 200


def falling(at, rng):
    return (1.0 + 4.0 * exp(-at / 60)) * exp(rng.gauss(0.0, 0.03))


PARTS = {
    "gan": lambda at: {"G_loss": 1.0 + at / 50, "D_loss": 0.7 + at / 100},
    "autoencoder": lambda at: {"loss_vae": 0.5 + at / 50, "loss/aux": 0.1 + at / 100},
    "critic": lambda at: {"value_loss": 0.3 + at / 20, "box_loss": 0.5 + at / 50},
}


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("total", ["loss", "total_loss", "loss_total"])
def test_a_part_of_the_loss_does_not_stand_for_it(tmp_path, kind, every, total):
    """The parts rise, and the total falls. It may be logged less often than they are."""
    rng = Random(2)
    rows = [
        {
            "step": at,
            **PARTS[kind](at),
            **({total: falling(at, rng)} if at % every == every - 1 else {}),
        }
        for at in range(400)
    ]
    result = replayed(tmp_path, rows)

    assert found(result) == []
    last = [*open_log(tmp_path / "log.jsonl")][-1]
    assert last.attributes.get("loss", "loss") == total


def test_the_loss_of_the_actor_does_not_stand_for_the_total(tmp_path):
    rows = [{"step": at, "actor/loss": 0.5, "total_loss": 1.0} for at in range(4)]

    assert [each.values.get("loss") for each in open_log(write(tmp_path, rows))][1:] == [1.0] * 4


def test_a_total_that_rises_is_found(tmp_path):
    rng = Random(2)
    rows = [
        {"step": at, "loss_vae": 0.5, "total_loss": falling(min(at, 300 - at), rng)}
        for at in range(300)
    ]

    assert "loss_divergence" in found(replayed(tmp_path, rows))


def epochs(kind, count=20, per_epoch=50):
    """Rows of steps, and a row for each epoch with the mean loss of its steps."""
    rng, rows, step = Random(3), [], 0
    for epoch in range(count):
        losses = [(0.05 + 5.0 * exp(-(step + at) / 60)) * exp(rng.gauss(0, 0.05))
                  for at in range(per_epoch)]  # fmt: skip
        mean = sum(losses) / per_epoch
        for at, loss in enumerate(losses):
            step += 1
            rows.append({
                "same step": {"step": step, "epoch": epoch, "loss": loss, "lr": 1e-4},
                "batch": {"epoch": epoch, "batch": at, "loss": loss},
            }.get(kind, {"step": step, "loss": loss, "lr": 1e-4}))  # fmt: skip
        rows.append({
            "epoch": {"step": step, "epoch": epoch, "loss": mean},
            "no step": {"epoch": epoch, "loss": mean},
            "same step": {"step": step, "epoch": epoch, "loss": mean, "val_loss": mean},
            "text": {"phase": "epoch_end", "step": step, "loss": mean, "lr": 1e-4},
            "batch": {"epoch": epoch, "loss": mean, "val_loss": mean},
        }[kind])  # fmt: skip
    return rows


@pytest.mark.parametrize("kind", ["epoch", "no step", "same step", "text", "batch"])
def test_means_over_an_epoch_are_not_the_loss_of_a_step(tmp_path, kind):
    log = open_log(write(tmp_path, epochs(kind)))
    records = [*log]

    assert sum("loss" in each.values for each in records) == 1000
    assert sum("epoch_mean/loss" in each.values for each in records) == 20
    assert found(replay(log)) == []


def test_rows_that_state_their_epoch_are_the_steps_of_a_log_without_others(tmp_path):
    rows = [{"type": "epoch", "epoch": at, "loss": 1.0 / (at + 1)} for at in range(40)]

    assert sum("loss" in each.values for each in open_log(write(tmp_path, rows))) == 40


def test_other_keys_now_and_then_do_not_make_a_mean(tmp_path):
    """A step with a validation, and rows that have a gradient norm from some step on."""
    rows = [
        {"step": at, "loss": 1.0 + at / 1000, **({"grad_norm": 1.0} if at > 50 else {})}
        for at in range(100)
    ]

    assert sum("loss" in each.values for each in open_log(write(tmp_path, rows))) == 100


def test_the_loss_of_a_step_whose_reward_is_in_a_row_before_is_no_mean(tmp_path):
    rows = [{"step": at, name: 1.0} for at in range(40) for name in ("reward", "loss")]
    values = [each.values for each in open_log(write(tmp_path, rows))]

    assert sum("loss" in each for each in values) == sum("reward" in each for each in values) == 40


def test_rows_that_state_their_split_are_evaluations(tmp_path):
    rng = Random(4)
    rows = [
        {"step": at, "split": split, "loss": falling(at, rng) + 2.0 * (split == "val")}
        for at in range(400)
        for split in (["train", "val"] if at % 10 == 0 else ["train"])
    ]
    result = replayed(tmp_path, rows)

    assert found(result) == []
    assert result.coverage.monitored == ["loss", "eval_loss"]


def test_losses_of_steps_and_epochs_in_a_table_of_lightning(tmp_path):
    path = tmp_path / "metrics.csv"
    lines = ["epoch,step,train_loss_step,train_loss_epoch"]
    for epoch in range(10):
        lines += [f"{epoch},{20 * epoch + at},{4 - epoch / 10 - at / 200}," for at in range(20)]
        lines.append(f"{epoch},{20 * epoch + 19},,{4.05 - epoch / 10}")
    path.write_text("\n".join(lines))

    assert sum("loss" in each.values for each in open_log(path)) == 200
