"""Degenerate text: the policy repeats itself until its completions are truncated.

Such completions are useless regardless of their reward, and a policy that loops rarely recovers by
itself.

Evidence
    Repeated phrases, more than at the start, are the main evidence; completions that grow or are
    truncated are the visible effect. With a KL or an entropy that left its range before, or a
    falling reward, it is a policy collapse.

Source
    Welleck et al. 2020 (arXiv:1908.04319) and Holtzman et al. 2020 (arXiv:1904.09751) on repeated
    phrases as a measure of degenerate text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import stronger_kl_advice, symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity


class DegenerateText:
    """Diagnoses by repetition in the samples, and by their length."""

    title: ClassVar[str] = "policy that repeats itself"
    explains: ClassVar[frozenset[str]] = frozenset({
        "repetition", "length_explosion", "truncation",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """Repetition and length; nothing for repetitive data, or if the reward fell."""
        repetition = context.earliest("repetition")
        if repetition is None or repetition.severity is Severity.INFO:
            return
        growth, truncation = context.earliest("length_explosion"), context.earliest("truncation")
        if context.earliest("reward_collapse") is not None or (
            growth is None and truncation is None
        ):
            return
        yield from symptom_evidence(repetition, 0.7)
        yield from symptom_evidence(growth, 0.6)
        yield from symptom_evidence(truncation, 0.5)

    def remedy(self, context: CaseContext) -> str:
        """Resume from before the onset."""
        return (
            "Stop the run, and resume from the last checkpoint before the onset with "
            f"{stronger_kl_advice(context)}. Check that the end-of-text token is trained on and "
            "ends the sampling, and that the reward does not pay for length or repeated words. A "
            "repetition penalty at sampling only hides the problem."
        )
