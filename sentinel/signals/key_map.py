"""Dialect: what a logged key means where its framework, version or algorithm decides.

The same `kl` is the distance to the reference in one trainer and to the sampling engine in another;
a gradient norm of 0 may stand for "none". What is not listed here means the same everywhere, and is
in the catalogue.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from sentinel.signals.catalogue import canonical_name, normalize_key

FRAMEWORK_FACTS = ("framework", "framework_version", "algorithm")
"""What a run says of itself that decides its dialect."""

MAX_CACHED_KEYS = 8192
"""Keys of a dialect that are remembered; a trainer that invents more is heard, and slower."""

_GENERIC_FRAMEWORKS = frozenset({"", "torch", "accelerate", "deepspeed", "transformers"})
"""Frameworks on which others are built, or that log no keys of their own."""

_TRL_ALGORITHMS = frozenset({
    "asyncgrpo", "bco", "cpo", "dpo", "gkd", "grpo", "kto", "nashmd", "onlinedpo", "orpo", "ppo",
    "prm", "reward", "rloo", "sft", "xpo",
})  # fmt: skip
_FRAMEWORK_ALIASES = {"sb3": "stable-baselines3", "stable_baselines3": "stable-baselines3"}


@dataclass(frozen=True, slots=True)
class KeyMapping:
    """What a key means: the signal's name, and what its values are multiplied by to be in our unit.

    `zero_is_none` says that the writer puts 0 where it has no value.
    """

    name: str
    factor: float = 1.0
    zero_is_missing: bool = False

    def convert(self, value: float) -> float | None:
        """The value in our unit; None where it stands for none."""
        return None if self.zero_is_missing and value == 0.0 else value * self.factor


class KeyMappingCache(dict[str, KeyMapping]):
    """What each key means, found out when it is first asked for; `own` are a dialect's own."""

    def __init__(self, own: Mapping[str, KeyMapping] = MappingProxyType({})) -> None:
        super().__init__()
        self.overrides = own

    def __missing__(self, key: str) -> KeyMapping:
        word = self.overrides.get(normalize_key(key)) or KeyMapping(canonical_name(key))
        if len(self) < MAX_CACHED_KEYS:
            self[key] = word
        return word


@dataclass(frozen=True, slots=True)
class KeyMap:
    """How one framework speaks. All three may be empty; `version` is its leading numbers."""

    framework: str = ""
    version: tuple[int, ...] = ()
    algorithm: str = ""
    mappings: KeyMappingCache = field(default_factory=KeyMappingCache, compare=False)

    def lookup(self, key: str) -> KeyMapping:
        """What the key means in this dialect."""
        return self.mappings[key]


UNAMBIGUOUS_KEYS = {
    "actor_grad_norm": KeyMapping("grad_norm", zero_is_missing=True),
    "critic_grad_norm": KeyMapping("critic_grad_norm", zero_is_missing=True),
    "lr(1e-3)": KeyMapping("learning_rate", 1e-3),
    "total_tokens(b)": KeyMapping("tokens_seen", 1e9),
    "samples/elapsed_time_ms_step": KeyMapping("step_time", 1e-3),
}
"""Keys that one framework alone has."""

FRAMEWORK_KEYS: Mapping[tuple[str, str], Mapping[str, KeyMapping]] = {
    ("trl", "asyncgrpo"): {
        "kl": KeyMapping("kl_mismatch"),
        "ratio": KeyMapping("importance_ratio_mean"),
    },
    ("trl", "reward"): {
        "accuracy": KeyMapping("preference_accuracy"),
        "margin": KeyMapping("reward_margin"),
        # The model's own scores, which it is free to shift: nobody is rewarded by them.
        "mean_reward": KeyMapping("score_mean"),
    },
    ("trl", "ppo"): {"eps": KeyMapping("samples_per_second")},
    ("trl", "rloo"): {"eps": KeyMapping("samples_per_second")},
    ("openrlhf", ""): {
        "grad_norm": KeyMapping("grad_norm", zero_is_missing=True),
        "return": KeyMapping("reward_total"),
    },
    ("openrlhf", "dpo"): {"acc": KeyMapping("preference_accuracy")},
    # Its losses are minimised, so the entropy is logged upside down.
    ("stable-baselines3", ""): {"entropy_loss": KeyMapping("entropy", -1.0)},
    ("nanogpt", ""): {"mfu": KeyMapping("mfu", 0.01)},
}
"""Words by framework, and by algorithm where only that one means it so; in lower case."""


