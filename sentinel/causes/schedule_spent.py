"""Schedule spent: there is no learning rate left, or it never came, and the run goes on.

The schedule was made for fewer steps than the run has, is stepped more often than the optimizer,
or not at all, so that the rate stands where its warm-up began.

Clues
    A rate that came to 0, or never left its first value, is the heart of it; that it is under a
    hundredth of what was declared, and a loss or reward that stands still, show the cost.

Source
    The documentation of accelerate, whose schedulers step once for each process, so that one made
    for the steps of all is over after an n-th of the run. A tiny training whose schedule ends
    half-way, in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.model.diagnosis import Clue, Scene, next_to_none, seen
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import lever


class ScheduleSpent:
    """Judges by the learning rate, and by what stands still."""

    title: ClassVar[str] = "no learning rate left"
    explains: ClassVar[frozenset[str]] = frozenset({
        "learning_rate_anomaly", "loss_plateau", "loss_never_moved", "reward_stalled",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def clues(self, scene: Scene) -> Iterable[Clue]:
        """A rate that is gone, and what stands; another rate after a restart is another matter."""
        wrong = scene.signs.get("learning_rate_anomaly")
        told = {} if wrong is None else wrong.evidence
        if wrong is None or "before" in told or told.get("highest") == 0.0:
            return
        yield from seen(wrong, 0.5)
        yield from seen(scene.first("loss_plateau", "loss_never_moved", "reward_stalled"), 0.4)
        yield from next_to_none(scene)

    def remedy(self, scene: Scene) -> str:
        """Stop, or give the schedule the length of the run."""
        return (
            "If the loss is where you want it, stop: nothing more will come. Else go on from the "
            "last checkpoint with a schedule as long as the run: compare "
            f"{lever('number of steps', scene.facts)} with what the scheduler was made for, see "
            f"that {lever('schedule', scene.facts)} is stepped once per optimizer step and not "
            "once per process, and that its warm-up ends."
        )
