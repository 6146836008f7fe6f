"""A replay says what is not monitored; words and settings decide what keys mean."""

from __future__ import annotations

import pytest
from support.replays import log, replay_incidents, run_replay

__all__ = ["log"]


def rows(count=60, **values):
    return [
        {"step": step, **{key: make(step) for key, make in values.items()}}
        for step in range(1, count + 1)
    ]


def falling(step):
    return 5.0 / step**0.5


def test_nothing_monitored_is_said_on_stderr_and_in_the_summary(log):
    path = log(rows(vl=falling, tl=falling))
    result = run_replay(path)
    _, summary = replay_incidents(path)

    assert result.exit_code == 0
    assert "nothing of this run is monitored" in result.stderr
    assert "Nothing of this run is monitored" in result.stdout
    assert "No incident in what is monitored" in result.stdout
    assert (summary["monitored"], [each["key"] for each in summary["unmonitored"]]) == (
        [],
        ["vl", "tl"],
    )


def test_a_monitored_log_without_an_incident_ends_as_before(log):
    result = run_replay(log(rows(loss=falling)))

    assert result.stderr == ""
    assert result.stdout.strip() == "No incident in 60 steps."


def test_a_key_like_a_missing_signal_is_named_with_the_setting(log):
    result = run_replay(log(rows(loss=falling, kl_to_prior=lambda _: 0.1)))
    output = " ".join(result.stdout.split())

    assert result.stderr == ""
    assert 'No detector reads "kl_to_prior" (nearest signal: kl_ref)' in output
    assert '[keys] "kl_to_prior" = "kl_ref"' in output


def test_the_setting_maps_a_key(log):
    path = log(rows(120, tl=lambda step: falling(step) if step < 80 else float("nan")))
    assert replay_incidents(path)[1]["monitored"] == []

    result = run_replay(path, "--json", "--set", "keys.tl=loss")
    assert '"severity": "critical", "signal": "loss"' in result.stdout
    assert '"monitored": ["loss"], "unmonitored": []' in result.stdout


def test_an_unknown_signal_of_the_setting_is_an_error(log):
    result = run_replay(log(rows(tl=falling)), "--set", "keys.tl=losss")

    assert result.exit_code == 2
    assert 'Did you mean "loss"?' in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "key",
    [
        "lm loss", "reduced_train_loss", "train_mean_nll", "average_loss", "loss_total",
        "train/box_loss", "Loss/total", "info/learner/default_policy/learner_stats/total_loss",
    ],
)  # fmt: skip
def test_a_loss_of_any_spelling_is_monitored(log, key):
    path = log(rows(80, **{key: lambda step: falling(step) if step < 70 else float("nan")}))
    incidents, summary = replay_incidents(path)

    assert summary["monitored"] == ["loss"]
    assert [(each["detector"], each["severity"]) for each in incidents] == [
        ("nan_or_inf", "critical")
    ]


@pytest.mark.parametrize("key", ["AverageEpRet", "MeanReward", "episode_reward_mean", "Ep_Reward"])
def test_a_reward_of_any_spelling_is_monitored(log, key):
    path = log(rows(200, **{key: lambda step: min(step, 100) / 100 if step < 150 else 0.0}))
    incidents, summary = replay_incidents(path)

    assert summary["monitored"] == ["reward"]
    assert "reward_collapse" in {each["detector"] for each in incidents}
