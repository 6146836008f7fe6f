"""Exploration lost: the policy has become deterministic before it became good.

It gives the same completion to a prompt every time, so there is nothing to compare and nothing new
is tried.

Evidence
    An entropy that collapsed is the cause itself. Groups with one reward and a reward that
    stagnates are its effects; a low sampling temperature contributes. If the KL rose or tokens were
    clipped before, the reward fell before or far, completions grow or texts loop, it is a symptom.
    An entropy that is back excludes it.

Source
    Cui et al. 2025 (arXiv:2505.22617): reward is gained at the cost of entropy, and the gain ends
    with it; DAPO (arXiv:2503.14476) on the upper clip range that preserves rare tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from sentinel.causes._evidence import (
    StatedCause,
    is_back,
    is_reported,
    possibly_first,
    summaries,
    symptom_evidence,
    weighted_evidence,
)
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting

COMPLETION_SIGNALS = ("completion_length", "frac_zero_std", "reward_std")
"""Signals of runs that sample completions of prompts."""

SAMPLING_SIGNALS = (*COMPLETION_SIGNALS, "reward")
"""Signals of runs that are trained by reward; others do not explore."""

MAX_FACTOR_BACK = 2.0
"""Factor on its level before by which an entropy that is back can differ: a collapse is to less
than a sixth of it."""

LOW_TEMPERATURE = 0.7
"""Sampling temperature below which samples hardly vary."""


class ExplorationLost(StatedCause):
    """Diagnoses by entropy and by groups with one reward."""

    title = "loss of exploration"
    explains = frozenset({
        "entropy_collapse", "reward_zero_variance", "reward_stalled", "grad_vanishing",
        "reward_collapse",
    })  # fmt: skip
    suggested_by: ClassVar[Mapping[str, float]] = {"entropy_collapse": 0.4}
    sign = "several completions of one prompt are the same (log `entropy`), and stay so"
    excluded_by = frozenset({"length_explosion", "truncation"})

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """Entropy and effects; nothing if KL or reward changed first."""
        certain, fall = context.earliest("entropy_collapse"), context.earliest("reward_collapse")
        is_sampled = any(name in context.values for name in SAMPLING_SIGNALS)
        if not is_reported(certain) or not is_sampled:
            return
        drifts = (context.earliest("kl_blowup"), context.earliest("clip_saturation"))
        earlier = [each for each in drifts if each is not None and not each.is_over]
        if not possibly_first(certain, fall, *earlier):
            return
        yield from weighted_evidence(
            context, {"entropy_collapse": 0.65, "reward_zero_variance": 0.4}
        )
        yield from symptom_evidence(fall or context.earliest("reward_stalled"), 0.3)
        yield from weighted_evidence(context, {"grad_vanishing": 0.2})
        temperature = context.number("temperature")
        if temperature is not None and 0 < temperature < LOW_TEMPERATURE:
            yield Evidence(0.2, f"The sampling temperature is {temperature:g}.")

    def contradictions(self, context: CaseContext) -> Iterable[str]:
        """An entropy that is back, and texts or rewards that show more than certainty."""
        certain, fall = context.earliest("entropy_collapse"), context.earliest("reward_collapse")
        is_again = certain is not None and is_back(context, "entropy", certain, MAX_FACTOR_BACK)
        if certain is not None and (certain.is_over or is_again):
            yield "The entropy is as before again."
        yield from summaries(context, "repetition")
        if fall is not None and fall.severity is Severity.CRITICAL:
            yield fall.summary

    def remedy(self, context: CaseContext) -> str:
        """Resume from before the onset with more exploration."""
        metadata, prompts = context.metadata, ""
        if any(name in context.values for name in COMPLETION_SIGNALS):
            prompts = " Leave out prompts whose completions are always the same."
        return (
            "Resume from the last checkpoint before the onset with more exploration: "
            f"{describe_setting('upper clip range', metadata)} at 0.28, "
            f"{describe_setting('entropy bonus', metadata)} at 0.001, "
            f"{describe_setting('sampling temperature', metadata)} at 1.{prompts}"
        )
