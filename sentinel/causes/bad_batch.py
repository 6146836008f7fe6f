"""Bad batch: a few examples caused a single jump of the loss, and training recovered.

Evidence
    One jump of the loss, and of the gradient norm at the same step, or one of the norm alone, after
    which it is as before. A loss that stays high, oscillates or jumps repeatedly has another cause,
    and so has a reward or an entropy that stays off its level, or a jump at a rate far above the
    usual.

Source
    Chowdhery et al. 2022 (arXiv:2204.02311), section 5.1: jumps of the loss did not occur when the
    run was restarted before them and some hundred batches were skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from sentinel.causes._evidence import (
    StatedCause,
    is_back,
    is_reported,
    summaries,
    weighted_evidence,
)
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.signals.setting_names import describe_setting

MAX_FACTOR_BACK = 3.0
"""Factor on its level before by which a gradient norm that is back can differ."""

MAX_POINTS_APART = 3
"""Logged values between the onsets of two jumps of the same batch."""


_LASTING = ("loss_divergence", "reward_collapse", "entropy_collapse", "entropy_explosion")
"""Detectors of effects that end soon after the batch."""


class BadBatch(StatedCause):
    """Diagnoses by a jump of loss and gradient norm at one step without consequences."""

    title = "bad batch"
    explains = frozenset({"loss_spike", "grad_explosion"})
    suggested_by: ClassVar[Mapping[str, float]] = {"loss_spike": 0.35, "grad_explosion": 0.35}
    sign = (
        "the gradient norm is as before within a few steps, and the batches of that step hold "
        "broken or repeated text"
    )

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The jumps and the recovery; nothing if there were more jumps."""
        spike = context.symptoms.get("loss_spike")
        explosion = context.symptoms.get("grad_explosion")
        if explosion is None or (spike is not None and spike.occurrences > 1):
            return
        apart = 0 if spike is None else abs(spike.onset_step - explosion.onset_step)
        if apart > MAX_POINTS_APART * context.steps_per_point:
            return
        yield from weighted_evidence(context, {"loss_spike": 0.35, "grad_explosion": 0.35})
        if is_back(context, "grad_norm", explosion, MAX_FACTOR_BACK):
            yield Evidence(0.4, "The gradient norm is as before again.")

    def contradictions(self, context: CaseContext) -> Iterable[str]:
        """A loss that stays high or swings, and what a batch does not change for long."""
        others = ("oscillation", "nan_or_inf", "rank_outlier", "learning_rate_high")
        yield from summaries(context, *others)
        for name in _LASTING:
            lasting = context.symptoms.get(name)
            if is_reported(lasting) and not lasting.is_over:
                yield lasting.summary

    def remedy(self, context: CaseContext) -> str:
        """Wait first, since most recover."""
        jump = context.symptoms.get("loss_spike")
        at = "" if jump is None else f" of step {jump.onset_step}"
        return (
            f"Wait: most losses recover within about ten steps. Inspect the batches{at} and of the "
            "few steps before (repeated text, broken files, other units). If the loss does not "
            "recover, resume from the last checkpoint before the onset, skip these batches, and "
            f"lower {describe_setting('gradient clipping', context.metadata)}."
        )
