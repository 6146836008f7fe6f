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

from sentinel.signals.catalogue import canonical, plain

FACTS = ("framework", "framework_version", "algorithm")
"""What a run says of itself that decides its dialect."""

MOST_WORDS = 8192
"""Keys of a dialect that are remembered; a trainer that invents more is heard, and slower."""

_NOT_TELLING = frozenset({"", "torch", "accelerate", "deepspeed", "transformers"})
"""Frameworks on which others are built, or that log no keys of their own."""

_OF_TRL = frozenset({
    "asyncgrpo", "bco", "cpo", "dpo", "gkd", "grpo", "kto", "nashmd", "onlinedpo", "orpo", "ppo",
    "prm", "reward", "rloo", "sft", "xpo",
})  # fmt: skip
_SPELLINGS = {"sb3": "stable-baselines3", "stable_baselines3": "stable-baselines3"}


@dataclass(frozen=True, slots=True)
class Word:
    """What a key means: the signal's name, and what its values are multiplied by to be in our unit.

    `zero_is_none` says that the writer puts 0 where it has no value.
    """

    name: str
    factor: float = 1.0
    zero_is_none: bool = False

    def measured(self, value: float) -> float | None:
        """The value in our unit; None where it stands for none."""
        return None if self.zero_is_none and value == 0.0 else value * self.factor


class Words(dict[str, Word]):
    """What each key means, found out when it is first asked for; `own` are a dialect's own."""

    def __init__(self, own: Mapping[str, Word] = MappingProxyType({})) -> None:
        super().__init__()
        self.own = own

    def __missing__(self, key: str) -> Word:
        word = self.own.get(plain(key)) or Word(canonical(key))
        if len(self) < MOST_WORDS:
            self[key] = word
        return word


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one framework speaks. All three may be empty; `version` is its leading numbers."""

    framework: str = ""
    version: tuple[int, ...] = ()
    algorithm: str = ""
    words: Words = field(default_factory=Words, compare=False)

    def word(self, key: str) -> Word:
        """What the key means in this dialect."""
        return self.words[key]


EVERYWHERE = {
    "actor_grad_norm": Word("grad_norm", zero_is_none=True),
    "critic_grad_norm": Word("critic_grad_norm", zero_is_none=True),
    "lr(1e-3)": Word("learning_rate", 1e-3),
    "total_tokens(b)": Word("tokens_seen", 1e9),
    "samples/elapsed_time_ms_step": Word("step_time", 1e-3),
}
"""Keys that one framework alone has."""

WORDS: Mapping[tuple[str, str], Mapping[str, Word]] = {
    ("trl", "asyncgrpo"): {
        "kl": Word("kl_mismatch"),
        "ratio": Word("importance_ratio_mean"),
    },
    ("trl", "reward"): {
        "accuracy": Word("preference_accuracy"),
        "margin": Word("reward_margin"),
        # The model's own scores, which it is free to shift: nobody is rewarded by them.
        "mean_reward": Word("score_mean"),
    },
    ("trl", "ppo"): {"eps": Word("samples_per_second")},
    ("trl", "rloo"): {"eps": Word("samples_per_second")},
    ("openrlhf", ""): {
        "grad_norm": Word("grad_norm", zero_is_none=True),
        "return": Word("reward_total"),
    },
    ("openrlhf", "dpo"): {"acc": Word("preference_accuracy")},
    # Its losses are minimised, so the entropy is logged upside down.
    ("stable-baselines3", ""): {"entropy_loss": Word("entropy", -1.0)},
    ("nanogpt", ""): {"mfu": Word("mfu", 0.01)},
}
"""Words by framework, and by algorithm where only that one means it so; in lower case."""


def dialect(facts: Mapping[str, str]) -> Dialect:
    """The dialect of a run that says this of itself; the plain one where that tells nothing."""
    return _dialect(*(facts.get(name, "") for name in FACTS))


def detect(keys: Collection[str]) -> dict[str, str]:
    """Facts `framework` and `algorithm` that the keys of a log give away; empty if they do not.

    >>> detect(["actor/pg_loss", "critic/score/mean"]), detect(["loss"])
    ({'framework': 'verl'}, {})
    """
    known = {plain(key) for key in keys}
    for telling, framework, algorithm in _TRAITS:
        if telling <= known:
            return {"framework": framework} | ({"algorithm": algorithm} if algorithm else {})
    return {"framework": "verl"} if any(key.startswith("actor/") for key in known) else {}


_TRAITS: tuple[tuple[frozenset[str], str, str], ...] = tuple(
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
def _dialect(framework: str, version: str, algorithm: str) -> Dialect:
    speaker = _SPELLINGS.get(framework.lower(), framework.lower())
    method = re.sub(r"[^a-z0-9]", "", algorithm.lower())
    method = method.removesuffix("trainer").removesuffix("config")
    if speaker in _NOT_TELLING:
        speaker, version = ("trl" if method in _OF_TRL else ""), ""
    everybody, own = WORDS.get((speaker, ""), {}), WORDS.get((speaker, method), {})
    numbers = re.match(r"\d{1,9}(\.\d{1,9})*", version)
    return Dialect(
        speaker,
        tuple(map(int, numbers[0].split("."))) if numbers else (),
        method,
        Words({**EVERYWHERE, **everybody, **own}),
    )
