"""Entropy of a policy over tokens; that of a continuous distribution is left out."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

MIN_ENTROPY = 1e-7
"""Nats per token; lower values count as this, so that their logarithm exists."""

SETTLED_SHARE = 0.005
"""Share of its highest value within which an entropy has settled at 0."""

SETTLED_VALUES = 16
"""Values in a row that have settled at 0, which a narrowing continuous distribution passes."""

NEGATIVE_MEMORY = 16
"""Values after a negative one in which the entropy is not evaluated: it may be passing zero."""


@dataclass(slots=True)
class PolicyEntropy:
    """Distinguishes the entropy of a discrete distribution from that of a continuous one.

    The latter has no zero: as the distribution becomes narrow it turns negative and stays so. A
    single negative value is an error of the estimate. Of a distribution of actions it is unknown
    which of the two it is, until its entropy settles at 0, where nothing holds a continuous one.
    """

    is_discrete: bool = True
    """Whether the entropy is known to be that of a discrete distribution, unless it is negative."""
    is_spread: bool = False
    """Whether the last value was a spread of continuous actions, which has a zero."""
    is_judged: bool = True
    """Whether the last value has a zero, and so a ratio to its start."""
    count: int = 0
    _highest: float = 0.0
    _settled_count: int = 0
    negative_count: int = 0
    _last_negative: int = -NEGATIVE_MEMORY

    def read(self, entropy: float, spread: float | None, *, is_of_actions: bool) -> float | None:
        """The entropy to evaluate, at least MIN_ENTROPY; None if it is not to be evaluated.

        `spread` is the standard deviation of continuous actions, evaluated in its place, or None.
        `is_of_actions` is whether a policy of a control task has that entropy.
        """
        self.is_spread = spread is not None
        self.is_judged = self.is_spread or self.is_discrete
        if spread is not None:
            return max(spread, MIN_ENTROPY) if isfinite(spread) else None
        if not isfinite(entropy):
            return None
        if is_of_actions:
            self._highest = max(self._highest, entropy)
            is_settled = 0.0 <= entropy <= SETTLED_SHARE * self._highest
            self._settled_count = self._settled_count + 1 if is_settled else 0
            self.is_discrete = self.is_judged = self._settled_count >= SETTLED_VALUES
        self.count += 1
        if entropy < 0.0:
            self.negative_count += 1
            self._last_negative = self.count
        if self.count - self._last_negative < NEGATIVE_MEMORY:
            return None
        is_continuous = 2 * self.negative_count >= self.count
        return None if is_continuous else max(entropy, MIN_ENTROPY)

    @property
    def description(self) -> tuple[str, str, str]:
        """Name and unit of the value in a sentence, and its name in the evidence."""
        if self.is_spread:
            return "Spread of the actions", "", "action_std"
        return "Entropy", " nats per token", "entropy_nats"
