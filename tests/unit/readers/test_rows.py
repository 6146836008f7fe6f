"""Conversion of logged rows to records, in the names and shapes that trainers log."""

from math import inf, isnan
from random import Random

import pytest

from sentinel.model.record import Event
from sentinel.readers.rows import MAX_REMEMBERED_ROWS, RowConverter, RowMemory
from sentinel.signals.run_metadata import RunMetadata


def record(row, **settings):
    return RowConverter("run", **settings).to_record(row)


def test_keys_are_mapped_to_signals_and_the_logged_key_is_an_attribute():
    result = record({"step": 3, "objective/kl": 4.5, "train/loss": 1.0, "mine": 2})

    assert (result.step, result.event) == (3, Event.STEP)
    assert result.values["kl_ref"] == 4.5
    assert result.values["loss"] == 1.0
    assert result.values["mine"] == 2.0
    assert result.attributes == {
        "kl_ref": "objective/kl",
        "loss": "train/loss",
        "kl_ref.kind": "ref k1 sequence_sum signed cap=inf",
    }


def test_the_better_of_two_keys_is_used_for_a_signal():
    """The loss of a step and the mean of an epoch are two series, in any order of the row."""
    rows = RowConverter("run")
    first = rows.to_record({"step": 1, "train_loss": 9.0, "loss": 1.0})
    last = rows.to_record({"step": 2, "train_loss": 5.0, "train_runtime": 3.0})

    assert (first.values["loss"], first.values["train_loss"]) == (1.0, 9.0)
    assert "loss" not in last.values


def test_the_signals_own_name_takes_precedence_even_if_it_comes_later():
    rows = RowConverter("run")
    rows.to_record({"step": 1, "total_loss": 9.0})
    late = rows.to_record({"step": 2, "total_loss": 5.0, "loss": 1.0})

    assert (late.values["loss"], late.values["total_loss"]) == (1.0, 5.0)


def test_the_loss_of_a_yolo_training_is_the_sum_of_its_parts():
    """A part that rises while the others fall by more is no rise of the loss."""
    rows = RowConverter("run")
    for epoch, (box, cls) in enumerate([(1.0, 3.0), (1.25, 2.0)], start=1):
        logged = {f"{split}/{name}": x for split in ("train", "val") for name, x in (
            ("box_loss", box), ("cls_loss", cls), ("dfl_loss", "0.5"),
        )}  # fmt: skip
        values = rows.to_record({"epoch": epoch, "step": epoch, **logged}).values
        assert (values["loss"], values["eval_loss"]) == (box + cls + 0.5, box + cls + 0.5)
        assert values["train/box_loss"] == box


@pytest.mark.parametrize(
    "logged",
    [
        {"train/loss": 7.0, "train/box_loss": 1.0, "train/cls_loss": 3.0},
        {"loss": 7.0, "box_loss": 1.0, "cls_loss": 3.0},
    ],
)
def test_a_loss_that_is_logged_is_no_sum(logged):
    assert record({"step": 1, **logged}).values["loss"] == 7.0


def test_nested_keys_are_joined_without_wrappers():
    result = record({"step": 1, "train": {"loss": 1.0}, "metrics": {"reward": 0.5}, "a": {"b": 2}})

    assert (result.values["loss"], result.values["reward"], result.values["a/b"]) == (1.0, 0.5, 2.0)


@pytest.mark.parametrize("written", ["NaN", "nan", "Infinity", float("nan"), "-inf"])
def test_nan_and_infinity_are_read_in_any_spelling(written):
    assert not abs(record({"step": 1, "loss": written}).values["loss"]) < float("inf")


def test_numeric_strings_are_numbers_and_other_values_are_ignored():
    result = record(
        {"step": "7", "loss": "0.25", "name": "x", "flag": True, "list": [1], "no": None}
    )

    assert result.step == 7
    assert result.values == {"step": 7.0, "loss": 0.25, "global_step": 7.0}


def test_null_is_nan_only_if_the_writer_encodes_it_so():
    row = {"step": 1, "data": {"actor/grad_norm": None, "mine": None, "reward": 1.0}}

    assert "grad_norm" not in record(row).values
    assert isnan(record(row, null_is_nan=True).values["grad_norm"])
    assert "mine" not in record(row, null_is_nan=True).values


