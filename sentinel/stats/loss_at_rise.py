"""The loss at the beginning of a rise of the gradient norm: is the rise learning?

A gradient that grows while the loss falls is that of a model which learns: a fresh head begins with
weights near 0 and a small gradient. When nearly all samples have been learnt, few hard ones make up
loss and norm, and the norm is heavy-tailed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

SIZE, SOUGHT_VALUES, LEVEL_VALUES = 256, 64, 8
"""Pairs that are kept; of those before a norm left its level, these in which the beginning of its
rise is sought; and values in a level."""

MIN_FALL = 0.05
"""Fall of the loss, as a share of its level at the beginning of the rise, that is learning."""

ERRORS = 2.0
"""Standard errors by which two levels of the loss differ."""

MEMORISED_SHARE = 0.2
"""Share of its first level below which a loss is that of few hard samples."""

MIN_SPREAD_VALUES = 4
"""Values whose spread is known."""

RiseLosses = tuple[list[float], list[float]]
"""Losses at the beginning of a rise, and the last before the norm left its level."""


@dataclass(slots=True)
class LossAtRise:
    """Pairs of ln(norm) and loss, of which the newest `since` belong to a rise.

    >>> history = LossAtRise()
    >>> for t in range(40):
    ...     history.add(t / 10, 2.0 - t / 40)
    >>> history.is_learning(history.losses(since=8), since=8)
    True
    """

    _log_norms: deque[float] = field(default_factory=lambda: deque(maxlen=SIZE))
    _losses: deque[float] = field(default_factory=lambda: deque(maxlen=SIZE))
    _first: list[float] = field(default_factory=list)

    def add(self, log_norm: float, loss: float) -> None:
        """Add a pair; of more than `SIZE` the oldest is removed."""
        self._log_norms.append(log_norm)
        self._losses.append(loss)
        if len(self._first) < LEVEL_VALUES:
            self._first.append(loss)

    def losses(self, since: int) -> RiseLosses:
        """Losses at the beginning of the rise, the lowest level of the norm, and the last before.

        A rise of which most came at once began then, whatever the norm had done before.
        """
        norms, losses = list(self._log_norms), list(self._losses)
        end = len(norms) - since
        if end < 2 * LEVEL_VALUES:
            return self._first[: LEVEL_VALUES // 2], losses[: max(end, LEVEL_VALUES // 2)]
        before = losses[end - 2 * LEVEL_VALUES : end]
        starts = range(end - LEVEL_VALUES, max(0, end - SOUGHT_VALUES) - 1, -LEVEL_VALUES)
        levels = {start: fmean(norms[start : start + LEVEL_VALUES]) for start in starts}
        begin, latest = min(levels, key=lambda start: levels[start]), levels[starts[0]]
        is_gradual = latest - levels[begin] > fmean(norms[end:]) - latest
        return (losses[begin : begin + LEVEL_VALUES] if is_gradual else before), before

    def is_learning(self, rise: RiseLosses, since: int) -> bool:
        """Whether the loss has fallen well since the rise began, or is memorised, and not risen."""
        if not self._losses:
            return False
        at_begin, before = rise
        latest = list(self._losses)[-min(since, 2 * LEVEL_VALUES) :]
        if _fall(before, latest) < 0.0:
            return False
        return self.is_memorised() or _fall(at_begin, latest) > MIN_FALL * abs(fmean(at_begin))

    def is_memorised(self) -> bool:
        """Whether the loss is so low that few hard samples make it up."""
        if not self._first:
            return False
        latest = list(self._losses)[-2 * LEVEL_VALUES :]
        return abs(fmean(latest)) < MEMORISED_SHARE * abs(fmean(self._first))


def _fall(before: Sequence[float], after: Sequence[float]) -> float:
    """How far the mean has fallen, without outliers; 0 where that is within its error."""
    groups = _clipped(before), _clipped(after)
    means = [fmean(values) for values in groups]
    spreads = [
        sum((x - mean) ** 2 for x in values) / (len(values) - 1)
        for values, mean in zip(groups, means, strict=True)
        if len(values) >= MIN_SPREAD_VALUES
    ]
    fall = means[0] - means[1]
    if not spreads:
        return fall
    # Of few values the spread is unknown; it is taken as that of the others.
    error = (spreads[0] / len(before) + spreads[-1] / len(after)) ** 0.5
    return fall if abs(fall) > ERRORS * error else 0.0


def _clipped(values: Sequence[float]) -> list[float]:
    """Values clipped to their middle three quarters."""
    ordered, cut = sorted(values), len(values) // 8
    low, high = ordered[cut], ordered[-1 - cut]
    return [min(max(x, low), high) for x in values]
