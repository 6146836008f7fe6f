"""SIGNALS: the catalogue of everything sentinel measures, and how a logged key is found in it.

A line of the catalogue is a metric on `/metrics`, a panel, a row of docs/metrics.md, and the names
by which frameworks and people log the same thing.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import chain

from sentinel.signals import machine, policy, reward, training
from sentinel.signals.signal import CombineRule, Signal

__all__ = [
    "SIGNALS",
    "SIGNAL_GROUPS",
    "WEIGHT_KEY",
    "CombineRule",
    "Signal",
    "canonical_name",
    "eval_name",
    "get_combine_rule",
    "normalize_key",
]

WEIGHT_KEY = "weight"
"""Reserved value of a record: how many samples its means are over."""

SIGNAL_GROUPS: dict[str, tuple[Signal, ...]] = {
    "Loss": training.LOSSES,
    "KL divergence": policy.DIVERGENCE,
    "Reward and preference": reward.REWARDS,
    "Objective": policy.OBJECTIVE,
    "Completions and samples": policy.COMPLETIONS,
    "Optimiser": training.OPTIMISATION,
    "Progress": training.PROGRESS,
    "Speed": training.SPEED,
    "GPU": machine.GPU,
    "Host": machine.HOST,
}
"""The catalogue under the headings it is shown by."""

SIGNALS: dict[str, Signal] = {signal.name: signal for signal in chain(*SIGNAL_GROUPS.values())}

_NAME_BY_ALIAS: dict[str, str] = {
    alias: signal.name for signal in SIGNALS.values() for alias in (signal.name, *signal.aliases)
}

_TRAINING_SIGNALS = frozenset(SIGNALS) - {"eval_loss"}.union(
    signal.name for title in ("Progress", "Speed", "GPU", "Host") for signal in SIGNAL_GROUPS[title]
)

_EVAL_KEY_PATTERN = re.compile(r"(eval|val|valid|validation|test)[/_](.+)", re.DOTALL)
_REWARD_FUNCTION_PATTERN = re.compile(r"(?:train/)?rewards/([^/]+?)(/mean|/std)?", re.IGNORECASE)

_NOT_REWARD_FUNCTIONS = frozenset(
    {"chosen", "rejected", "margins", "accuracies", "mean", "std", "min", "max", "n", "total"}
)
"""What follows "rewards/" without being the name of a reward function."""


@lru_cache(maxsize=4096)
def canonical_name(key: str) -> str:
    """Our name for a logged key; the key itself where the catalogue has none.

    Case and a leading `train/` do not matter, spaces are as good as underscores, and Lightning's
    `_step` at the end is left out. A signal measured on held-out data is another than the same in
    training, and a reward function goes by one name whatever the version of its framework.

    >>> canonical("train/KL"), canonical("objective/scores"), canonical("my_metric")
    ('kl_ref', 'reward', 'my_metric')
    >>> canonical("val/loss"), canonical("eval/objective/kl"), canonical("rewards/brevity")
    ('eval_loss', 'eval_kl_ref', 'rewards/brevity/mean')
    """
    known = _catalogue_name(key)
    if known:
        return known
    split = _EVAL_KEY_PATTERN.fullmatch(_normalize_spelling(key))
    if split and _catalogue_name(split[2]):
        return f"{'test' if split[1] == 'test' else 'eval'}_{_catalogue_name(split[2])}"
    function = _REWARD_FUNCTION_PATTERN.fullmatch(key)
    if function and function[1].lower() not in _NOT_REWARD_FUNCTIONS:
        return f"rewards/{function[1]}{function[2] or '/mean'}"
    return key


def eval_name(name: str) -> str:
    """What a signal is called where it was measured in an evaluation; other names stay.

    How far and how fast a run is, and what its machines do, is the same in one.

    >>> held_out("loss"), held_out("eval_loss"), held_out("epoch"), held_out("my_metric")
    ('eval_loss', 'eval_loss', 'epoch', 'my_metric')
    """
    return f"eval_{name}" if name in _TRAINING_SIGNALS else name


def get_combine_rule(name: str) -> CombineRule:
    """How ranks combine for that signal; unknown signals are means."""
    signal = SIGNALS.get(name)
    return signal.combine_rule if signal else CombineRule.MEAN


def normalize_key(key: str) -> str:
    """The key as aliases are written: in lower case, without a leading `train/`."""
    return key.lower().removeprefix("train/")


def _catalogue_name(key: str) -> str:
    """The catalogue's name for a key; empty where there is none."""
    return _NAME_BY_ALIAS.get(normalize_key(key)) or _NAME_BY_ALIAS.get(
        _normalize_spelling(key).removesuffix("_step"), ""
    )


def _normalize_spelling(key: str) -> str:
    return normalize_key(key.strip().replace(" ", "_"))
