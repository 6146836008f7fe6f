"""What a logged key means where that depends on the framework, its version or the algorithm.

The same `kl` is the distance to the reference in one trainer and to the sampling engine in another;
a gradient norm of 0 may stand for a missing value. Keys that are not listed here mean the same
everywhere and are in the catalogue.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType

from sentinel.signals.catalogue import SIGNALS, WEIGHT_KEY, canonical_name, eval_name, normalize_key

FRAMEWORK_METADATA_KEYS = ("framework", "framework_version", "algorithm")
"""Run metadata that selects the key map."""

_GENERIC_FRAMEWORKS = frozenset({"", "torch", "accelerate", "deepspeed", "transformers"})
"""Frameworks that others are built on, or that log no keys of their own."""

_TRL_ALGORITHMS = frozenset({
    "asyncgrpo", "bco", "cpo", "dpo", "gkd", "grpo", "kto", "nashmd", "onlinedpo", "orpo", "ppo",
    "prm", "reward", "rloo", "sft", "xpo",
})  # fmt: skip
_FRAMEWORK_ALIASES = {"sb3": "stable-baselines3", "stable_baselines3": "stable-baselines3"}


@dataclass(frozen=True, slots=True)
class KeyMapping:
    """The meaning of a key: a signal's name, and the factor that converts values to its unit.

    `zero_is_missing` marks keys that are logged as 0 where there is no value.
    """

    name: str
    factor: float = 1.0
    zero_is_missing: bool = False

    def convert(self, value: float) -> float | None:
        """The value in the signal's unit; None where it stands for a missing value."""
        return None if self.zero_is_missing and value == 0.0 else value * self.factor


@dataclass(frozen=True, slots=True)
class KeyMap:
    """How one framework names its signals; `overrides` are by normalized key.

    Each part is empty if it is unknown. `version` holds the leading numbers. `assigned` are keys
    of this run with their meaning; no other key then stands for the same signal.
    """

    framework: str = ""
    version: tuple[int, ...] = ()
    algorithm: str = ""
    overrides: Mapping[str, KeyMapping] = field(
        default_factory=lambda: MappingProxyType({}), compare=False
    )
    assigned: tuple[tuple[str, KeyMapping], ...] = ()

    def lookup(self, key: str) -> KeyMapping:
        """What the key means."""
        own = next((mapping for name, mapping in self.assigned if name == key), None)
        if own is not None:
            return own
        mapping = self.overrides.get(normalize_key(key)) or KeyMapping(canonical_name(key))
        is_taken = any(mapping.name == taken.name for _, taken in self.assigned)
        return displaced_mapping(key) if is_taken else mapping


@dataclass(frozen=True, slots=True)
class ResolvedKeys:
    """What the keys of a record mean; `names` and `mappings` are in the order of the keys.

    `is_direct` holds if each key is a signal of its own in the signal's unit, and none is the
    weight: the values can be used as logged. `logged_as` holds the keys that differ from the name.
    """

    names: tuple[str, ...]
    mappings: tuple[KeyMapping, ...]
    is_direct: bool
    logged_as: Mapping[str, str]


# A rank logs the same keys at each step, and so do the other ranks.
@lru_cache(maxsize=256)
def resolve_keys(keys: tuple[str, ...], is_evaluation: bool, key_map: KeyMap) -> ResolvedKeys:
    """What these keys of a training step, or of an evaluation, mean."""
    mappings = tuple(map(key_map.lookup, keys))
    names = tuple(eval_name(m.name) if is_evaluation else m.name for m in mappings)
    is_direct = (
        WEIGHT_KEY not in keys
        and len({*names}) == len(names)
        and all(m.factor == 1.0 and not m.zero_is_missing for m in mappings)
    )
    logged_as = {name: key for name, key in zip(names, keys, strict=True) if name != key}
    return ResolvedKeys(names, mappings, is_direct, logged_as)


UNAMBIGUOUS_KEYS = {
    "actor_grad_norm": KeyMapping("grad_norm", zero_is_missing=True),
    "critic_grad_norm": KeyMapping("critic_grad_norm", zero_is_missing=True),
    "lr(1e-3)": KeyMapping("learning_rate", 1e-3),
    "total_tokens(b)": KeyMapping("tokens_seen", 1e9),
    "samples/elapsed_time_ms_step": KeyMapping("step_time", 1e-3),
    # slime: the mean log-probability of the sampled tokens, whose negative estimates the entropy.
    "rollout/log_probs": KeyMapping("entropy", -1.0),
}
"""Keys that only one framework uses."""

