"""KL kind: which of the many quantities called KL a logged key is.

Trainers log the divergence of three pairs of policies, by several estimators, as a mean over tokens
or a sum over a sequence. A threshold for one of them says nothing of another. With d the difference
of two log-probabilities of a sampled token, k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from types import MappingProxyType

from sentinel.signals.catalogue import normalize_key
from sentinel.signals.key_map import FRAMEWORK_METADATA_KEYS, KeyMap, select_key_map

KL_SIGNALS = ("kl_ref", "kl_old", "kl_mismatch")
"""Signals that have a kind."""

TOKEN_MEAN, SEQUENCE_SUM = "token_mean", "sequence_sum"

KL_METADATA_KEYS = (
    *FRAMEWORK_METADATA_KEYS,
    "kl_estimator",
    "kl_loss_type",
    "kl_penalty",
    "kl_reduction",
    "loss_agg_mode",
)
"""What a run says of itself that decides the kind."""

_ESTIMATORS = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
_REDUCTIONS = {
    "token-mean": TOKEN_MEAN,
    "seq-mean-token-mean": TOKEN_MEAN,
    "seq-mean-token-sum": SEQUENCE_SUM,
}
_KIND_PATTERN = re.compile(
    r"(\w+) (\w+|\?) (\w+|\?) (signed|unsigned) cap=(inf|\d+(?:\.\d+)?(?:e\+\d+)?)"
)
_SIGNED_ESTIMATORS = frozenset({"", "k1"})


@dataclass(frozen=True, slots=True)
class KlKind:
    """What a KL value is.

    `pair` is what it compares the policy with: `ref` (its frozen reference), `old` (itself when it
    sampled) or `mismatch` (sampling engine and trainer). `estimator` is k1, k2, k3, k3xratio, abs
    or full, `reduction` token_mean or sequence_sum; either is empty where it cannot be known.
    `signed` says that it may well be negative; `cap` is what its framework clamps it to, in nats.
    """

    pair: str
    estimator: str = ""
    reduction: str = ""
    signed: bool = True
    cap: float = inf

    @property
    def is_summed(self) -> bool:
        """Whether it is a sum over the tokens of a sequence, and so grows with its length."""
        return self.reduction == SEQUENCE_SUM

    @property
    def is_known(self) -> bool:
        """Whether more is known of it than what it compares."""
        return bool(self.estimator or self.reduction)

    @property
    def unit(self) -> str:
        """The unit in words, as far as it is known."""
        per = {TOKEN_MEAN: " per token", SEQUENCE_SUM: " per sequence"}.get(self.reduction, "")
        return f"nats{per}"

    def describe(self) -> str:
        """What is known of it, for people; empty where that is nothing.

        >>> KlKind("ref", "k3", "token_mean", False, 10.0).in_words()
        'k3, mean over tokens, clamped at 10 nats'
        """
        reduction = {TOKEN_MEAN: "mean over tokens", SEQUENCE_SUM: "sum over a sequence"}
        clamp = f"clamped at {self.cap:g} nats" if self.cap < inf else ""
        parts = (self.estimator, reduction.get(self.reduction, ""), clamp)
        return ", ".join(part for part in parts if part)

    def serialize(self) -> str:
        """One line of five words, which `read` understands; `?` stands for what is not known."""
        sign = "signed" if self.signed else "unsigned"
        return (
            f"{self.pair} {self.estimator or '?'} {self.reduction or '?'} {sign} cap={self.cap:g}"
        )

    @staticmethod
    def deserialize(text: str) -> KlKind | None:
        """The kind that `told` wrote; None if it did not write this.

        >>> kind = KlKind("ref", "k3", "token_mean", False, 10.0)
        >>> kind.told(), KlKind.read(kind.told()) == kind, KlKind.read("objective/kl")
        ('ref k3 token_mean unsigned cap=10', True, None)
        """
        words = _KIND_PATTERN.fullmatch(text)
        if not words:
            return None
        pair, estimator, reduction = (word.replace("?", "") for word in words.groups()[:3])
        return KlKind(pair, estimator, reduction, words[4] == "signed", float(words[5]))


def kl_kind_attribute(signal: str) -> str:
    """Name of the fact of a record that tells the kind of that signal."""
    return f"{signal}.kind"


def infer_kl_kind(key: str, facts: Mapping[str, str] = MappingProxyType({})) -> KlKind | None:
    """What a key logged by a run with these facts is; None if it is no KL that we know.

    Facts that matter: framework, framework_version, algorithm, and where the user knows them
    kl_estimator and kl_reduction; of verl also kl_loss_type, kl_penalty and loss_agg_mode.

    >>> kl_kind("kl", {"framework": "trl", "algorithm": "kto"}).told()
    'ref k1 sequence_sum unsigned cap=inf'
    """
    return _infer_kl_kind(normalize_key(key), tuple(facts.get(name, "") for name in KL_METADATA_KEYS))


@lru_cache(maxsize=1024)
def _infer_kl_kind(key: str, fact_values: tuple[str, ...]) -> KlKind | None:
    facts = dict(zip(KL_METADATA_KEYS, fact_values, strict=True))
    spoken = select_key_map(facts)
    for use in KL_USAGES:
        if use.matches(key, spoken):
            return _apply_settings(use, facts)
    return None


def kl_kind_attributes(
    key_by_signal: Mapping[str, str], run_metadata: Mapping[str, str]
) -> dict[str, str]:
    """Attributes of a record with the kind of each KL signal, from the key it is logged under."""
    kinds = {name: infer_kl_kind(key, run_metadata) for name, key in key_by_signal.items()}
    return {
        kl_kind_attribute(name): kind.serialize()
        for name, kind in kinds.items()
        if kind and kind.is_known
    }


def get_kl_kind(facts: Mapping[str, str], signal: str) -> KlKind:
    """The kind of a signal of a record that has these facts, as far as they tell it."""
    return _parse_or_infer_kl_kind(
        facts.get(kl_kind_attribute(signal), ""), facts.get(signal, signal), signal
    )


# Asked of every record, and of a run it is always the same.
@lru_cache(maxsize=1024)
def _parse_or_infer_kl_kind(serialized: str, key: str, signal: str) -> KlKind:
    return (
        KlKind.deserialize(serialized) or infer_kl_kind(key) or KlKind(signal.removeprefix("kl_"))
    )


@dataclass(frozen=True, slots=True)
class KlUsage:
    """One use of some keys: by whom, and since which version; empty is whoever, and whenever.

    `set_by` are the facts that change the estimator, best first, `summed_by` those that change the
    reduction. `k3_cap` is what k3 alone is clamped to, in nats.
    """

    keys: str
    kind: KlKind
    framework: str = ""
    algorithms: str = ""
    min_version: tuple[int, ...] = ()
    estimator_metadata: tuple[str, ...] = ()
    reduction_metadata: tuple[str, ...] = ("kl_reduction",)
    k3_cap: float = inf

    def matches(self, key: str, key_map: KeyMap) -> bool:
        """Whether this is how that dialect uses the key."""
        return (
            key in self.keys.split()
            and self.framework in ("", key_map.framework)
            and (not self.algorithms or key_map.algorithm in self.algorithms.split())
            and self.min_version <= key_map.version
        )


def _apply_settings(use: KlUsage, facts: Mapping[str, str]) -> KlKind:
    """The kind with what the run says that it was set to."""
    kind = use.kind
    estimator = (
        next((facts[name] for name in use.estimator_metadata if facts[name]), "")
        .lower()
        .rstrip("+")
    )
    if estimator:
        estimator = _ESTIMATORS.get(estimator, estimator)
        kind = replace(kind, estimator=estimator, signed=estimator in _SIGNED_ESTIMATORS)
    reduction = next((facts[name] for name in use.reduction_metadata if facts[name]), "")
    if reduction:
        reduction = _REDUCTIONS.get(reduction, reduction)
        known = reduction in (TOKEN_MEAN, SEQUENCE_SUM)
        kind = replace(kind, reduction=reduction if known else "")
    return replace(kind, cap=min(kind.cap, use.k3_cap)) if kind.estimator == "k3" else kind


_ESTIMATOR_FACT = ("kl_estimator",)
KL_USAGES = (
    KlUsage("kl", KlKind("mismatch", "k3", TOKEN_MEAN, False), "trl", "asyncgrpo"),
    # The mean of sums that are clamped at 0, over answers to other prompts.
    KlUsage("kl", KlKind("ref", "k1", SEQUENCE_SUM, False), "trl", "kto bco"),
    # How far the policy was from the reference when it sampled.
    KlUsage(
        "kl", KlKind("ref", "k1", TOKEN_MEAN), "trl", "rloo", estimator_metadata=_ESTIMATOR_FACT
    ),
    KlUsage(
        "kl",
        KlKind("ref", "k3xratio", TOKEN_MEAN, False),
        "trl",
        "grpo",
        (1, 10),
        estimator_metadata=_ESTIMATOR_FACT,
    ),
    KlUsage(
        "kl",
        KlKind("ref", "k3", TOKEN_MEAN, False),
        "trl",
        "grpo",
        estimator_metadata=_ESTIMATOR_FACT,
    ),
    KlUsage("kl", KlKind("ref", "", TOKEN_MEAN), "trl", estimator_metadata=_ESTIMATOR_FACT),
    KlUsage(
        "objective/kl",
        KlKind("ref", "k1", SEQUENCE_SUM),
        estimator_metadata=("kl_estimator", "kl_penalty"),
    ),
    KlUsage("policy/approxkl_avg", KlKind("old", "k2", SEQUENCE_SUM, False), "trl", "rloo"),
    KlUsage("policy/approxkl_avg", KlKind("old", "k2", TOKEN_MEAN, False), "trl", "ppo"),
    KlUsage("policy/approxkl_avg ppo/policy/approxkl", KlKind("old", "k2", "", False)),
    KlUsage("sampling/sampling_logp_difference/mean", KlKind("mismatch", "abs", TOKEN_MEAN, False)),
    KlUsage(
        "actor/kl_loss",
        KlKind("ref", "k3", TOKEN_MEAN, False),
        estimator_metadata=("kl_loss_type", "kl_estimator"),
        reduction_metadata=("loss_agg_mode", "kl_reduction"),
        k3_cap=10.0,
    ),
    KlUsage(
        "actor/reward_kl_penalty critic/kl",
        KlKind("ref", "k1", TOKEN_MEAN),
        estimator_metadata=("kl_penalty", "kl_estimator"),
        k3_cap=10.0,
    ),
    KlUsage("actor/ppo_kl", KlKind("old", "k1", TOKEN_MEAN, cap=20.0)),
    KlUsage("rollout_corr/kl mismatch/mismatch_kl", KlKind("mismatch", "k1", TOKEN_MEAN)),
    KlUsage(
        "rollout_corr/k3_kl mismatch/mismatch_k3_kl", KlKind("mismatch", "k3", TOKEN_MEAN, False)
    ),
    KlUsage(
        "kl",
        KlKind("ref", "k1", TOKEN_MEAN, cap=10.0),
        "openrlhf",
        estimator_metadata=_ESTIMATOR_FACT,
    ),
    KlUsage("ppo_kl", KlKind("old", "k1", TOKEN_MEAN), "openrlhf"),
    KlUsage("vllm_kl", KlKind("mismatch", "k1", TOKEN_MEAN)),
    KlUsage("approx_kl", KlKind("old", "k3", TOKEN_MEAN, False), "stable-baselines3"),
    KlUsage("losses/approx_kl", KlKind("old", "k3", TOKEN_MEAN, False)),
    KlUsage("approx_kl approxkl ppo_kl kl_old", KlKind("old"), estimator_metadata=_ESTIMATOR_FACT),
    KlUsage("kl_mismatch", KlKind("mismatch"), estimator_metadata=_ESTIMATOR_FACT),
    KlUsage(
        "kl kl_ref mean_kl kl_loss kl_divergence", KlKind("ref"), estimator_metadata=_ESTIMATOR_FACT
    ),
)
"""First come first; the last ones tell no more than the pair."""
