"""Policy collapse: the policy moves away from its reference, and its reward collapses.

It drifts because the KL term is too weak or the steps are too large, until its texts leave the
range that the reward was made for; then the reward falls, and texts repeat, grow or shrink.

Evidence
    The fall of the reward is the main evidence. A KL that rose no later than the reward fell is the
    classic symptom; an entropy or length that left its range before is another, since two of three
    policy runs log no KL. Texts that begin to loop are as good as either. A small KL coefficient or
    a high learning rate is the reason.

Source
    Ouyang et al. 2022 (arXiv:2203.02155) on the purpose of the KL term; the collapses of the
    labelled logs, where reward, length and entropy leave their range within 80 points of each
    other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import (
    certainly_first,
    possibly_first,
    stronger_kl_advice,
    symptom_evidence,
    weak_kl_control_evidence,
)
from sentinel.causes.reward_function_broken import is_sudden_constant
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting

MAX_ONSET_DELAY_POINTS = 8
"""Logged values by which the drift may appear to begin after the fall of the reward: a cliff is
dated at once, a slow rise only when it exceeds the noise."""

SUDDEN_VALUES = 2
"""Logged rewards without spread, at once and beside an unchanged policy, that may be a fault of the
reward function."""


class PolicyCollapse:
    """Diagnoses by the fall of the reward, and by incidents that began no later."""

    title: ClassVar[str] = "policy collapse"
    explains: ClassVar[frozenset[str]] = frozenset({
        "kl_blowup", "kl_drift", "reward_collapse", "entropy_collapse", "entropy_explosion",
        "length_explosion", "length_collapse", "repetition", "truncation", "grad_explosion",
        "clip_saturation", "reward_zero_variance", "loss_spike", "loss_divergence", "kl_negative",
        "value_fit", "rollout_mismatch",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = Severity.CRITICAL

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The fall and earlier incidents; nothing without either."""
        reward, repetition = context.earliest("reward_collapse"), context.earliest("repetition")
        fall = context.earliest("reward_collapse", "repetition")
        if fall is repetition and repetition is not None and repetition.severity is Severity.INFO:
            # Repetitive data is no fall.
            fall = reward
        if fall is None:
            return
        if reward is not None and is_sudden_constant(context, reward, SUDDEN_VALUES):
            return
        before = [
            symptom
            for symptom in (
                context.earliest("kl_blowup", "kl_drift"),
                context.earliest("entropy_collapse", "entropy_explosion"),
                context.earliest("length_explosion", "length_collapse"),
            )
            if symptom is not None
        ]
        truncation = context.earliest("truncation")
        if (
            truncation is not None
            and truncation.severity is not Severity.INFO
            and certainly_first(fall, truncation)
        ):
            # Completions that were cut off first are a cause of their own.
            before.append(truncation)
        # With both a falling reward and looping texts, the order does not matter.
        has_both = reward is not None and repetition is not None
        tolerance = MAX_ONSET_DELAY_POINTS * context.steps_per_point
        led_by = any(possibly_first(each, fall, tolerance_steps=tolerance) for each in before)
        if not before or not (led_by or has_both):
            return
        yield from symptom_evidence(fall, 0.5)
        if has_both:
            yield from symptom_evidence(repetition if fall is reward else reward, 0.3)
        for symptom in before:
            yield from symptom_evidence(symptom, 0.5)
        yield from symptom_evidence(context.earliest("reward_zero_variance"), 0.2)
        yield from weak_kl_control_evidence(context)

    def remedy(self, context: CaseContext) -> str:
        """Resume from before the onset with a stronger KL term."""
        return (
            "Stop the run, and resume from the last checkpoint before the onset with "
            f"{stronger_kl_advice(context)} and half of "
            f"{describe_setting('learning rate', context.metadata)}. If it recurs at the same "
            "samples, read them: the reward may pay for unwanted text."
        )