FRAMEWORK_KEYS: Mapping[tuple[str, str], Mapping[str, KeyMapping]] = {
    ("trl", ""): {"aux_loss": KeyMapping("load_balancing_loss")},
    ("trl", "asyncgrpo"): {
        "kl": KeyMapping("kl_mismatch"),
        "ratio": KeyMapping("importance_ratio_mean"),
    },
    ("trl", "reward"): {
        "accuracy": KeyMapping("preference_accuracy"),
        "margin": KeyMapping("reward_margin"),
        # Scores of the model in training, which may shift freely: they are not a reward.
        "mean_reward": KeyMapping("score_mean"),
    },
    ("trl", "ppo"): {"eps": KeyMapping("samples_per_second")},
    ("trl", "rloo"): {"eps": KeyMapping("samples_per_second")},
    ("openrlhf", ""): {
        "grad_norm": KeyMapping("grad_norm", zero_is_missing=True),
        "return": KeyMapping("reward_total"),
    },
    ("openrlhf", "dpo"): {"acc": KeyMapping("preference_accuracy")},
    # Losses are minimised, so the entropy is logged with the opposite sign. So are the values of
    # the actions, which the actors of SAC, TD3 and DDPG maximise; no other algorithm logs the key.
    ("stable-baselines3", ""): {
        "actor_loss": KeyMapping("q_value", -1.0),
        "entropy_loss": KeyMapping("entropy", -1.0),
        "std": KeyMapping("action_std"),
    },
    ("nanogpt", ""): {"mfu": KeyMapping("mfu", 0.01)},
    ("nemo-rl", ""): {"kl_penalty": KeyMapping("kl_ref")},
    ("prime-rl", ""): {"error/mean": KeyMapping("rollout_error_fraction")},
}
"""Keys by framework, and by algorithm where the meaning is that algorithm's own; in lower case."""


def select_key_map(run_metadata: Mapping[str, str]) -> KeyMap:
    """The key map for a run with that metadata; the generic one if the framework is unknown."""
    return _build_key_map(*(run_metadata.get(name, "") for name in FRAMEWORK_METADATA_KEYS))


def displaced_mapping(key: str) -> KeyMapping:
    """The meaning of a key whose signal is another key's: only its own name."""
    return KeyMapping(f"other/{key}" if key in SIGNALS else key)


@lru_cache(maxsize=256)
def with_assigned(key_map: KeyMap, assigned: tuple[tuple[str, KeyMapping], ...]) -> KeyMap:
    """The key map of a run in which these keys have a meaning of their own."""
    return replace(key_map, assigned=assigned)


def detect_framework(keys: Collection[str]) -> dict[str, str]:
    """The `framework` and `algorithm` that log these keys, as run metadata; empty if unknown.

    >>> detect_framework(["actor/pg_loss", "critic/score/mean"]), detect_framework(["loss"])
    ({'framework': 'verl'}, {})
    """
    normalized = {normalize_key(key) for key in keys}
    for signature, framework, algorithm in _FRAMEWORK_SIGNATURES:
        if signature <= normalized:
            return {"framework": framework} | ({"algorithm": algorithm} if algorithm else {})
    return {"framework": "verl"} if any(key.startswith("actor/") for key in normalized) else {}


_FRAMEWORK_SIGNATURES: tuple[tuple[frozenset[str], str, str], ...] = tuple(
    (frozenset(keys.split()), framework, algorithm)
    for keys, framework, algorithm in (
        ("rollout/reward_mean", "openrlhf", "ppo"),
        ("actor_grad_norm response_length", "openrlhf", "ppo"),
        ("vllm_kl", "openrlhf", "ppo"),
        ("chosen_reward reject_reward", "openrlhf", "dpo"),
        ("gpt_loss loss_mean", "openrlhf", "sft"),
        # GRPO and RLOO have the same keys in current versions.
        ("completions/mean_length", "trl", ""),
        ("completion_length reward_std", "trl", "grpo"),
        ("objective/kl policy/approxkl_avg", "trl", "ppo"),
        ("objective/kl", "trl", ""),
        ("mean_reward accuracy margin", "trl", "reward"),
        ("rewards/chosen kl", "trl", "kto"),
        ("rewards/chosen log_odds_ratio", "trl", "orpo"),
        ("rewards/chosen rewards/margins", "trl", "dpo"),
        ("batch/solve_none error/mean", "prime-rl", ""),
        ("policy_gradient_loss entropy_loss", "stable-baselines3", ""),
        ("rollout/ep_rew_mean", "stable-baselines3", ""),
        ("time/fps", "stable-baselines3", ""),
        ("losses/policy_loss", "cleanrl", ""),
        ("losses/approx_kl", "cleanrl", ""),
        ("iter lr mfu", "nanogpt", ""),
        ("token_mult_prob_error", "nemo-rl", ""),
        ("samples/lr", "deepspeed", ""),
    )
)
"""Keys that together identify a framework and, if not empty, the algorithm; first match wins."""


@lru_cache(maxsize=256)
def _build_key_map(framework: str, version: str, algorithm: str) -> KeyMap:
    framework = _FRAMEWORK_ALIASES.get(framework.lower(), framework.lower())
    algorithm = re.sub(r"[^a-z0-9]", "", algorithm.lower())
    algorithm = algorithm.removesuffix("trainer").removesuffix("config")
    if framework in _GENERIC_FRAMEWORKS:
        framework, version = ("trl" if algorithm in _TRL_ALGORITHMS else ""), ""
    numbers = re.match(r"\d{1,9}(\.\d{1,9})*", version)
    return KeyMap(
        framework,
        tuple(map(int, numbers[0].split("."))) if numbers else (),
        algorithm,
        {
            **UNAMBIGUOUS_KEYS,
            **FRAMEWORK_KEYS.get((framework, ""), {}),
            **FRAMEWORK_KEYS.get((framework, algorithm), {}),
        },
    )
