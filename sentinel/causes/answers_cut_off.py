"""Answers cut off: the maximum completion length is too short for the policy.

A truncated completion earns the reward of an unfinished one, however good its start. The policy is
trained against long reasoning, and the reward stagnates or falls.

Evidence
    Many truncated completions are the main evidence; completions that grow towards the limit are
    the reason, and a reward that stagnates or falls is the effect. Samples without repetition show
    that the texts make progress. If texts loop, KL or entropy have left their range, or no
    completion has a reward any more, length is a symptom.

Source
    DAPO (arXiv:2503.14476), section 3.4, on the effect of truncated completions on the reward;
    Dr. GRPO (arXiv:2503.20783) on why completions grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from sentinel.causes._evidence import (
    StatedCause,
    is_reported,
    is_rewarded_though_cut_off,
    possibly_first,
    summaries,
    symptom_evidence,
)
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity

EXCLUDING_DETECTORS = ("kl_blowup", "entropy_collapse", "entropy_explosion", "repetition")

NEAR_LIMIT_SHARE = 0.6
"""Mean length, as a fraction of the limit, above which long completions reach the limit."""

LOOPING_SHARE = 0.35
"""Share of repeated phrases above which texts loop, as in the detector repetition."""


class AnswersCutOff(StatedCause):
    """Diagnoses by truncation and length of texts that do not loop."""

    title = "completions cut off at the maximum length"
    explains = frozenset({
        "truncation", "length_explosion", "reward_stalled", "reward_collapse",
    })  # fmt: skip
    suggested_by: ClassVar[Mapping[str, float]] = {"length_explosion": 0.3}
    sign = "the ends of truncated completions still make progress"
    advice = (
        "Read the end of a few truncated completions. If they make progress, raise {maximum "
        "completion length}, or exclude them from the loss with {mask for truncated completions}. "
        "If they ramble, let the reward decrease before the limit, so that shorter completions "
        "earn more."
    )

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """Truncation and its reason; nothing if the policy has another fault."""
        truncation, growth = context.earliest("truncation"), context.earliest("length_explosion")
        fall = context.earliest("reward_collapse")
        if truncation is None or is_rewarded_though_cut_off(truncation):
            return
        is_mild = truncation.severity is Severity.INFO
        if fall is not None and (
            (growth is None and is_mild) or not possibly_first(truncation, fall)
        ):
            # Many healthy runs truncate a third of their completions without a loss of reward.
            return
        yield from symptom_evidence(truncation, 0.4 if is_mild else 0.6)
        yield from symptom_evidence(growth, 0.3)
        yield from symptom_evidence(fall or context.earliest("reward_stalled"), 0.4)
        length, limit = (
            context.values.get("completion_length"),
            context.number("max_completion_length"),
        )
        if length is not None and limit is not None and length > NEAR_LIMIT_SHARE * limit:
            yield Evidence(
                0.3, f"The mean completion has {length:.4g} of at most {limit:g} tokens."
            )
        repetition = context.values.get("sample_repetition")
        if repetition is not None and repetition < LOOPING_SHARE:
            yield Evidence(
                0.2, f"Texts do not loop: {repetition:.0%} of their phrases are repeated."
            )

    def contradictions(self, context: CaseContext) -> Iterable[str]:
        """A policy that changed otherwise, or of which no completion has a reward any more."""
        yield from summaries(context, *EXCLUDING_DETECTORS)
        uniform = context.symptoms.get("reward_zero_variance")
        if is_reported(uniform) and is_reported(context.symptoms.get("reward_collapse")):
            yield "Completions that were cut off last have no reward either."
