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

from sentinel.causes._evidence import low_learning_rate_evidence, symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting


class ScheduleSpent:
    """Judges by the learning rate, and by what stands still."""

    title: ClassVar[str] = "no learning rate left"
    explains: ClassVar[frozenset[str]] = frozenset({
        "learning_rate_anomaly", "loss_plateau", "loss_never_moved", "reward_stalled",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """A rate that is gone, and what stands; another rate after a restart is another matter."""
        wrong = context.symptoms.get("learning_rate_anomaly")
        told = {} if wrong is None else wrong.evidence
        if wrong is None or "before" in told or told.get("highest") == 0.0:
            return
        yield from symptom_evidence(wrong, 0.5)
        yield from symptom_evidence(
            context.earliest_symptom("loss_plateau", "loss_never_moved", "reward_stalled"), 0.4
        )
        yield from low_learning_rate_evidence(context)

    def remedy(self, context: CaseContext) -> str:
        """Stop, or give the schedule the length of the run."""
        return (
            "If the loss is where you want it, stop: nothing more will come. Else go on from the "
            "last checkpoint with a schedule as long as the run: compare "
            f"{describe_setting('maximum number of steps', context.metadata)} with what the scheduler was made for, see "
            f"that {describe_setting('learning-rate schedule', context.metadata)} is stepped once per optimizer step and not "
            "once per process, and that its warm-up ends."
        )
