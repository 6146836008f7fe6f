"""Schedule too fast: the learning-rate schedule advances several times an update, or is spent.

Formula
    Finding  = a scheduler of the optimizer takes two or more steps in each of 5 updates in a row;
               or in 5 of the first 20 updates in a row, each with a step of a scheduler, the rate
               is at most 1e-4 of its highest so far; or within these updates the rate falls that
               low and one scheduler raises it again to 1e-2 of its highest

Units
    There are no settings. Updates: steps of the optimizer.

Source
    With gradient accumulation, a scheduler that is stepped after each backward pass ends its
    schedule after a fraction of the run, at a learning rate of 0. So does a schedule of epochs that
    is stepped after each batch: leftthomas/SRGAN issue 94.

Defaults
    Schedulers of Accelerate, which take one step for each process, are left out, and so are
    schedulers stepped once an epoch, and trainings with several optimizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sentinel.detectors._training_check import Problem, ReportedCheck


class ScheduleTooFast(ReportedCheck):
    """Evaluates the check `schedule`."""

    check = "schedule"
    unreported = (
        "The check needs 5 updates with a step of a learning-rate scheduler, and one optimizer."
    )
    signal = "learning_rate"
    remedy = (
        "Call `scheduler.step()` once for each `optimizer.step()`, after it. If the schedule is "
        "meant to advance faster, give it fewer steps in all instead."
    )
    problems: ClassVar[Mapping[str, Problem]] = {
        "once_a_pass": Problem(
            "The learning-rate schedule advances {schedule_steps:.0f} times an update, once for "
            "each backward pass.",
            remedy,
        ),
        "several": Problem(
            "The learning-rate schedule advances {schedule_steps:.0f} times an update.", remedy
        ),
        "spent": Problem(
            "The learning-rate schedule is spent after {updates:.0f} updates: the rate is next to "
            "0, after {highest:.3g} at first, and no later step changes the model.",
            "Give the schedule the number of updates of the whole run. If it counts epochs, call "
            "`scheduler.step()` once for each epoch, after its last batch.",
        ),
        "repeats": Problem(
            "The learning-rate schedule is over after {updates:.0f} updates and begins again: the "
            "rate falls from {highest:.3g} to next to 0 and rises again, time after time.",
            "Give the schedule the number of updates of the whole run, such as `T_max` or "
            "`num_training_steps`: that is batches per epoch times epochs. If it counts epochs, "
            "call `scheduler.step()` once for each epoch, after its last batch.",
        ),
    }
