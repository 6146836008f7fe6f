"""Schedule: whether the learning-rate schedule advances more than once an update, or is spent."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import isclose
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, ref

from sentinel.client.checks.check import Check, CheckedTraining
from sentinel.client.checks.weights import read_rate
from sentinel.client.process_group import process_group_size

UPDATES_TO_JUDGE = 5
"""Updates in a row."""
SPENT_SHARE = 1e-4
"""Share of the highest rate so far, at or below which a rate changes nothing."""
RISEN_SHARE = 1e-2
"""The same from which a rate that was spent has risen again."""
LAST_EARLY_STEP = 20
"""The last step by which no schedule is spent on purpose; a cosine is at the end of a long run."""


class Schedule(Check):
    """Counts the steps of each scheduler of the optimizer between two updates."""

    name: ClassVar[str] = "schedule"

    def __init__(self, training: CheckedTraining) -> None:
        super().__init__(training)
        self._counts: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._passes = 0
        self._highest_rate = 0.0
        self._last_rate = self._ratio = 0.0
        self._is_geometric = True
        """Whether each rate was the same part of the one before, as in a search for a rate."""
        self._spent_updates = 0
        self._spent_at: tuple[int, Any] = (0, None)
        """The update at which the rate was next to 0, and a weak reference to its scheduler."""

    def on_schedule(self, scheduler: Any) -> None:
        """A scheduler took a step."""
        if getattr(scheduler, "optimizer", None) is self.training.find_optimizer():
            self._counts[scheduler] = self._counts.get(scheduler, 0) + 1

    def before_backward(self) -> None:
        """Count the passes of an update."""
        self._passes += 1

    def after_step(self) -> None:
        """Judge the update that began after the last step."""
        highest, passes = max(self._counts.values(), default=0), self._passes
        schedulers = [*self._counts]
        self._counts.clear()
        self._passes = 0
        if len([*self.training.find_optimizers()]) > 1:
            # Several optimizers may share the count of one of them on purpose.
            return
        if highest:
            self._count_spent(schedulers)
        if self._spent_updates >= UPDATES_TO_JUDGE:
            evidence = {"updates": float(self.training.steps), "highest": self._highest_rate}
            self.set_result("spent", evidence)
            return
        if highest:
            self.count(is_wrong=highest > 1 and highest != accelerate_processes())
        if self.wrong_count >= UPDATES_TO_JUDGE:
            is_by_pass = highest == passes
            problem = "once_a_pass" if is_by_pass else "several"
            self.set_result(problem, {"schedule_steps": float(highest)})
        elif self.right_count >= UPDATES_TO_JUDGE and self.problem != "repeats":
            self.set_result("")

    def _count_spent(self, schedulers: Sequence[Any]) -> None:
        """Count an early update at a rate of next to nothing, which the last one of a run has.

        The schedule that rises again after it counts fewer updates than the training has.
        """
        if self.training.steps > LAST_EARLY_STEP:
            return
        groups = self.training.find_optimizer().param_groups
        rate = max(read_rate(group.get("lr")) for group in groups)
        self._highest_rate = max(self._highest_rate, rate)
        if self._last_rate:
            ratio = rate / self._last_rate
            self._is_geometric &= ratio < 1.0 and isclose(ratio, self._ratio or ratio, rel_tol=1e-3)
            self._ratio = ratio
        self._last_rate = rate
        is_spent = rate <= SPENT_SHARE * self._highest_rate and not self._is_geometric
        is_spent = is_spent and self._highest_rate > 0.0
        self._spent_updates = self._spent_updates + 1 if is_spent else 0
        spent_at, find_scheduler = self._spent_at
        if is_spent:
            self._spent_at = self.training.steps, ref(schedulers[0])
        elif spent_at and rate >= RISEN_SHARE * self._highest_rate:
            self._spent_at = 0, None
            # Its cycles are short on purpose, and may begin at 0.
            is_cyclic = type(schedulers[0]).__name__ == "CyclicLR"
            if schedulers == [find_scheduler()] and not is_cyclic:
                evidence = {"updates": float(spent_at), "highest": self._highest_rate}
                self.set_result("repeats", evidence)


def accelerate_processes() -> int:
    """The number of processes if Accelerate is in use, whose schedulers step once for each."""
    return process_group_size() or 0 if "accelerate.scheduler" in sys.modules else 0
