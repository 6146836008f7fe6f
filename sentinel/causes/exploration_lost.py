"""Exploration lost: the policy has become certain before it became good.

It gives the same answer to the same prompt every time, so that there is nothing to compare, and
nothing that would lead it elsewhere.

Clues
    An entropy that collapsed is the cause itself. Answers that all earn the same, and a reward
    that stands still, are what it leads to; sampling at a low temperature brings it about. Where
    the KL ran away or tokens were clipped well before, or the reward has fallen, it is a symptom.

Source
    Cui et al. 2025 (arXiv:2505.22617): performance is bought with entropy, and ends with it;
    DAPO (arXiv:2503.14476) on the upper clip that keeps rare tokens alive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import began_first, symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting

LOW_TEMPERATURE = 0.7
"""Sampling temperature below which the policy learns from little but its favourites."""


class ExplorationLost:
    """Judges by entropy, and by what is left to compare."""

    title: ClassVar[str] = "the policy has stopped exploring"
    explains: ClassVar[frozenset[str]] = frozenset({
        "entropy_collapse", "reward_zero_variance", "reward_stalled", "grad_vanishing",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The entropy and what follows; nothing where the policy ran off, or lost its reward."""
        certain = context.earliest_symptom("entropy_collapse")
        if certain is None or context.earliest_symptom("reward_collapse", "repetition") is not None:
            return
        if not began_first(
            certain,
            context.earliest_symptom("kl_blowup"),
            context.earliest_symptom("clip_saturation"),
        ):
            return
        yield from symptom_evidence(certain, 0.5)
        yield from symptom_evidence(context.earliest_symptom("reward_zero_variance"), 0.4)
        yield from symptom_evidence(context.earliest_symptom("reward_stalled"), 0.3)
        yield from symptom_evidence(context.earliest_symptom("grad_vanishing"), 0.2)
        temperature = context.number("temperature")
        if temperature is not None and 0 < temperature < LOW_TEMPERATURE:
            yield Evidence(0.2, f"The sampling temperature is {temperature:g}.")

    def remedy(self, context: CaseContext) -> str:
        """Back to where it still tried, and keep it trying."""
        facts = context.metadata
        return (
            "Go back to the last checkpoint before the onset, and keep it exploring: "
            f"{describe_setting('upper clip range', facts)} at 0.28, {describe_setting('entropy bonus', facts)} at "
            f"0.001, {describe_setting('sampling temperature', facts)} at 1. Leave out prompts that it "
            "answers alike every time."
        )
