"""About: a run is known by what it says, then by what its keys give away."""

from __future__ import annotations

from sentinel.about import MOST_KEYS, About

TRL = {"framework": "trl", "framework_version": "1.16.0", "algorithm": "grpo"}


def test_only_what_decides_what_keys_mean_is_kept():
    about = About()
    about.learn({**TRL, "model": "qwen", "kl_estimator": "k3"})

    assert about.facts == {**TRL, "kl_estimator": "k3"}


def test_a_framework_that_others_are_built_on_does_not_unsay_them():
    about = About(dict(TRL))
    about.learn({"framework": "accelerate", "framework_version": "1.15.0"})

    assert about.facts == TRL
    about.learn({"framework": "verl", "framework_version": "0.9.1"})
    assert about.dialect.framework == "verl"


def test_late_facts_only_fill_what_is_missing():
    about = About(dict(TRL))
    about.learn({"framework": "verl", "kl_penalty": "kl"}, late=True)

    assert about.facts == {**TRL, "kl_penalty": "kl"}


def test_keys_are_put_together_until_they_tell():
    about = About()
    about.hear(["loss"])
    about.hear(["rewards/chosen"])
    assert about.facts == {}
    about.hear(["kl"])

    assert about.facts == {"framework": "trl", "algorithm": "kto"}
    assert about.keys == set()


def test_what_is_said_counts_for_more_than_keys():
    about = About(dict(TRL))
    about.hear(["actor/pg_loss"])

    assert about.facts == TRL


def test_a_trainer_that_invents_keys_is_not_listened_to_for_ever():
    about = About()
    for number in range(2 * MOST_KEYS):
        about.hear([f"key {number}"])

    assert len(about.keys) == MOST_KEYS
