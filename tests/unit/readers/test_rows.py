"""Rows: what people log, under the names and in the shapes they log it."""

from math import isnan

import pytest

from sentinel.model.record import Event
from sentinel.readers.rows import RowConverter
from sentinel.signals.run_metadata import RunMetadata


def record(row, **settings):
    return RowConverter("run", **settings).to_record(row)


def test_names_become_ours_and_the_logged_name_stays_known():
    told = record({"step": 3, "objective/kl": 4.5, "train/loss": 1.0, "mine": 2})

    assert (told.step, told.event) == (3, Event.STEP)
    assert told.values["kl_ref"] == 4.5
    assert told.values["loss"] == 1.0
    assert told.values["mine"] == 2.0
    assert told.attributes == {
        "kl_ref": "objective/kl",
        "loss": "train/loss",
        "kl_ref.kind": "ref k1 sequence_sum signed cap=inf",
    }


def test_of_two_names_for_a_signal_the_better_one_keeps_it():
    """A step's loss and an epoch's mean are two series, whatever comes first in the row."""
    rows = RowConverter("run")
    first = rows.to_record({"step": 1, "train_loss": 9.0, "loss": 1.0})
    last = rows.to_record({"step": 2, "train_loss": 5.0, "train_runtime": 3.0})

    assert (first.values["loss"], first.values["train_loss"]) == (1.0, 9.0)
    assert "loss" not in last.values


def test_a_signals_own_name_takes_it_over_even_late():
    rows = RowConverter("run")
    rows.to_record({"step": 1, "total_loss": 9.0})
    late = rows.to_record({"step": 2, "total_loss": 5.0, "loss": 1.0})

    assert (late.values["loss"], late.values["total_loss"]) == (1.0, 5.0)


def test_nested_rows_are_joined_and_wrappers_left_out():
    told = record({"step": 1, "train": {"loss": 1.0}, "metrics": {"reward": 0.5}, "a": {"b": 2}})

    assert (told.values["loss"], told.values["reward"], told.values["a/b"]) == (1.0, 0.5, 2.0)


@pytest.mark.parametrize("written", ["NaN", "nan", "Infinity", float("nan"), "-inf"])
def test_nan_and_infinity_are_read_however_written(written):
    assert not abs(record({"step": 1, "loss": written}).values["loss"]) < float("inf")


def test_numbers_written_as_strings_are_numbers_and_the_rest_is_left_out():
    told = record({"step": "7", "loss": "0.25", "name": "x", "flag": True, "list": [1], "no": None})

    assert told.step == 7
    assert told.values == {"step": 7.0, "loss": 0.25, "global_step": 7.0}


def test_null_is_absent_unless_the_writer_puts_it_for_nan():
    row = {"step": 1, "data": {"actor/grad_norm": None, "mine": None, "reward": 1.0}}

    assert "grad_norm" not in record(row).values
    assert isnan(record(row, null_is_nan=True).values["grad_norm"])
    assert "mine" not in record(row, null_is_nan=True).values


@pytest.mark.parametrize("row", [{}, {"note": "hello"}, {"loss": 10**400}])
def test_a_row_without_a_number_is_no_record(row):
    assert record(row) is None


def test_a_row_without_a_step_has_the_last_one_or_its_own_number():
    rows = RowConverter("run")

    assert [rows.to_record(row).step for row in ({"loss": 1}, {"loss": 1}, {"step": 40, "loss": 1})]
    assert [rows.to_record(row).step for row in ({"loss": 1}, {"step": 41, "loss": 1})] == [40, 41]


@pytest.mark.parametrize("step", [float("nan"), 1e300, "next"])
def test_a_step_that_is_none_is_not_taken(step):
    assert record({"step": step, "loss": 1.0}).step == 1


@pytest.mark.parametrize(
    ("row", "event"),
    [
        ({"step": 1, "eval_loss": 2.0, "epoch": 1.0, "eval_runtime": 3.0}, Event.EVAL),
        ({"step": 1, "val/acc": 2.0}, Event.EVAL),
        ({"step": 1, "loss": 1.0, "eval_loss": 2.0}, Event.STEP),
        ({"step": 1, "epoch": 1.0}, Event.STEP),
        ({"step": 1, "event": "save"}, Event.SAVE),
        ({"step": 1, "event": "start", "save_steps": 500}, Event.START),
        ({"step": 1, "event": "party", "loss": 1.0}, Event.STEP),
    ],
)
def test_tells_an_evaluation_and_a_save_from_a_step(row, event):
    assert record(row).event is event


