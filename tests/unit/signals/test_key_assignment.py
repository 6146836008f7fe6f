"""One unknown key stands for each signal that the catalogue's keys of the run leave out."""

from __future__ import annotations

from itertools import chain

import pytest

from sentinel.aggregate.aligner import Aligner
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.readers.rows import RowConverter
from sentinel.signals.catalogue import SIGNALS
from sentinel.signals.key_assignment import COMPONENT_RECORDS, KeyAssignment
from sentinel.signals.run_metadata import RunMetadata


def convert(rows, keys=None):
    """The values of the records of a log with these rows."""
    converter = RowConverter("run", metadata=RunMetadata(assignment=KeyAssignment(keys or {})))
    return [converter.to_record({"step": step, **row}).values for step, row in enumerate(rows)]


def signals_of(*keys, count=10):
    """What keys mean once they are logged together, where they are signals."""
    metadata = RunMetadata()
    for _ in range(count):
        metadata.observe_keys(keys)
    names = {key: metadata.key_map.lookup(key).name for key in keys}
    return {key: name for key, name in names.items() if name in SIGNALS}


ALIASES = sorted(chain.from_iterable((s.name, *s.aliases) for s in SIGNALS.values()))


@pytest.mark.parametrize("key", ALIASES)
def test_keys_of_the_catalogue_keep_their_meaning(key):
    """Beside keys whose words name every signal that words can name."""
    words = ("Average Loss", "MeanReward", "info/kl", "gnorm", "Policy/Entropy", "top1", "x/lr0")
    expected = RunMetadata().key_map.lookup(key).name
    metadata = RunMetadata()
    for _ in range(10):
        metadata.observe_keys((*words, key))

    assert metadata.key_map.lookup(key).name == expected


def test_the_loss_of_a_run_is_the_key_of_the_catalogue():
    assert signals_of("loss", "nll_loss", "box_loss", "loss_total") == {"loss": "loss"}


def test_the_total_stands_for_the_loss_and_a_component_only_without_it():
    assert signals_of("box_loss", "cls_loss", "sum_loss") == {"sum_loss": "loss"}
    assert signals_of("train/cls_loss", "train/box_loss") == {"train/box_loss": "loss"}
    assert signals_of("box", "obj", "cls", "total", "gnorm")["total"] == "loss"
    assert signals_of("total", "count") == {}


def test_a_component_waits_for_a_total():
    """A run logs its components at its start, and its loss a few rows later."""
    rows = [{"loss_data": 0.1}, {"loss": 3.0}, {"loss_data": 0.2}, {"loss": 2.9}]
    assert [row.get("loss") for row in convert(rows)] == [None, 3.0, None, 2.9]

    rows = [{"loss_data": 0.1, "loss_control": 0.2}] * (COMPONENT_RECORDS + 2)
    assert [row.get("loss") for row in convert(rows)].count(0.2) == 3


def test_a_key_of_the_catalogue_takes_the_signal_back():
    rows = [{"average_loss": 1.0}] * 20 + [{"average_loss": 1.0, "train_loss": 5.0}] * 2
    losses = [row.get("loss") for row in convert(rows)]

    assert losses == [1.0] * 20 + [5.0] * 2


def test_the_key_that_most_records_have_is_preferred():
    rows = [{"AverageReturn": 3.0, "score": 1.0}] + [{"score": 1.0}] * 9
    result = convert(rows)

    assert [row["reward"] for row in result[7:]] == [1.0] * 3
    assert "reward" not in result[0] or result[0]["reward"] == 3.0


def test_a_later_key_does_not_interrupt_a_signal():
    rows = [{"mean_nll": 2.0}] * 20 + [{"mean_nll": 2.0, "epoch_loss": 5.0}] * 3

    assert [row["loss"] for row in convert(rows)] == [2.0] * 23


