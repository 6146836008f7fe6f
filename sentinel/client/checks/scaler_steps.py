"""Scaler steps: whether a GradScaler skips more steps than it needs to find its scale."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from sentinel.client.checks.check import Evidence, check_report

ATTEMPTS = 100
"""Updates, skipped or not, that are judged together; each is a step of every optimizer."""
MAX_SKIPPED_SHARE = 0.25
"""Share of these that may be skipped; the search for the scale takes at most 17 in a usual run."""
SPARE_SKIPS = 4
"""Steps that may be skipped in a row after the scale is below 1."""


class ScalerSteps:
    """Counts skipped steps, also before the optimizer takes any. `record` writes a CHECK."""

    name = "scaler_steps"

    def __init__(self, record: Callable[[Evidence], None], rank: int) -> None:
        self._record, self._rank = record, rank
        self._scalers = WeakKeyDictionary[Any, _Scaler]()

    @property
    def in_a_row(self) -> int:
        """Skipped steps since the last one of the same scaler that was not; of all the most."""
        return max((each.in_a_row for each in self._scalers.values()), default=0)

    def add(self, scaler: Any, optimizer: Any, *, is_skipped: bool) -> None:
        """Add a step of the scaler, which lowers its scale after each update that it skips."""
        state = self._scalers.setdefault(scaler, _Scaler())
        changed = state.add(scaler, optimizer, is_skipped=is_skipped)
        if changed is None:
            return
        problem, evidence = changed
        # A scaler without a problem does not end that of another one.
        if problem or not any(each.problem for each in self._scalers.values()):
            self._record(check_report(self.name, problem, self._rank, evidence))


class _Scaler:
    """The steps of one scaler."""

    def __init__(self) -> None:
        self._attempts = self._skipped = 0
        """The steps so far of those that are judged together."""
        self._optimizers = WeakSet[Any]()
        self.in_a_row = 0
        """Skipped steps of one optimizer since the last step that was not."""
        self._find_optimizer: Callable[[], Any] = lambda: None
        """That optimizer: an update steps all of them, and lowers the scale once."""
        self.problem: str | None = None

    def add(self, scaler: Any, optimizer: Any, *, is_skipped: bool) -> tuple[str, Evidence] | None:
        """Add a step; the problem, or none, and its evidence if it is another than before."""
        self._optimizers.add(optimizer)
        self._attempts += 1
        self._skipped += is_skipped
        if not is_skipped:
            self.in_a_row = 0
        elif not self.in_a_row or self._find_optimizer() in (None, optimizer):
            self.in_a_row += 1
            self._find_optimizer = ref(optimizer)
        first_scale = max(2.0, getattr(scaler, "_init_scale", 0.0))
        reductions = ceil(log(first_scale) / -log(scaler.get_backoff_factor()))
        if self.in_a_row == reductions + SPARE_SKIPS:
            return self._change("all_skipped", {"skipped": float(self.in_a_row)})
        if self._attempts < ATTEMPTS * len(self._optimizers):
            return None
        # The scale grows after so many steps, and the next one may be skipped.
        max_share = max(MAX_SKIPPED_SHARE, 2.0 / (1.0 + scaler.get_growth_interval()))
        share = self._skipped / self._attempts
        self._attempts = self._skipped = 0
        if share <= max_share:
            return self._change("", {})
        if self.problem != "all_skipped":
            return self._change("often_skipped", {"share": share})
        return None

    def _change(self, problem: str, evidence: Evidence) -> tuple[str, Evidence] | None:
        if problem == self.problem:
            return None
        self.problem = problem
        return problem, evidence
