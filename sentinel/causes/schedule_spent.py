"""Schedule spent: the learning rate is 0 or stuck while the run continues.

The schedule was created for fewer steps than the run has, is stepped more often than the optimizer,
or is never stepped, so that the rate stays at the start of its warm-up.

Evidence
    A rate that reached 0, or never left its first value, is the main evidence; a rate below a
    hundredth of the declared one, and a loss or reward that stagnates, show its effect.

Source
    The documentation of accelerate, whose schedulers step once per process, so that a schedule for
    the steps of all processes ends after an n-th of the run. A tiny training whose schedule ends
    half-way, in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.causes._evidence import StatedCause, low_learning_rate_evidence, weighted_evidence
from sentinel.model.diagnosis import CaseContext, Evidence

WEIGHTS = {"learning_rate_anomaly": 0.5, "loss_plateau or loss_never_moved or reward_stalled": 0.4}
"""Weight of the rate, and of its effect."""


class ScheduleSpent(StatedCause):
    """Diagnoses by the learning rate, and by a loss or reward that stagnates."""

    title = "no learning rate left"
    explains = frozenset({
        "learning_rate_anomaly", "loss_plateau", "loss_never_moved", "reward_stalled",
    })  # fmt: skip
    sign = "the learning rate (log `learning_rate`) is near 0 while steps remain"
    advice = (
        "If the loss is low enough, stop: it will not fall further. Otherwise save a checkpoint, "
        "and resume from it with a schedule as long as the run: compare {maximum number of steps} "
        "with the steps that the scheduler was created for, check that {learning-rate schedule} is "
        "stepped once per optimizer step, not once per process, and that its warm-up ends."
    )

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The rate and its effects; nothing for a rate that changed at a restart."""
        anomaly = context.symptoms.get("learning_rate_anomaly")
        values = {} if anomaly is None else anomaly.evidence
        if (
            anomaly is None
            or "learning_rate_before_restart" in values
            or values.get("highest_learning_rate") == 0.0
        ):
            return
        yield from weighted_evidence(context, WEIGHTS)
        yield from low_learning_rate_evidence(context)
