"""Learning rate too high: steps are longer than the loss bears, so that it swings or climbs.

It throws the loss up at the end of a warm-up, or at once where there is none, and gradients with
it; just above what is borne, the loss swings at a beat instead.

Clues
    A loss that left for good, swings, or jumps again and again is the heart of it; gradients that
    grow beside it make it likely. A rate above what such a training takes, without a warm-up, says
    why, and lets even a single jump count.

Source
    Cohen et al. 2021 (arXiv:2103.00065) on the edge of stability; Wortsman et al. 2023
    (arXiv:2309.14322) on rates that diverge. Tiny trainings at 100 times their rate, in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import FAST_LEARNING_RATE, symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting

REWARD_OR_PREFERENCE_ALGORITHMS = frozenset({
    "grpo", "rloo", "ppo", "gae", "online_dpo", "dpo", "kto", "orpo", "cpo",
})  # fmt: skip
"""Algorithms that move a policy a little from where it is."""

HIGH_FINE_TUNING_RATE = 1e-4
"""Learning rate above which tuning all of a language model is fast; adapters take ten times it."""

HIGH_TRAINING_RATE = 1e-2
"""Learning rate above which any common training is fast."""

EARLY_STEPS = 200
"""Steps in which a warm-up would have helped."""


class LearningRateTooHigh:
    """Judges by a loss that leaves, swings or jumps, by the gradients, and by the rate itself."""

    title: ClassVar[str] = "learning rate too high"
    explains: ClassVar[frozenset[str]] = frozenset({
        "loss_divergence", "loss_spike", "oscillation", "grad_explosion", "nan_or_inf",
        "loss_plateau",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """A loss in turmoil, and why; nothing for one jump at a rate not known to be high."""
        away, swing = context.symptoms.get("loss_divergence"), context.symptoms.get("oscillation")
        jump, fast = context.symptoms.get("loss_spike"), _high_rate_evidence(context)
        again = jump is not None and jump.occurrences > 1
        if away is None and swing is None and not again and not (jump is not None and fast):
            return
        yield from symptom_evidence(away, 0.45)
        yield from symptom_evidence(swing, 0.45)
        yield from symptom_evidence(jump, 0.4 if again else 0.2)
        yield from symptom_evidence(context.symptoms.get("grad_explosion"), 0.4)
        yield from symptom_evidence(context.symptoms.get("nan_or_inf"), 0.2)
        yield from fast
        began = context.earliest_symptom("loss_divergence", "oscillation", "loss_spike")
        if began is not None and began.onset_step <= EARLY_STEPS and _has_no_warmup(context):
            yield Evidence(0.2, "The run has no warm-up.")

    def remedy(self, context: CaseContext) -> str:
        """Shorter steps, from before the onset."""
        return (
            "Go back to the last checkpoint before the onset and set "
            f"{describe_setting('learning rate', context.metadata)} to a third; if it began within the first "
            f"steps, lengthen {describe_setting('warm-up', context.metadata)} as well. Clip gradients with "
            f"{describe_setting('gradient clipping', context.metadata)} at what was their usual norm."
        )


def _high_rate_evidence(context: CaseContext) -> list[Evidence]:
    """A rate that is high for this kind of training."""
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
    told = [context.number("warmup_steps"), context.number("warmup_ratio")]
    return any(told) is False and any(each is not None for each in told)
