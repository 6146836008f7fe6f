"""The kind of each logged KL."""

from __future__ import annotations

from math import inf

import pytest

from sentinel.signals.kl import KlKind, get_kl_kind, infer_kl_kind

MEAN, SUM = "token_mean", "sequence_sum"


def trl(algorithm, version="1.16.0", **more):
    return {"framework": "trl", "framework_version": version, "algorithm": algorithm, **more}


VERL, OPENRLHF, SB3 = ({"framework": name} for name in ("verl", "openrlhf", "stable-baselines3"))

KINDS = [
    ("kl", trl("GRPOConfig"), KlKind("ref", "k3xratio", MEAN, False)),
    ("kl", trl("grpo", "1.10.0"), KlKind("ref", "k3xratio", MEAN, False)),
    ("kl", trl("grpo", "1.5.1"), KlKind("ref", "k3", MEAN, False)),
    ("kl", trl("grpo", "0.16.1"), KlKind("ref", "k3", MEAN, False)),
    ("kl", trl("RLOOTrainer"), KlKind("ref", "k1", MEAN)),
    ("kl", trl("KTOConfig"), KlKind("ref", "k1", SUM, False)),
    ("kl", trl("AsyncGRPOConfig"), KlKind("mismatch", "k3", MEAN, False)),
    ("kl", {"framework": "trl"}, KlKind("ref", "", MEAN)),
    ("objective/kl", trl("ppo", "0.16.1"), KlKind("ref", "k1", SUM)),
    ("objective/kl", trl("ppo", "1.0", kl_estimator="k3"), KlKind("ref", "k3", SUM, False)),
    ("objective/kl", trl("ppo", "0.9.6", kl_penalty="abs"), KlKind("ref", "abs", SUM, False)),
    ("policy/approxkl_avg", trl("rloo", "0.12"), KlKind("old", "k2", SUM, False)),
    ("policy/approxkl_avg", trl("ppo", "1.0"), KlKind("old", "k2", MEAN, False)),
    ("sampling/sampling_logp_difference/mean", trl("grpo"), KlKind("mismatch", "abs", MEAN, False)),
    ("actor/kl_loss", VERL, KlKind("ref", "k3", MEAN, False, 10.0)),
    ("actor/kl_loss", {**VERL, "kl_loss_type": "kl"}, KlKind("ref", "k1", MEAN)),
    (
        "actor/kl_loss",
        {**VERL, "loss_agg_mode": "seq-mean-token-sum"},
        KlKind("ref", "k3", SUM, False, 10.0),
    ),
    (
        "actor/kl_loss",
        {**VERL, "loss_agg_mode": "seq-mean-token-sum-norm"},
        KlKind("ref", "k3", "", False, 10.0),
    ),
    ("actor/reward_kl_penalty", VERL, KlKind("ref", "k1", MEAN)),
    (
        "actor/reward_kl_penalty",
        {**VERL, "kl_penalty": "low_var_kl"},
        KlKind("ref", "k3", MEAN, False, 10.0),
    ),
    ("critic/kl", {}, KlKind("ref", "k1", MEAN)),
    ("actor/ppo_kl", VERL, KlKind("old", "k1", MEAN, True, 20.0)),
    ("rollout_corr/kl", VERL, KlKind("mismatch", "k1", MEAN)),
    ("rollout_corr/k3_kl", VERL, KlKind("mismatch", "k3", MEAN, False)),
    ("kl", OPENRLHF, KlKind("ref", "k1", MEAN, True, 10.0)),
    ("kl", {**OPENRLHF, "kl_estimator": "k3"}, KlKind("ref", "k3", MEAN, False, 10.0)),
    ("ppo_kl", OPENRLHF, KlKind("old", "k1", MEAN)),
    ("vllm_kl", OPENRLHF, KlKind("mismatch", "k1", MEAN)),
    ("train/approx_kl", SB3, KlKind("old", "k3", MEAN, False)),
    ("losses/approx_kl", {}, KlKind("old", "k3", MEAN, False)),
    ("kl", {}, KlKind("ref")),
    ("kl_ref", {"kl_estimator": "k2", "kl_reduction": SUM}, KlKind("ref", "k2", SUM, False)),
]


@pytest.mark.parametrize(("key", "metadata", "kind"), KINDS)
def test_the_kind_follows_from_key_and_metadata(key, metadata, kind):
    assert infer_kl_kind(key, metadata) == kind


@pytest.mark.parametrize(("key", "metadata", "kind"), KINDS)
def test_a_kind_is_the_same_after_serialization(key, metadata, kind):
    assert KlKind.deserialize(kind.serialize()) == kind


@pytest.mark.parametrize(
    "text", ["", "objective/kl", "ref k1 mean", "ref k1 x signed cap=ten", "a b"]
)
def test_other_text_is_not_deserialized(text):
    assert KlKind.deserialize(text) is None


def test_other_keys_have_no_kind():
    assert infer_kl_kind("reward", trl("grpo")) is None
    assert infer_kl_kind("actor/kl_coef", VERL) is None


def test_only_known_properties_are_described():
    assert KlKind("ref").describe() == ""
    assert not KlKind("ref").is_known
    assert KlKind("ref").unit == "nats"
    assert KlKind("ref", "k1", SUM).unit == "nats per sequence"
    assert KlKind("ref", "k3", MEAN, False, 10.0).unit == "nats per token"


def test_without_attributes_the_kind_follows_from_the_signal_name():
    assert get_kl_kind({}, "kl_ref") == KlKind("ref")
    assert get_kl_kind({"kl_ref": "objective/kl"}, "kl_ref").is_summed
    assert get_kl_kind({"kl_ref": "kl", "kl_ref.kind": "ref k1 sequence_sum unsigned cap=inf"},
                   "kl_ref") == KlKind("ref", "k1", SUM, False, inf)  # fmt: skip
    assert get_kl_kind({"kl_mismatch": "unknown_key"}, "kl_mismatch") == KlKind("mismatch")