def test_evaluations_declare_no_step_of_the_trainer():
    assert "global_step" not in record({"step": 1, "eval_loss": 2.0}).values


def test_the_trainers_own_step_is_believed_over_the_logs():
    told = record({"step": 900, "training/global_step": 30, "loss": 1.0})

    assert (told.step, told.values["global_step"]) == (900, 30.0)


def test_time_is_the_rows_own_where_it_has_one():
    assert record({"step": 1, "_timestamp": 1.7e9}).time == 1.7e9
    assert record({"step": 1, "time": 12.5}).time == 1.0


def test_dicts_nested_without_end_are_followed_only_so_far():
    row = inner = {}
    for _ in range(500):
        inner["a"] = inner = {}
    inner["loss"] = 1.0

    assert record({"step": 1, **row}).values == {"step": 1.0, "global_step": 1.0}


@pytest.mark.parametrize("key", ["Train loss", "train_loss_step", "train/loss_step", "LOSS"])
def test_spellings_of_a_name_are_one_name(key):
    assert record({"step": 1, key: 2.0}).values["loss"] == 2.0


def test_a_step_of_so_many_steps_is_both():
    told = record({"global_step/max_steps": "5/2400", "loss": 1.0})

    assert (told.step, told.values["max_steps"]) == (5, 2400.0)


def test_the_keys_tell_the_framework_and_with_it_what_they_mean():
    """Games are scored upside down: what is minimised is minus the entropy."""
    rows = RowConverter("run")
    rows.to_record({"step": 1, "ep_rew_mean": 12.0})
    told = rows.to_record({"step": 2, "policy_gradient_loss": 0.1, "entropy_loss": -1.5})

    assert rows.metadata.metadata == {"framework": "stable-baselines3"}
    assert (told.values["entropy"], told.attributes["entropy"]) == (1.5, "entropy_loss")


def test_what_is_said_of_the_run_is_believed_over_its_keys():
    told = record({"step": 1, "kl": 0.1, "completions/mean_length": 9.0},
                  metadata=RunMetadata({"framework": "trl", "algorithm": "AsyncGRPOConfig"}))  # fmt: skip

    assert told.values["kl_mismatch"] == 0.1
    assert told.attributes["kl_mismatch.kind"] == "mismatch k3 token_mean unsigned cap=inf"


def test_a_gradient_norm_that_stands_for_none_is_left_out():
    row = {"step": 1, "actor_grad_norm": 0.0, "rollout/reward_mean": 0.5}

    assert "grad_norm" not in record(row).values


def test_a_reward_function_that_judged_nobody_is_absent():
    told = record({"step": 1, "reward": 0.5, "rewards/format/mean": None, "rewards/length": 0.1})

    assert "rewards/format/mean" not in told.values
    assert told.values["rewards/length/mean"] == 0.1


def test_a_log_of_washed_values_is_a_log_of_nan():
    rows = RowConverter("run")
    told = [rows.to_record({"step": t, "loss": 0.0, "grad_norm": 1.0}) for t in range(4)]

    assert [isnan(record.values["loss"]) for record in told] == [False, False, True, True]


def test_evaluations_of_a_known_signal_have_one_name():
    told = record({"step": 1, "eval/reward": 0.5, "eval_kl": 0.1, "eval_rewards/margins": 2.0})

    assert told.values.keys() >= {"eval_reward", "eval_kl_ref", "eval_reward_margin"}
    assert not told.values.keys() & {"reward", "kl_ref", "reward_margin"}


def test_two_names_that_become_one_do_not_overwrite_each_other():
    told = record({"step": 1, "eval/reward": 0.5, "eval_reward": 0.25})

    assert (told.values["eval_reward"], told.values["eval/reward"]) == (0.25, 0.5)


def test_what_an_evaluation_measured_is_no_signal_of_training():
    told = record({"step": 1, "event": "eval", "loss": 2.0, "reward": 0.5, "mine": 1.0, "epoch": 3})

    assert told.event is Event.EVAL
    assert told.values == {"step": 1, "eval_loss": 2.0, "eval_reward": 0.5, "mine": 1.0, "epoch": 3}