def test_a_divergence_is_taken_from_words_only_in_the_training_of_a_policy():
    assert "kl/divergence" not in signals_of("kl/divergence", "average_loss")
    article = (
        "kl/divergence", "reward/mean", "reward/std", "policy/loss", "value/loss",
        "generation/length", "generation/log_prob", "throughput/samples_per_second",
    )  # fmt: skip
    assert signals_of(*article) == {
        "kl/divergence": "kl_ref",
        "reward/mean": "reward",
        "reward/std": "reward_std",
        "policy/loss": "policy_loss",
        "value/loss": "value_loss",
        "generation/length": "completion_length",
        "throughput/samples_per_second": "samples_per_second",
    }


def test_the_divergence_of_a_policy_without_a_reference_is_that_of_one_update():
    assert signals_of("info/kl", "losses/c_loss", "rewards/iter")["info/kl"] == "kl_old"


def test_a_score_is_a_reward_only_in_games():
    assert signals_of("loss", "score") == {"loss": "loss"}
    assert signals_of("episode", "score", "epsilon") == {"score": "reward"}
    assert signals_of("score", "loss", "episode")["score"] == "reward"


def test_rows_of_evaluations_are_recognised_by_words():
    converter = RowConverter("run")
    rows = [{"step": 1, "average_loss": 2.0}, {"step": 1, "average_val_loss": 3.0}]
    events = [converter.to_record(row).event.value for row in rows]

    assert events == ["step", "eval"]


def test_the_first_of_several_evaluation_sets_stands_for_all():
    keys = [
        f"eval_{name}_{metric}"
        for name in ("clean", "noisy")
        for metric in ("loss", "accuracy", "runtime")
    ]
    values = convert([dict.fromkeys(keys[:3], 0.5), dict.fromkeys(keys[3:], 0.75)])

    assert [row.get("eval_loss") for row in values] == [0.5, None]
    assert [row.get("eval_accuracy") for row in values] == [0.5, None]
    assert signals_of("loss", *keys) == {"loss": "loss", "eval_clean_loss": "eval_loss"}
    assert signals_of("loss", "eval_loss", *keys) == {"loss": "loss", "eval_loss": "eval_loss"}
    # Without the time of a set, the middle of the key may be a part of the loss.
    assert signals_of("loss", "eval_clean_loss", "eval_noisy_loss") == {"loss": "loss"}


def test_settings_decide_what_a_key_means():
    rows = [{"loss": 1.0, "Positive Score": 0.25, "train/my_kl": 0.1}] * 3
    result = convert(rows, {"positive score": "reward", "my_kl": "kl_ref"})

    assert (result[2]["reward"], result[2]["kl_ref"], result[2]["loss"]) == (0.25, 0.1, 1.0)


def test_settings_take_precedence_over_the_catalogue():
    result = convert([{"loss": 1.0, "total": 2.0}, {"total": 3.0}], {"total": "loss"})

    assert [row["loss"] for row in result] == [2.0, 3.0]
    assert result[0]["other/loss"] == 1.0


def test_ranks_and_logs_map_keys_alike():
    """The aligner assigns the keys of live ranks, and keeps the settings for a new attempt."""
    aligner = Aligner(keys={"mine": "reward"}, settle_seconds=0.0, deadline_seconds=0.0)
    records = [
        Record("run", 0, step, float(step), event, values, attempt=attempt, step_index=step)
        for attempt in (0, 1)
        for step, event, values in [
            (0, Event.START, {}),
            *((n, Event.STEP, {"mean_nll": 2.0, "mine": 0.5}) for n in range(1, 4)),
            (4, Event.HEARTBEAT, {}),
        ]
    ]
    steps = [
        result.values
        for record in records
        for result in aligner.process(record)
        if result.rank == WHOLE_RUN and result.event is Event.STEP
    ]

    assert len(steps) >= 4
    assert all((values["loss"], values["reward"]) == (2.0, 0.5) for values in steps)


@pytest.mark.parametrize("key", ["eval/mean_reward", "Eval_AverageReturn", "test_reward"])
def test_the_reward_of_evaluations_stands_for_a_missing_reward(key):
    """Offline reinforcement learning evaluates now and then, and logs no other outcome."""
    converter = RowConverter("run")
    rows = [
        {"step": step, **({key: 1.0} if step % 2 else {"actor_loss": 0.1})} for step in range(20)
    ]
    records = [converter.to_record(row) for row in rows]

    assert [record.values.get("reward") for record in records[9::2]] == [1.0] * 6
    assert {record.event for record in records[8:]} == {Event.STEP}
    assert "reward" not in signals_of(key, "loss").values()


