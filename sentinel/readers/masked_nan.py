"""Restores NaN where a framework logged a finite number in its place.

DeepSpeed before 0.19 replaces the norm of a parameter group by -1 if it is not finite, and still
takes the root of the sum of squares: every step then has the norm 1, or the root of the number of
groups. The trainer above it logs a NaN loss as 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, nan

MIN_CONSECUTIVE_ROWS = 3
"""Consecutive suspect rows before NaN is restored: a loss of 0 has no gradient, so few suffice."""

MAX_PARAMETER_GROUPS = 64


@dataclass
class NanRestorer:
    """Processes the rows of one run in order; `consecutive_suspects` counts the newest ones."""

    consecutive_suspects: int = 0

    def restore(self, values: Mapping[str, float]) -> dict[str, float]:
        """The values of a row, with NaN restored.

        Rows with a reward are left unchanged: a policy-gradient loss is near 0 by construction.
        """
        loss, norm = values.get("loss"), values.get("grad_norm")
        if loss is None or norm is None:
            return dict(values)
        is_suspect = (
            (loss == 0.0 or not isfinite(loss))
            and _is_root_of_integer(norm)
            and "reward" not in values
        )
        self.consecutive_suspects = self.consecutive_suspects + 1 if is_suspect else 0
        if self.consecutive_suspects < MIN_CONSECUTIVE_ROWS:
            return dict(values)
        return {**values, "loss": nan, "grad_norm": nan}


def _is_root_of_integer(norm: float) -> bool:
    """Whether it is the root of an integer number of groups, to a relative error of 1e-6."""
    groups = round(norm * norm) if 0.0 < norm <= MAX_PARAMETER_GROUPS else 0
    return 1 <= groups <= MAX_PARAMETER_GROUPS and abs(norm - groups**0.5) <= 1e-6 * norm