def select_key_map(facts: Mapping[str, str]) -> KeyMap:
    """The dialect of a run that says this of itself; the plain one where that tells nothing."""
    return _build_key_map(*(facts.get(name, "") for name in FRAMEWORK_FACTS))


def detect_framework(keys: Collection[str]) -> dict[str, str]:
    """Facts `framework` and `algorithm` that the keys of a log give away; empty if they do not.

    >>> detect(["actor/pg_loss", "critic/score/mean"]), detect(["loss"])
    ({'framework': 'verl'}, {})
    """
    known = {normalize_key(key) for key in keys}
    for telling, framework, algorithm in _FRAMEWORK_SIGNATURES:
        if telling <= known:
            return {"framework": framework} | ({"algorithm": algorithm} if algorithm else {})
    return {"framework": "verl"} if any(key.startswith("actor/") for key in known) else {}


_FRAMEWORK_SIGNATURES: tuple[tuple[frozenset[str], str, str], ...] = tuple(
    (frozenset(telling.split()), framework, algorithm)
    for telling, framework, algorithm in (
        ("rollout/reward_mean", "openrlhf", "ppo"),
        ("actor_grad_norm", "openrlhf", "ppo"),
        ("vllm_kl", "openrlhf", "ppo"),
        ("chosen_reward reject_reward", "openrlhf", "dpo"),
        ("gpt_loss loss_mean", "openrlhf", "sft"),
        # GRPO and RLOO of today have the same keys.
        ("completions/mean_length", "trl", ""),
        ("completion_length reward_std", "trl", "grpo"),
        ("objective/kl policy/approxkl_avg", "trl", "ppo"),
        ("objective/kl", "trl", ""),
        ("mean_reward accuracy margin", "trl", "reward"),
        ("rewards/chosen kl", "trl", "kto"),
        ("rewards/chosen rewards/margins", "trl", "dpo"),
        ("policy_gradient_loss entropy_loss", "stable-baselines3", ""),
        ("rollout/ep_rew_mean", "stable-baselines3", ""),
        ("time/fps", "stable-baselines3", ""),
        ("losses/policy_loss", "cleanrl", ""),
        ("losses/approx_kl", "cleanrl", ""),
        ("iter lr mfu", "nanogpt", ""),
        ("samples/lr", "deepspeed", ""),
    )
)
"""Keys that together tell a framework, and the algorithm where they tell it; first come first."""


@lru_cache(maxsize=256)
def _build_key_map(framework: str, version: str, algorithm: str) -> KeyMap:
    speaker = _FRAMEWORK_ALIASES.get(framework.lower(), framework.lower())
    method = re.sub(r"[^a-z0-9]", "", algorithm.lower())
    method = method.removesuffix("trainer").removesuffix("config")
    if speaker in _GENERIC_FRAMEWORKS:
        speaker, version = ("trl" if method in _TRL_ALGORITHMS else ""), ""
    everybody, own = (
        FRAMEWORK_KEYS.get((speaker, ""), {}),
        FRAMEWORK_KEYS.get((speaker, method), {}),
    )
    numbers = re.match(r"\d{1,9}(\.\d{1,9})*", version)
    return KeyMap(
        speaker,
        tuple(map(int, numbers[0].split("."))) if numbers else (),
        method,
        KeyMappingCache({**UNAMBIGUOUS_KEYS, **everybody, **own}),
    )
