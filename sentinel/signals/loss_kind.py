"""Kinds of losses that need other rules than a supervised loss that falls to a low level."""

from __future__ import annotations

import re
from collections.abc import Collection
from math import inf, log

from sentinel.model.record import Record

POLICY_GRADIENT_ALGORITHMS = frozenset({"grpo", "rloo", "ppo", "online_dpo", "reinforce"})

POLICY_SIGNALS = (
    "reward", "policy_loss", "value_loss", "clip_fraction", "kl_old", "importance_ratio_mean",
)  # fmt: skip
"""Signals that only a policy gradient logs."""

PAIR_ALGORITHMS = frozenset({"dpo", "reward"})

PAIR_SIGNALS = ("preference_accuracy", "reward_margin", "rewards/chosen", "rewards/margins")
"""Signals that are logged with a loss over pairs of answers."""

ALTERNATING_KEY = "alternating_optimizers"
"""Signal of steps at which two optimizers step in turn."""

CHANCE_LOSS = log(2.0)
"""Loss of guessing between two alternatives: ln 2 = 0.693."""

CLASS_COUNT_KEYS = ("num_classes", "num_labels", "vocab_size")
"""Settings with the number of classes, the first that is known."""

_GENERATOR = re.compile(r"(^|[/_])(g|gen|generator)([/_]|$)")
_DISCRIMINATOR = re.compile(r"(^|[/_])(d|disc|dis|discriminator|critic)([/_]|$)")


def has_no_advantage(record: Record) -> bool:
    """Whether no group has a spread of rewards, so that only the gradient of the KL remains."""
    spread, share = record.values.get("reward_std"), record.values.get("frac_zero_std")
    return spread == 0.0 or (share is not None and share >= 1.0)


def are_signed(negative_count: int, count: int) -> bool:
    """Whether so many of the losses are negative that their logarithm has no meaning."""
    return negative_count > 0.05 * count


def is_policy_gradient(record: Record) -> bool:
    """Whether the loss of the record is one of a policy gradient: it is near 0 by construction."""
    values, attributes = record.values, record.attributes
    # A loop over few names: this runs for every record.
    for name in POLICY_SIGNALS:
        if name in values:
            return True
    return bool(attributes) and attributes.get("algorithm") in POLICY_GRADIENT_ALGORITHMS


def is_pair_loss(record: Record) -> bool:
    """Whether the loss chooses between two alternatives, by the algorithm or its other signals.

    The algorithm is in the records of a start and of metadata, the signals are in those of steps.
    """
    if record.attributes.get("algorithm") in PAIR_ALGORITHMS:
        return True
    return any(name in record.values for name in PAIR_SIGNALS)


def class_count(record: Record) -> float | None:
    """The number of classes that the loss chooses among; None if the record does not state it."""
    counts = (record.values.get(name, 0.0) for name in CLASS_COUNT_KEYS)
    return next((count for count in counts if 2.0 <= count < inf), None)


def is_adversarial(keys: Collection[str]) -> bool:
    """Whether two networks are trained against each other: at equilibrium neither loss falls.

    By the names of their losses, or by optimizers that step in turn.

    >>> [is_adversarial(keys) for keys in (("g_loss", "d_loss"), ("loss", "d_model"))]
    [True, False]
    """
    if ALTERNATING_KEY in keys:
        return True
    losses = [key.lower() for key in keys if "loss" in key.lower()]
    return any(map(_GENERATOR.search, losses)) and any(map(_DISCRIMINATOR.search, losses))
