"""The catalogue of all signals, and the lookup of logged keys in it.

An entry of the catalogue is a metric on `/metrics`, a panel, a row of docs/metrics.md, and the keys
under which frameworks and users log the same quantity.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import chain

from sentinel.signals import machine, policy, reward, training
from sentinel.signals.signal import Better, CombineRule, Signal

__all__ = [
    "POSITION_KEYS",
    "SIGNALS",
    "SIGNAL_GROUPS",
    "WEIGHT_KEY",
    "Better",
    "CombineRule",
    "Signal",
    "better_value",
    "canonical_name",
    "eval_name",
    "get_combine_rule",
    "normalize_key",
]

WEIGHT_KEY = "weight"
"""Reserved key of a record: the number of samples that its means cover."""

POSITION_KEYS = frozenset({"step", "time", "timestamp", "_step", "_timestamp", "_runtime"})
"""Values that state where or when a row is, as W&B and others log them with every row."""

SIGNAL_GROUPS: dict[str, tuple[Signal, ...]] = {
    "Loss": training.LOSSES,
    "KL divergence": policy.DIVERGENCE,
    "Reward and preference": reward.REWARDS,
    "Objective": policy.OBJECTIVE,
    "Completions and samples": policy.COMPLETIONS,
    "Age of the samples": policy.ROLLOUTS,
    "Tools and environments": policy.ENVIRONMENT,
    "Mixture of experts": training.EXPERTS,
    "Optimiser": training.OPTIMISATION,
    "Curvature and distance": training.GEOMETRY,
    "Progress": training.PROGRESS,
    "Speed": training.SPEED,
    "GPU": machine.GPU,
    "Host": machine.HOST,
}
"""The catalogue by the headings under which it is shown."""

SIGNALS: dict[str, Signal] = {signal.name: signal for signal in chain(*SIGNAL_GROUPS.values())}

_NAME_BY_ALIAS: dict[str, str] = {
    alias: signal.name for signal in SIGNALS.values() for alias in (signal.name, *signal.aliases)
}

_TRAINING_SIGNALS = frozenset(SIGNALS) - {"eval_loss"}.union(
    signal.name for title in ("Progress", "Speed", "GPU", "Host") for signal in SIGNAL_GROUPS[title]
)

_EVAL_KEY_PATTERN = re.compile(r"(eval|val|valid|validation|test)[/_](.+)", re.DOTALL)
_EXPERT_LAYER_PATTERN = re.compile(
    r"(block[ _]\d+)/load[ _]imbalance|rollout/moe/max_vio/(layer_\d+)", re.IGNORECASE
)
_REWARD_FUNCTION_PATTERN = re.compile(r"(?:train/)?rewards/([^/]+?)(/mean|/std)?", re.IGNORECASE)

_NOT_REWARD_FUNCTIONS = frozenset(
    {"chosen", "rejected", "margins", "accuracies", "mean", "std", "min", "max", "n", "total"}
)
"""Suffixes of "rewards/" that are not the name of a reward function."""

_BETTER_WORDS: tuple[tuple[Better, frozenset[str]], ...] = (
    ("lower", frozenset({"loss", "error", "perplexity", "ppl", "wer", "mae", "mse", "rmse"})),
    ("higher", frozenset({"accuracy", "acc", "f1", "bleu", "auc", "reward", "rewards", "score"})),
)
"""Words in the key of an unknown metric that state whether more is better; the first counts."""
_SPREAD_WORDS = frozenset({"std", "stddev", "var", "variance"})
"""Words of keys that are a spread: neither more nor less of it is better."""


@lru_cache(maxsize=4096)
def canonical_name(key: str) -> str:
    """The signal's name for a logged key; the key itself if it is not in the catalogue.

    Case and a leading `train/` are ignored, spaces equal underscores, and Lightning's trailing
    `_step` is removed. A signal measured on held-out data is distinct from the one in training. A
    reward function has the same name in all versions of its framework. The load of the experts of a
    layer begins with the name of the signal.

    >>> [canonical_name(key) for key in ("train/KL", "objective/scores", "my_metric")]
    ['kl_ref', 'reward', 'my_metric']
    >>> [canonical_name(key) for key in ("val/loss", "eval/objective/kl", "rewards/brevity")]
    ['eval_loss', 'eval_kl_ref', 'rewards/brevity/mean']
    >>> canonical_name("train/block 03/load imbalance")
    'expert_load_imbalance/block 03'
    """
    name = _catalogue_name(key)
    if name:
        return name
    split = _EVAL_KEY_PATTERN.fullmatch(_normalize_spelling(key))
    if split and _catalogue_name(split[2]):
        return f"{'test' if split[1] == 'test' else 'eval'}_{_catalogue_name(split[2])}"
    function = _REWARD_FUNCTION_PATTERN.fullmatch(key)
    if function and function[1].lower() not in _NOT_REWARD_FUNCTIONS:
        return f"rewards/{function[1]}{function[2] or '/mean'}"
    experts = _EXPERT_LAYER_PATTERN.fullmatch(normalize_key(key))
    if experts:
        quantity = "expert_load_imbalance" if experts[1] else "expert_load_violation"
        return f"{quantity}/{experts[1] or experts[2]}"
    return key


def eval_name(name: str) -> str:
    """The name of a signal measured in an evaluation; other names are unchanged.

    Signals of progress, speed and hardware have the same name in an evaluation.

    >>> [eval_name(name) for name in ("loss", "eval_loss", "epoch", "my_metric")]
    ['eval_loss', 'eval_loss', 'epoch', 'my_metric']
    """
    return f"eval_{name}" if name in _TRAINING_SIGNALS else name


def better_value(name: str) -> Better:
    """Which of two values of a signal or a logged key is better; empty if that is not known.

    >>> [better_value(name) for name in ("eval/loss", "eval_reward", "my/f1", "kl_ref")]
    ['lower', 'higher', 'higher', '']
    """
    signal = SIGNALS.get(name) or SIGNALS.get(canonical_name(name))
    split = _EVAL_KEY_PATTERN.fullmatch(name)
    if signal is None and split:
        signal = SIGNALS.get(canonical_name(split[2]))
    if signal is not None:
        return signal.better
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    if words & _SPREAD_WORDS:
        return ""
    return next((better for better, known in _BETTER_WORDS if known & words), "")


def get_combine_rule(name: str) -> CombineRule:
    """How the values of ranks are combined for that signal; unknown signals are means."""
    signal = SIGNALS.get(name)
    return signal.combine_rule if signal else CombineRule.MEAN


def normalize_key(key: str) -> str:
    """The key in the form of aliases: in lower case, without a leading `train/`."""
    return key.lower().removeprefix("train/")


def _catalogue_name(key: str) -> str:
    """The catalogue's name for a key; empty if there is none."""
    return _NAME_BY_ALIAS.get(normalize_key(key)) or _NAME_BY_ALIAS.get(
        _normalize_spelling(key).removesuffix("_step"), ""
    )


def _normalize_spelling(key: str) -> str:
    return normalize_key(key.strip().replace(" ", "_"))
