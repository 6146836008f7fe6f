"""Resume lost state: the run was resumed without the state of optimizer or scheduler.

Without its moments the optimizer's first steps are far too large; without its state the schedule
starts again, with a warm-up or at its peak.

Evidence
    A learning rate that differs from the one at that step before the restart is almost sufficient.
    A loss or gradient norm that leaves its level within 32 steps of a restart is strong evidence. A
    step that goes back more than once, or to the first of the log, is that of several runs.

Source
    ultralytics/yolov5 issue 292 and many similar ones, of schedules reset on resume; a tiny
    training whose schedule starts again, in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from sentinel.causes._evidence import (
    StatedCause,
    follows_restart,
    restart_step,
    weighted_evidence,
)
from sentinel.model.diagnosis import RESUMED_STEP_KEY, CaseContext, Evidence

EFFECT_WEIGHTS = {
    "learning_rate_anomaly": 0.7,
    "loss_divergence": 0.5,
    "grad_explosion": 0.4,
    "loss_spike": 0.3,
}
"""Weight of each incident soon after a restart."""


class ResumeLostState(StatedCause):
    """Diagnoses by incidents soon after a restart."""

    title = "state lost on resume"
    explains = frozenset({
        "learning_rate_anomaly", "loss_divergence", "loss_spike", "grad_explosion",
        "step_regression",
    })  # fmt: skip
    suggested_by: ClassVar[Mapping[str, float]] = {"step_regression": 0.3}
    sign = "the checkpoint lacks the state of the optimizer or the scheduler"
    advice = (
        "Stop the run, and resume from the same checkpoint with its whole state: weights, "
        "optimizer, scheduler and loss scaler ({checkpoint to resume from}, not a model loaded by "
        "its path). If that checkpoint has no optimizer state, disable {weights-only saving}, and "
        "start with a warm-up of some hundred steps up to the previous rate."
    )

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """Incidents soon after a restart; nothing without one."""
        restart = restart_step(context)
        if restart is None:
            return
        near = {
            name: weight
            for name, weight in EFFECT_WEIGHTS.items()
            if follows_restart(context, context.symptoms.get(name), restart)
        }
        if near:
            yield from weighted_evidence(context, near)
            yield Evidence(0.4, f"The run was resumed at step {restart}.", restart)

    def contradictions(self, context: CaseContext) -> Iterable[str]:
        """Several runs in one log: they begin where the first one did, or again and again."""
        back, restart = context.earliest_in_run("step_regression"), restart_step(context)
        first = min((each.first_step for each in context.ranges.values()), default=None)
        if back is not None and back.occurrences > 1:
            yield f"The step went back {back.occurrences} times, as where a log has several runs."
        # Where the trainer states that it resumed, a log may begin there.
        is_stated = context.number(RESUMED_STEP_KEY, "resumed_from") is not None
        if first is not None and restart is not None and restart <= first and not is_stated:
            yield f"Step {restart} is the first of the log, as where it has several runs."