@pytest.mark.parametrize("row", [{}, {"note": "hello"}])
def test_a_row_without_a_number_has_no_record(row):
    assert record(row) is None


@pytest.mark.parametrize("sign", [1, -1])
def test_an_integer_beyond_all_floats_is_infinite(sign):
    assert record({"loss": sign * 10**400}).values["loss"] == sign * inf


def test_a_row_without_a_step_has_the_last_step_or_its_own_number():
    rows = RowConverter("run")

    assert [rows.to_record(row).step for row in ({"loss": 1}, {"loss": 1}, {"step": 40, "loss": 1})]
    assert [rows.to_record(row).step for row in ({"loss": 1}, {"step": 41, "loss": 1})] == [40, 41]


@pytest.mark.parametrize("step", [float("nan"), 1e300, "next"])
def test_an_invalid_step_is_ignored(step):
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
def test_evaluations_and_saves_are_distinguished_from_steps(row, event):
    assert record(row).event is event


def test_an_evaluation_has_no_global_step():
    assert "global_step" not in record({"step": 1, "eval_loss": 2.0}).values


def test_the_trainers_global_step_takes_precedence_over_the_log_step():
    result = record({"step": 900, "training/global_step": 30, "loss": 1.0})

    assert (result.step, result.values["global_step"]) == (900, 30.0)


def test_the_time_is_the_rows_own_if_it_has_one():
    assert record({"step": 1, "_timestamp": 1.7e9}).time == 1.7e9
    assert record({"step": 1, "time": 12.5}).time == 1.0


def test_deeply_nested_dicts_are_read_to_a_limit():
    row = inner = {}
    for _ in range(500):
        inner["a"] = inner = {}
    inner["loss"] = 1.0

    assert record({"step": 1, **row}).values == {"step": 1.0, "global_step": 1.0}


@pytest.mark.parametrize("key", ["Train loss", "train_loss_step", "train/loss_step", "LOSS"])
def test_spellings_of_a_key_are_one_signal(key):
    assert record({"step": 1, key: 2.0}).values["loss"] == 2.0


def test_a_step_fraction_gives_step_and_max_steps():
    result = record({"global_step/max_steps": "5/2400", "loss": 1.0})

    assert (result.step, result.values["max_steps"]) == (5, 2400.0)


def test_the_framework_is_detected_from_the_keys():
    """Stable-Baselines3 logs the negative entropy, which it minimizes."""
    rows = RowConverter("run")
    rows.to_record({"step": 1, "ep_rew_mean": 12.0})
    result = rows.to_record({"step": 2, "policy_gradient_loss": 0.1, "entropy_loss": -1.5})

    assert rows.metadata.metadata == {"framework": "stable-baselines3"}
    assert (result.values["entropy"], result.attributes["entropy"]) == (1.5, "entropy_loss")


def test_metadata_takes_precedence_over_keys():
    metadata = RunMetadata({"framework": "trl", "algorithm": "AsyncGRPOConfig"})
    row = {"step": 1, "kl": 0.1, "completions/mean_length": 9.0}
    result = record(row, metadata=metadata)

    assert result.values["kl_mismatch"] == 0.1
    assert result.attributes["kl_mismatch.kind"] == "mismatch k3 token_mean unsigned cap=inf"


def test_a_zero_gradient_norm_that_means_missing_is_omitted():
    row = {"step": 1, "actor_grad_norm": 0.0, "rollout/reward_mean": 0.5}

    assert "grad_norm" not in record(row).values


def test_a_reward_function_with_null_is_omitted():
    result = record({"step": 1, "reward": 0.5, "rewards/format/mean": None, "rewards/length": 0.1})

    assert "rewards/format/mean" not in result.values
    assert result.values["rewards/length/mean"] == 0.1


def test_masked_nan_values_are_restored():
    rows = RowConverter("run")
    result = [rows.to_record({"step": t, "loss": 0.0, "grad_norm": 1.0}) for t in range(4)]

    assert [isnan(record.values["loss"]) for record in result] == [False, False, True, True]


