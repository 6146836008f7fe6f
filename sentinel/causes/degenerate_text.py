"""Degenerate text: the policy repeats itself until its completions are truncated.

Such completions are useless regardless of their reward, and a policy that loops rarely recovers by
itself.

Evidence
    Repeated phrases, more than at the start, are the main evidence; completions that grow or are
    truncated are the visible effect. Without samples, completions that grow while the entropy
    leaves its range show it as well. With a falling reward, it is a policy collapse.

Source
    Welleck et al. 2020 (arXiv:1908.04319) and Holtzman et al. 2020 (arXiv:1904.09751) on repeated
    phrases as a measure of degenerate text.
"""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.causes._evidence import (
    StatedCause,
    is_reported,
    stronger_kl_advice,
    summaries,
    symptom_evidence,
    weighted_evidence,
)
from sentinel.model.diagnosis import CaseContext, Evidence

WITH_REPETITION = {"repetition": 0.7, "length_explosion": 0.6, "truncation": 0.5}
"""Weight of each incident where samples show the repetition."""

WITHOUT_SAMPLES = {"length_explosion": 0.35, "truncation": 0.3}
"""The same where there are no samples."""


class DegenerateText(StatedCause):
    """Diagnoses by repetition in the samples, and by their length."""

    title = "policy that repeats itself"
    explains = frozenset({
        "repetition", "length_explosion", "truncation", "entropy_collapse", "entropy_explosion",
    })  # fmt: skip
    sign = "the completions repeat phrases (log samples, and `entropy`)"

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """Repetition and length, or length and entropy; nothing for repetitive data."""
        repetition = context.earliest("repetition")
        growth = context.earliest("length_explosion")
        if repetition is not None:
            if is_reported(repetition) and (growth or context.earliest("truncation")):
                yield from weighted_evidence(context, WITH_REPETITION)
        elif is_reported(growth):
            # Without samples, an entropy that left its range shows that the texts have changed.
            yield from weighted_evidence(context, WITHOUT_SAMPLES)
            entropy = context.earliest("entropy_collapse", "entropy_explosion")
            yield from symptom_evidence(entropy if is_reported(entropy) else None, 0.45)

    def contradictions(self, context: CaseContext) -> Iterable[str]:
        """Samples that do not loop; with a reward that fell, it is a policy collapse."""
        yield from summaries(context, "reward_collapse")
        repetition = context.values.get("sample_repetition")
        if repetition is not None and "repetition" not in context.symptoms:
            yield f"Texts do not loop: {repetition:.0%} of their phrases are repeated."

    def remedy(self, context: CaseContext) -> str:
        """Resume from before the onset."""
        return (
            "Stop the run, and resume from the last checkpoint before the onset with "
            f"{stronger_kl_advice(context)}. Check that the end-of-text token is trained on and "
            "ends the sampling, and that the reward does not pay for length or repeated words. A "
            "repetition penalty at sampling only hides the problem."
        )
