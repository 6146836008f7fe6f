"""Laundry: numbers that look sound and were NaN before a framework washed them.

DeepSpeed before 0.19 marks the norm of a group of gradients that is not finite by -1, and takes the
root of the sum of the squares all the same: every step then has the norm 1, or the root of the
number of groups. The trainer above it logs 0 for a loss that is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, nan

MIN_CONSECUTIVE_ROWS = 3
"""Such rows in a row: a loss of 0 has no gradient, so one alone is strange enough."""

MAX_PARAMETER_GROUPS = 64


@dataclass
class NanRestorer:
    """Looks at the rows of one run, one after the other; `strange` counts the last ones."""

    consecutive_suspects: int = 0

    def restore(self, values: Mapping[str, float]) -> dict[str, float]:
        """The values of a row, with NaN where it stood.

        A run with a reward is let be: the loss of a policy gradient is near 0 by construction.
        """
        loss, norm = values.get("loss"), values.get("grad_norm")
        if loss is None or norm is None:
            return dict(values)
        lost = loss == 0.0 or not isfinite(loss)
        self.consecutive_suspects = (
            self.consecutive_suspects + 1
            if lost and _is_root_of_integer(norm) and "reward" not in values
            else 0
        )
        if self.consecutive_suspects < MIN_CONSECUTIVE_ROWS:
            return dict(values)
        return {**values, "loss": nan, "grad_norm": nan}


def _is_root_of_integer(norm: float) -> bool:
    """Whether it is the root of a whole number of groups, to the last digit."""
    groups = round(norm * norm) if 0.0 < norm <= MAX_PARAMETER_GROUPS else 0
    return 1 <= groups <= MAX_PARAMETER_GROUPS and abs(norm - groups**0.5) <= 1e-6 * norm