def test_scores_of_a_reward_model_in_training_are_not_taken_for_a_reward():
    row = {"loss": 0.7, "accuracy": 0.5, "margin": 0.1, "mean_reward": 0.3, "max_reward": 0.4}

    assert all("reward" not in values for values in convert([row] * 40))


def test_the_kl_of_an_autoencoder_is_no_distance_to_a_reference():
    for key in ("kl", "kl_loss", "train/kl_loss"):
        assert "kl_ref" not in signals_of("loss", "recon_loss", key).values(), key
        assert "kl_ref" in signals_of("loss", "reward", "recon_loss", key).values(), key
    assert signals_of("loss", "kl")["kl"] == "kl_ref"


def test_a_configured_kl_of_an_autoencoder_keeps_its_meaning():
    rows = [{"loss": 1.0, "recon_loss": 0.5, "kl": 0.1}] * 3

    assert convert(rows, {"kl": "kl_ref"})[-1]["kl_ref"] == 0.1


def test_a_total_is_one_of_the_loss_only_in_object_detection():
    assert signals_of("env/reward/total", "time/total") == {"env/reward/total": "reward"}
    assert signals_of("box", "obj", "total")["total"] == "loss"


def test_the_kl_of_a_world_model_is_no_distance_to_a_reference():
    keys = ("model_loss", "image_loss", "kl", "actor_loss", "train_return")

    assert "kl_ref" not in signals_of(*keys).values()


@pytest.mark.parametrize(
    ("keys", "signals"),
    [
        (
            ("train/loss", "train/pg_loss", "train/pg_clipfrac", "rollout/raw_reward",
             "rollout/response_lengths", "rollout/truncated"),
            ("loss", "policy_loss", "clip_fraction", "reward", "completion_length",
             "truncated_fraction"),
        ),
        (
            ("train/token_mult_prob_error", "train/kl_penalty", "train/approx_entropy",
             "train/gen_kl_error"),
            ("kl_ref", "entropy", "kl_mismatch"),
        ),
        (
            ("ppo_actor/task_reward/avg", "ppo_actor/update/grad_norm", "ppo_actor/update/lr",
             "ppo_actor/update/entropy/avg"),
            ("reward", "grad_norm", "learning_rate", "entropy"),
        ),
        (
            ("mismatch_kl/mean", "is_truncated/mean", "optim/lr", "reward/mean"),
            ("kl_mismatch", "truncated_fraction", "learning_rate", "reward"),
        ),
        (
            ("policy/policy_loss", "policy/ppo_clip_ratio", "generate/avg_num_tokens",
             "reward/avg_raw_reward", "loss/avg_raw_advantages"),
            ("policy_loss", "clip_fraction", "completion_length", "reward"),
        ),
        (
            ("Reward / Total reward (mean)", "Loss / Policy loss", "Loss / Value loss"),
            ("reward", "policy_loss", "value_loss"),
        ),
        (
            ("rewards", "clipfrac", "approx_policy_kls", "response_lengths"),
            ("reward", "clip_fraction", "kl_old", "completion_length"),
        ),
    ],
)  # fmt: skip
def test_keys_of_trainers(keys, signals):
    """slime, NeMo-RL, AReaL, prime-rl, SkyRL, skrl, torchtune."""
    assert sorted(signals_of(*keys).values()) == sorted(signals)


def test_the_only_key_that_names_a_reward_is_that_of_a_policy():
    """In whatever words; of two such keys, or beside a reward, none is."""
    assert signals_of("Rewards Episodi", "actor_losses")["Rewards Episodi"] == "reward"
    assert "Rewards Episodi" not in signals_of("Rewards Episodi", "loss")
    assert "Rewards Episodi" not in signals_of("Rewards Episodi", "actor_losses", "my_reward")
    assert "Rewards Episodi" not in signals_of("Rewards Episodi", "actor_losses", "ep_rew_mean")
    assert signals_of("Total reward during evaluation", "SPS") == {
        "Total reward during evaluation": "reward"
    }
