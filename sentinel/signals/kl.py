"""Identifies which of the many quantities called KL a logged key is.

Trainers log the divergence of three pairs of policies, by several estimators, as a mean over tokens
or a sum over a sequence. A threshold for one of them does not apply to another. With d the
difference of two log-probabilities of a sampled token, k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
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
"""Run metadata that the kind depends on."""

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
    """The kind of a KL value.

    `pair` is what the policy is compared with: `ref` (its frozen reference), `old` (itself when it
    sampled) or `mismatch` (sampling engine and trainer). `estimator` is k1, k2, k3, k3xratio, abs
    or full, `reduction` token_mean or sequence_sum; either is empty if unknown. `signed` values may
    be negative; `cap` is the value that the framework clamps to, in nats.
    """

    pair: str
    estimator: str = ""
    reduction: str = ""
    signed: bool = True
    cap: float = inf

    @property
    def is_summed(self) -> bool:
        """Whether it is a sum over the tokens of a sequence, which grows with its length."""
        return self.reduction == SEQUENCE_SUM

    @property
    def is_known(self) -> bool:
        """Whether more than the pair is known."""
        return bool(self.estimator or self.reduction)

    @property
    def unit(self) -> str:
        """The unit in words, as far as it is known."""
        per = {TOKEN_MEAN: " per token", SEQUENCE_SUM: " per sequence"}.get(self.reduction, "")
        return f"nats{per}"

    def describe(self) -> str:
        """What is known, as text for people; empty if nothing is.

        >>> KlKind("ref", "k3", "token_mean", False, 10.0).describe()
        'k3, mean over tokens, clamped at 10 nats'
        """
        reduction = {TOKEN_MEAN: "mean over tokens", SEQUENCE_SUM: "sum over a sequence"}
        clamp = f"clamped at {self.cap:g} nats" if self.cap < inf else ""
        parts = (self.estimator, reduction.get(self.reduction, ""), clamp)
        return ", ".join(part for part in parts if part)

    def serialize(self) -> str:
        """One line of five fields for `deserialize`; `?` stands for unknown."""
        sign = "signed" if self.signed else "unsigned"
        return (
            f"{self.pair} {self.estimator or '?'} {self.reduction or '?'} {sign} cap={self.cap:g}"
        )

    @staticmethod
    def deserialize(text: str) -> KlKind | None:
        """The kind that `serialize` wrote; None if the text is anything else.

        >>> kind = KlKind("ref", "k3", "token_mean", False, 10.0)
        >>> text = kind.serialize()
        >>> text, KlKind.deserialize(text) == kind, KlKind.deserialize("objective/kl")
        ('ref k3 token_mean unsigned cap=10', True, None)
        """
        match = _KIND_PATTERN.fullmatch(text)
        if not match:
            return None
        pair, estimator, reduction = (part.replace("?", "") for part in match.groups()[:3])
        return KlKind(pair, estimator, reduction, match[4] == "signed", float(match[5]))


@cache
def kl_kind_attribute(signal: str) -> str:
    """Name of the record attribute that holds the kind of that signal."""
    return f"{signal}.kind"


def infer_kl_kind(
    key: str, run_metadata: Mapping[str, str] = MappingProxyType({})
) -> KlKind | None:
    """The kind of a key logged by a run with that metadata; None if the key is no known KL.

    Metadata used: framework, framework_version, algorithm; if the user gives them, kl_estimator and
    kl_reduction; for verl also kl_loss_type, kl_penalty and loss_agg_mode.

    >>> infer_kl_kind("kl", {"framework": "trl", "algorithm": "kto"}).serialize()
    'ref k1 sequence_sum unsigned cap=inf'
    """
    values = tuple(run_metadata.get(name, "") for name in KL_METADATA_KEYS)
    return _infer_kl_kind(normalize_key(key), values)


@lru_cache(maxsize=1024)
def _infer_kl_kind(key: str, metadata_values: tuple[str, ...]) -> KlKind | None:
    run_metadata = dict(zip(KL_METADATA_KEYS, metadata_values, strict=True))
    key_map = select_key_map(run_metadata)
    for usage in KL_USAGES:
        if usage.matches(key, key_map):
            return _apply_settings(usage, run_metadata)
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


def get_kl_kind(attributes: Mapping[str, str], signal: str) -> KlKind:
    """The kind of a signal of a record with these attributes, as far as it is known."""
    if not attributes:
        return _parse_or_infer_kl_kind("", signal, signal)
    return _parse_or_infer_kl_kind(
        attributes.get(kl_kind_attribute(signal), ""), attributes.get(signal, signal), signal
    )


# Called for every record; within a run the result is always the same.
@lru_cache(maxsize=1024)
def _parse_or_infer_kl_kind(serialized: str, key: str, signal: str) -> KlKind:
    return (
        KlKind.deserialize(serialized) or infer_kl_kind(key) or KlKind(signal.removeprefix("kl_"))
    )


@dataclass(frozen=True, slots=True)
class KlUsage:
    """One use of some keys: by which framework and algorithms, from which version; empty is any.

    `estimator_keys` and `reduction_keys` name the metadata that change the estimator and the
    reduction, in order of precedence. `k3_cap` is what only k3 is clamped to, in nats.
    """

    keys: str
    kind: KlKind
    framework: str = ""
    algorithms: str = ""
    min_version: tuple[int, ...] = ()
    estimator_keys: tuple[str, ...] = ()
    reduction_keys: tuple[str, ...] = ("kl_reduction",)
    k3_cap: float = inf

    def matches(self, key: str, key_map: KeyMap) -> bool:
        """Whether a run with that key map uses the key in this way."""
        return (
            key in self.keys.split()
            and self.framework in ("", key_map.framework)
            and (not self.algorithms or key_map.algorithm in self.algorithms.split())
            and self.min_version <= key_map.version
        )


def _apply_settings(usage: KlUsage, run_metadata: Mapping[str, str]) -> KlKind:
    """The kind with the estimator and the reduction that the run is configured with."""
    kind = usage.kind
    estimator = _first_set(usage.estimator_keys, run_metadata).lower().rstrip("+")
    if estimator:
        estimator = _ESTIMATORS.get(estimator, estimator)
        kind = replace(kind, estimator=estimator, signed=estimator in _SIGNED_ESTIMATORS)
    reduction = _first_set(usage.reduction_keys, run_metadata)
    if reduction:
        reduction = _REDUCTIONS.get(reduction, reduction)
        known = reduction in (TOKEN_MEAN, SEQUENCE_SUM)
        kind = replace(kind, reduction=reduction if known else "")
    return replace(kind, cap=min(kind.cap, usage.k3_cap)) if kind.estimator == "k3" else kind


def _first_set(names: Iterable[str], run_metadata: Mapping[str, str]) -> str:
    return next((run_metadata[name] for name in names if run_metadata[name]), "")


_ESTIMATOR = ("kl_estimator",)
KL_USAGES = (
    KlUsage("kl", KlKind("mismatch", "k3", TOKEN_MEAN, False), "trl", "asyncgrpo"),
    # The mean of sums clamped at 0, over completions of other prompts.
    KlUsage("kl", KlKind("ref", "k1", SEQUENCE_SUM, False), "trl", "kto bco"),
    # The distance of the policy from the reference when it sampled.
    KlUsage("kl", KlKind("ref", "k1", TOKEN_MEAN), "trl", "rloo", estimator_keys=_ESTIMATOR),
    KlUsage(
        "kl",
        KlKind("ref", "k3xratio", TOKEN_MEAN, False),
        "trl",
        "grpo",
        (1, 10),
        estimator_keys=_ESTIMATOR,
    ),
    KlUsage("kl", KlKind("ref", "k3", TOKEN_MEAN, False), "trl", "grpo", estimator_keys=_ESTIMATOR),
    KlUsage("kl", KlKind("ref", "", TOKEN_MEAN), "trl", estimator_keys=_ESTIMATOR),
    KlUsage(
        "objective/kl",
        KlKind("ref", "k1", SEQUENCE_SUM),
        estimator_keys=("kl_estimator", "kl_penalty"),
    ),
    KlUsage("policy/approxkl_avg", KlKind("old", "k2", SEQUENCE_SUM, False), "trl", "rloo"),
    KlUsage("policy/approxkl_avg", KlKind("old", "k2", TOKEN_MEAN, False), "trl", "ppo"),
    KlUsage("policy/approxkl_avg ppo/policy/approxkl", KlKind("old", "k2", "", False)),
    KlUsage(
        "sampling/sampling_logp_difference/mean train_rollout_logprob_abs_diff",
        KlKind("mismatch", "abs", TOKEN_MEAN, False),
    ),
    KlUsage(
        "actor/kl_loss",
        KlKind("ref", "k3", TOKEN_MEAN, False),
        estimator_keys=("kl_loss_type", "kl_estimator"),
        reduction_keys=("loss_agg_mode", "kl_reduction"),
        k3_cap=10.0,
    ),
    KlUsage(
        "actor/reward_kl_penalty critic/kl",
        KlKind("ref", "k1", TOKEN_MEAN),
        estimator_keys=("kl_penalty", "kl_estimator"),
        k3_cap=10.0,
    ),
    KlUsage("actor/ppo_kl", KlKind("old", "k1", TOKEN_MEAN, cap=20.0)),
    KlUsage("rollout_corr/kl mismatch/mismatch_kl", KlKind("mismatch", "k1", TOKEN_MEAN)),
    KlUsage(
        "rollout_corr/k3_kl mismatch/mismatch_k3_kl", KlKind("mismatch", "k3", TOKEN_MEAN, False)
    ),
    KlUsage("kl", KlKind("ref", "k1", TOKEN_MEAN, cap=10.0), "openrlhf", estimator_keys=_ESTIMATOR),
    KlUsage("ppo_kl", KlKind("old", "k1", TOKEN_MEAN), "openrlhf"),
    KlUsage("vllm_kl", KlKind("mismatch", "k1", TOKEN_MEAN)),
    KlUsage("approx_kl", KlKind("old", "k3", TOKEN_MEAN, False), "stable-baselines3"),
    KlUsage("losses/approx_kl", KlKind("old", "k3", TOKEN_MEAN, False)),
    KlUsage("approx_kl approxkl ppo_kl kl_old", KlKind("old"), estimator_keys=_ESTIMATOR),
    KlUsage("kl_mismatch", KlKind("mismatch"), estimator_keys=_ESTIMATOR),
    KlUsage("kl kl_ref mean_kl kl_loss kl_divergence", KlKind("ref"), estimator_keys=_ESTIMATOR),
)
"""The first match counts; the last entries give no more than the pair."""
