"""A tracker's step is used as the trainer's if it counts optimizer steps."""

import pytest
from requirements import need

need("torch", "tensorboard")

from manual_loop import numbered_column, train
from support.training_loops import steps
from torch.utils.tensorboard import SummaryWriter

import sentinel

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

watched = sentinel.monitor(run="test", agent=False, strict=True)


def test_a_step_that_counts_optimizer_steps_is_the_trainers_number(recorded, tmp_path):
    writer = SummaryWriter(str(tmp_path / "tb"))
    with watched:
        train(lambda values, step: writer.add_scalar("kl", values["kl"], 5000 + step))
    writer.close()

    # What the first number counts shows with the second one.
    assert [step for step, _ in numbered_column(recorded, "kl")] == [1, 5001, 5002, 5003]
    assert [r.values.get("global_step") for r in steps(recorded)] == [None, 5001, 5002, 5003]


def test_a_step_that_counts_something_else_is_not_used(recorded, tmp_path):
    writer = SummaryWriter(str(tmp_path / "tb"))

    def log(values, step):
        writer.add_scalar("samples", 0.0, 64 * step)
        if step % 3 == 2:
            writer.add_scalar("val/loss", 1.0, step // 3)

    with watched:
        train(log, count=9)
    writer.close()

    assert [r.values.get("global_step") for r in steps(recorded)] == [None] * len(steps(recorded))
    assert sorted({r.step for r in steps(recorded)}) == list(range(1, 10))
    assert [step for step, _ in numbered_column(recorded, "val/loss")] == [3, 6, 9]


def test_a_step_number_that_goes_back_is_recorded(recorded, tmp_path):
    writer, numbers = SummaryWriter(str(tmp_path / "tb")), [10, 11, 12, 3]
    with watched:
        train(lambda values, step: writer.add_scalar("kl", values["kl"], numbers[step]))
    writer.close()

    assert [r.values.get("global_step") for r in steps(recorded)] == [None, 11, 12, 3]


def test_without_optimizer_steps_an_increasing_series_is_the_step(recorded, tmp_path):
    writer = SummaryWriter(str(tmp_path / "tb"))
    with watched:
        for step in (100, 200, 300):
            for name in ("kl", "reward"):
                writer.add_scalar(name, 1.0, step)
    writer.close()

    assert [r.values.get("global_step") for r in steps(recorded)][-2:] == [300, 300]
    assert [step for step, _ in numbered_column(recorded, "kl")][1:] == [200, 300]


def test_step_numbers_of_the_user_precede_those_of_a_tracker(recorded, tmp_path):
    writer = SummaryWriter(str(tmp_path / "tb"))

    def log(values, step):
        sentinel.log({"kl": values["kl"]}, step=7000 + step)
        writer.add_scalar("reward", values["reward"], step)

    with watched:
        train(log)
    writer.close()

    assert [r.values["global_step"] for r in steps(recorded) if "kl" in r.values] == [
        7000,
        7001,
        7002,
        7003,
    ]
    assert [step for step, _ in numbered_column(recorded, "reward")] == [7000, 7001, 7002, 7003]
    assert not [r for r in steps(recorded) if "reward" in r.values and "global_step" in r.values]