def test_evaluation_keys_of_a_signal_have_one_name():
    result = record({"step": 1, "eval/reward": 0.5, "eval_kl": 0.1, "eval_rewards/margins": 2.0})

    assert result.values.keys() >= {"eval_reward", "eval_kl_ref", "eval_reward_margin"}
    assert not result.values.keys() & {"reward", "kl_ref", "reward_margin"}


def test_two_keys_of_one_signal_do_not_overwrite_each_other():
    result = record({"step": 1, "eval/reward": 0.5, "eval_reward": 0.25})

    assert (result.values["eval_reward"], result.values["eval/reward"]) == (0.25, 0.5)


def test_values_of_an_evaluation_are_not_training_signals():
    result = record(
        {"step": 1, "event": "eval", "loss": 2.0, "reward": 0.5, "mine": 1.0, "epoch": 3}
    )

    assert result.event is Event.EVAL
    assert result.values == {
        "step": 1,
        "eval_loss": 2.0,
        "eval_reward": 0.5,
        "mine": 1.0,
        "epoch": 3,
    }


def varied_rows(rng):
    """Rows of a log in which keys, types, evaluations and lost values vary."""
    for step in range(300):
        row = {"step": float(step), "loss": rng.random(), "grad_norm": rng.random()}
        if rng.random() < 0.1:
            row["eval_loss"] = 2.0
        if rng.random() < 0.05:
            row |= {"loss": 3, "epoch": 1.0 + step // 100}
        if rng.random() < 0.05:
            row |= {"note": "text", "lost": None, "inner": {"reward": 1.0}}
        if step == 150:
            row["event"] = "save"
        if 200 <= step < 210:
            row |= {"loss": 0.0, "grad_norm": 1.0}
        if 250 <= step < 260:
            row["step"] = float(step - 240)
        if rng.random() < 0.1:
            row["timestamp"] = 1.7e9 + step
        yield {"eval_loss": 1.0} if rng.random() < 0.1 else row


@pytest.mark.parametrize("null_is_nan", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_rows_of_known_keys_become_the_records_that_they_would_as_rows_of_new_ones(
    seed, null_is_nan, monkeypatch
):
    fast = RowConverter("run", null_is_nan=null_is_nan)
    records = [fast.to_record(row) for row in varied_rows(Random(seed))]
    monkeypatch.setattr(RowConverter, "_known_layout", lambda self, row: None)
    slow = RowConverter("run", null_is_nan=null_is_nan)

    assert repr(records) == repr([slow.to_record(row) for row in varied_rows(Random(seed))])


def test_rows_of_the_newest_step_are_remembered():
    memory = RowMemory()

    assert not any(memory.is_repeated(step, {"a": 1.0}, ()) for step in (1, 2, 1))
    assert memory.is_repeated(1, {"a": 1.0}, ())
    assert not any(memory.is_repeated(1, {"a": 2.0 + n}, ()) for n in range(MAX_REMEMBERED_ROWS))
    assert len(memory.known) <= MAX_REMEMBERED_ROWS


def test_a_row_is_repeated_if_all_but_its_time_is():
    memory = RowMemory()
    row = {"loss": 1.0, "time": 2.0}

    assert not memory.is_repeated(1, row, ("time",))
    assert memory.is_repeated(1, {**row, "time": 3.0}, ("time",))
    assert not memory.is_repeated(1, {**row, "loss": 1.5}, ("time",))
    assert not memory.is_repeated(1, {"lost": 1.0, "time": 2.0}, ("time",))
    assert not any(memory.is_repeated(1, {"loss": float("nan")}, ()) for _ in range(2))
    assert not any(memory.is_repeated(None, row, ("time",)) for _ in range(2))
    assert not memory.is_repeated(2, row, ("time",))


def test_steps_of_a_resumed_epoch_are_those_of_that_epoch():
    """Steps are counted in each epoch; the run goes on twice from an earlier epoch."""
    converter = RowConverter(run="run")
    epochs = [0, 1, 2, 3, 1, 2, 0, 1]
    rows = [{"epoch": e, "step": n, "loss": 1.0} for e in epochs for n in range(1, 11)]
    steps = [converter.to_record(row).step for row in rows]

    assert steps[9::10] == [10 * epoch + 10 for epoch in epochs]
