"""SIGNALS: the catalogue of everything sentinel measures, and how a logged key is found in it.

A line of the catalogue is a metric on `/metrics`, a panel, a row of docs/metrics.md, and the names
by which frameworks and people log the same thing.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import chain

from sentinel.signals import machine, policy, reward, training
from sentinel.signals.signal import Combine, Signal

__all__ = [
    "GROUPS",
    "SIGNALS",
    "WEIGHT",
    "Combine",
    "Signal",
    "canonical",
    "combine_rule",
    "held_out",
    "plain",
]

WEIGHT = "weight"
"""Reserved value of a record: how many samples its means are over."""

GROUPS: dict[str, tuple[Signal, ...]] = {
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

SIGNALS: dict[str, Signal] = {signal.name: signal for signal in chain(*GROUPS.values())}

_NAMES: dict[str, str] = {
    alias: signal.name for signal in SIGNALS.values() for alias in (signal.name, *signal.aliases)
}

_OF_TRAINING = frozenset(SIGNALS) - {"eval_loss"}.union(
    signal.name for title in ("Progress", "Speed", "GPU", "Host") for signal in GROUPS[title]
)

_HELD_OUT = re.compile(r"(eval|val|valid|validation|test)[/_](.+)", re.DOTALL)
_REWARD_FUNCTION = re.compile(r"(?:train/)?rewards/([^/]+?)(/mean|/std)?", re.IGNORECASE)

_NOT_A_FUNCTION = frozenset(
    {"chosen", "rejected", "margins", "accuracies", "mean", "std", "min", "max", "n", "total"}
)
"""What follows "rewards/" without being the name of a reward function."""


@lru_cache(maxsize=4096)
def canonical(key: str) -> str:
    """Our name for a logged key; the key itself where the catalogue has none.

    Case and a leading `train/` do not matter, spaces are as good as underscores, and Lightning's
    `_step` at the end is left out. A signal measured on held-out data is another than the same in
    training, and a reward function goes by one name whatever the version of its framework.

    >>> canonical("train/KL"), canonical("objective/scores"), canonical("my_metric")
    ('kl_ref', 'reward', 'my_metric')
    >>> canonical("val/loss"), canonical("eval/objective/kl"), canonical("rewards/brevity")
    ('eval_loss', 'eval_kl_ref', 'rewards/brevity/mean')
    """
    known = _known(key)
    if known:
        return known
    split = _HELD_OUT.fullmatch(_spelt(key))
    if split and _known(split[2]):
        return f"{'test' if split[1] == 'test' else 'eval'}_{_known(split[2])}"
    function = _REWARD_FUNCTION.fullmatch(key)
    if function and function[1].lower() not in _NOT_A_FUNCTION:
        return f"rewards/{function[1]}{function[2] or '/mean'}"
    return key


def held_out(name: str) -> str:
    """What a signal is called where it was measured in an evaluation; other names stay.

    How far and how fast a run is, and what its machines do, is the same in one.

    >>> held_out("loss"), held_out("eval_loss"), held_out("epoch"), held_out("my_metric")
    ('eval_loss', 'eval_loss', 'epoch', 'my_metric')
    """
    return f"eval_{name}" if name in _OF_TRAINING else name


def combine_rule(name: str) -> Combine:
    """How ranks combine for that signal; unknown signals are means."""
    signal = SIGNALS.get(name)
    return signal.combine if signal else Combine.MEAN


def plain(key: str) -> str:
    """The key as aliases are written: in lower case, without a leading `train/`."""
    return key.lower().removeprefix("train/")


def _known(key: str) -> str:
    """The catalogue's name for a key; empty where there is none."""
    return _NAMES.get(plain(key)) or _NAMES.get(_spelt(key).removesuffix("_step"), "")


def _spelt(key: str) -> str:
    return plain(key.strip().replace(" ", "_"))
