"""Policy collapse: the policy runs from its reference, and loses what it was rewarded for.

It drifts where the KL term hardly holds it or where steps are too large, until its texts leave
what the reward was made for; then the reward falls off, and texts repeat, grow or thin out.

Clues
    The reward's fall is the heart of it. KL that rose no later than the reward fell is the classic
    sign, entropy or length that left their range before it another: two of three policy runs log
    no KL. Texts that begin to loop beside it are as good as either. A small KL coefficient or
    large steps are why.

Source
    Ouyang et al. 2022 (arXiv:2203.02155) on what the KL term is for; the collapses of the labelled
    logs, where reward, length and entropy leave within 80 points of each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import (
    began_first,
    stronger_kl_advice,
    symptom_evidence,
    weak_kl_control_evidence,
)
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting

MAX_ONSET_DELAY_STEPS = 40
"""Steps by which a policy may seem to run off after its reward fell: a cliff is dated at once, and
a slow rise under noise only where it stands out. The study's runs were dated up to so much late."""


class PolicyCollapse:
    """Judges by the reward's fall, and by what began no later."""

    title: ClassVar[str] = "policy collapse"
    explains: ClassVar[frozenset[str]] = frozenset({
        "kl_blowup", "kl_drift", "reward_collapse", "entropy_collapse", "entropy_explosion",
        "length_explosion", "length_collapse", "repetition", "truncation", "grad_explosion",
        "clip_saturation", "reward_zero_variance", "loss_spike", "loss_divergence", "kl_negative",
        "value_fit",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = Severity.CRITICAL

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The fall and what came before it; nothing without a fall, or with nothing else wrong."""
        reward, loops = (
            context.earliest_symptom("reward_collapse"),
            context.earliest_symptom("repetition"),
        )
        fall = context.earliest_symptom("reward_collapse", "repetition")
        if fall is loops and loops is not None and loops.severity is Severity.INFO:
            # Texts that repeat by nature are no fall.
            fall = reward
        if fall is None:
            return
        before = [
            sign
            for sign in (
                context.earliest_symptom("kl_blowup", "kl_drift"),
                context.earliest_symptom("entropy_collapse", "entropy_explosion"),
                context.earliest_symptom("length_explosion", "length_collapse"),
            )
            if sign is not None
        ]
        # A reward that falls while texts begin to loop is the policy's own doing, whatever led.
        both = reward is not None and loops is not None
        led_by = any(
            began_first(sign, fall, tolerance_steps=MAX_ONSET_DELAY_STEPS) for sign in before
        )
        if not before or not (led_by or both):
            return
        yield from symptom_evidence(fall, 0.5)
        if both:
            yield from symptom_evidence(loops if fall is reward else reward, 0.3)
        for sign in before:
            yield from symptom_evidence(sign, 0.5)
        yield from symptom_evidence(context.earliest_symptom("reward_zero_variance"), 0.2)
        yield from weak_kl_control_evidence(context)

    def remedy(self, context: CaseContext) -> str:
        """Back to before, and hold it tighter."""
        return (
            "Stop it and go on from the last checkpoint before it began, with "
            f"{stronger_kl_advice(context)} and "
            f"{describe_setting('learning rate', context.metadata)} halved. If it happens again at the same "
            "samples, read them: the reward may pay for what nobody wants."
        )
