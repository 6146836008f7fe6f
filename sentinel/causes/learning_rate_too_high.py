"""Learning rate too high: updates are too large, so that the loss oscillates or diverges.

The loss rises at the end of a warm-up, or at once without one, and so does the gradient norm;
slightly above the stable rate, the loss oscillates instead.

Evidence
    A loss that diverged, oscillates or jumps repeatedly is the main evidence; a rising gradient
    norm supports it. A rate above the usual for this kind of training, without a warm-up, is the
    reason, and makes even a single jump count.

Source
    Cohen et al. 2021 (arXiv:2103.00065) on the edge of stability; Wortsman et al. 2023
    (arXiv:2309.14322) on rates that diverge. Tiny trainings at 100 times their rate, in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import FAST_LEARNING_RATE, possibly_first, symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence, Symptom
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting

REWARD_OR_PREFERENCE_ALGORITHMS = frozenset({
    "grpo", "rloo", "ppo", "gae", "online_dpo", "dpo", "kto", "orpo", "cpo",
})  # fmt: skip
"""Algorithms that change a trained policy slightly."""

HIGH_FINE_TUNING_RATE = 1e-4
"""Learning rate above which full fine-tuning of a language model is fast."""

HIGH_TRAINING_RATE = 1e-2
"""Learning rate above which any training is fast."""

EARLY_STEPS = 200
"""Steps in which a warm-up would help."""


class LearningRateTooHigh:
    """Diagnoses by divergence, oscillation or jumps of the loss, and by the rate itself."""

    title: ClassVar[str] = "learning rate too high"
    explains: ClassVar[frozenset[str]] = frozenset({
        "loss_divergence", "loss_spike", "oscillation", "grad_explosion", "nan_or_inf",
        "loss_plateau",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """An unstable loss and its reason; nothing for a single jump at a usual rate."""
        divergence, oscillation = (
            context.symptoms.get("loss_divergence"),
            context.symptoms.get("oscillation"),
        )
        spike, high_rate = context.symptoms.get("loss_spike"), _high_rate_evidence(context)
        has_recurred = spike is not None and spike.occurrences > 1
        # Where the loss jumped in one step and stays high, a batch may have caused it as well.
        is_jump = spike is not None and (divergence is None or _is_same_event(spike, divergence))
        is_gradual = divergence is not None and not is_jump
        if not (is_gradual or oscillation is not None or has_recurred or (is_jump and high_rate)):
            return
        yield from symptom_evidence(divergence, 0.45)
        yield from symptom_evidence(oscillation, 0.45)
        yield from symptom_evidence(spike, 0.4 if has_recurred else 0.2)
        yield from symptom_evidence(context.symptoms.get("grad_explosion"), 0.4)
        yield from symptom_evidence(context.symptoms.get("nan_or_inf"), 0.2)
        yield from high_rate
        began = context.earliest("loss_divergence", "oscillation", "loss_spike")
        if began is not None and began.onset_step <= EARLY_STEPS and _has_no_warmup(context):
            yield Evidence(0.2, "The run has no warm-up.")

    def remedy(self, context: CaseContext) -> str:
        """Smaller updates, from before the onset."""
        return (
            "Resume from the last checkpoint before the onset with a third of "
            f"{describe_setting('learning rate', context.metadata)}. If it began within the first "
            f"steps, lengthen {describe_setting('warm-up', context.metadata)} as well. Set "
            f"{describe_setting('gradient clipping', context.metadata)} to the usual gradient norm."
        )


def _is_same_event(one: Symptom, other: Symptom) -> bool:
    return possibly_first(one, other) and possibly_first(other, one)


def _high_rate_evidence(context: CaseContext) -> list[Evidence]:
    """A rate that is high for this kind of training, as evidence."""
    rates = (context.number("learning_rate"), context.values.get("learning_rate"))
    rate = max((rate for rate in rates if rate is not None), default=0.0)
    if context.text("algorithm") in REWARD_OR_PREFERENCE_ALGORITHMS:
        usual, kind = FAST_LEARNING_RATE, "training by rewards or preferences"
    elif context.text("framework") in {"transformers", "trl", "verl"}:
        usual, kind = HIGH_FINE_TUNING_RATE, "fine-tuning"
    else:
        usual, kind = HIGH_TRAINING_RATE, "any training"
    if "peft" in context.metadata:
        usual, kind = 10.0 * usual, f"{kind} with adapters"
    return (
        [Evidence(0.3, f"The learning rate is {rate:g}, high for {kind}.")] if rate > usual else []
    )


def _has_no_warmup(context: CaseContext) -> bool:
    settings = [context.number("warmup_steps"), context.number("warmup_ratio")]
    return not any(settings) and any(value is not None for value in settings)
