"""Resume lost state: the run went on from its weights, and left optimizer or scheduler behind.

Without its moments the optimizer takes first steps far too long; without its state the schedule
begins again, at a warm-up or at a peak that was long over.

Clues
    A learning rate that is another than at that step before the restart is proof by itself. A loss
    or gradients that leave their level within `SOON` steps of a restart are strong: nothing else
    changed there.

Source
    ultralytics/yolov5 issue 292 and many like it, of schedules reset on resume; a tiny training
    whose schedule begins again, in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import symptom_evidence
from sentinel.model.diagnosis import RESUMED_STEP_KEY, CaseContext, Evidence, Symptom
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting

MAX_STEPS_AFTER_RESTART = 32
"""Steps after a restart in which what goes wrong is put down to it."""

ONSET_TOLERANCE_STEPS = 4
"""Steps by which an onset may be dated too early."""


class ResumeLostState:
    """Judges by what went wrong right after a restart."""

    title: ClassVar[str] = "state lost on resume"
    explains: ClassVar[frozenset[str]] = frozenset({
        "learning_rate_anomaly", "loss_divergence", "loss_spike", "grad_explosion",
        "step_regression",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """What is another than before the restart; nothing without one."""
        again = _restart_step(context)
        if again is None:
            return
        rate, away = (
            context.symptoms.get("learning_rate_anomaly"),
            context.symptoms.get("loss_divergence"),
        )
        steep, jump = context.symptoms.get("grad_explosion"), context.symptoms.get("loss_spike")
        clues = [
            clue
            for sign, weight in ((rate, 0.7), (away, 0.5), (steep, 0.4), (jump, 0.3))
            if _is_soon_after(sign, again)
            for clue in symptom_evidence(sign, weight)
        ]
        if clues:
            yield from clues
            yield Evidence(0.4, f"The run began again at step {again}.", again)

    def remedy(self, context: CaseContext) -> str:
        """Once more from the same checkpoint, with everything it holds."""
        return (
            "Stop it, and resume the whole state from the checkpoint that it went on from: "
            "weights, optimizer, scheduler and loss scaler "
            f"({describe_setting('checkpoint to resume from', context.metadata)}, not a model loaded by its path). "
            "If that checkpoint has no optimizer, turn "
            f"{describe_setting('weights-only saving', context.metadata)} off, and begin the rest with a "
            "warm-up of some hundred steps up to the rate it had."
        )


def _restart_step(context: CaseContext) -> int | None:
    """The first step after the run last went on; in a log only a step that went back tells.

    A run that began again at its first step went on from nothing, and left nothing behind.
    """
    told = context.number(RESUMED_STEP_KEY, "resumed_from")
    back = context.symptoms.get("step_regression")
    if told is None and back is not None and back.severity is not Severity.CRITICAL:
        told = back.onset_step
    anew = max(1.0, context.number("logging_steps") or 1.0)
    return None if told is None or told <= anew else int(told)


def _is_soon_after(symptom: Symptom | None, restart_step: int) -> bool:
    return (
        symptom is not None
        and -ONSET_TOLERANCE_STEPS <= symptom.onset_step - restart_step <= MAX_STEPS_AFTER_RESTART
    )
