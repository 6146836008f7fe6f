"""Reward hacked: the policy increases the reward in an unintended way.

The reward rises while the policy moves away from its reference and writes longer or repetitive
texts: the reward pays for length, for certain phrases, or for texts unknown to the reward model.

Evidence
    Reward, KL and length that rise together are the main evidence, and so is a reward that rises
    while most completions are cut off: they have no end that could earn it, or while the share of
    correct answers falls. A KL or a length that fires its own detector, and repeated phrases,
    confirm it. A reward that has fallen, or is not above its level before by two standard errors,
    excludes it.

Source
    Gao et al. 2023 (arXiv:2210.10760): the true reward falls with distance while the proxy rises;
    Singhal et al. 2023 (arXiv:2310.03716): length explains most of the gain of reward models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import ClassVar

from sentinel.causes._evidence import (
    StatedCause,
    is_rewarded_though_cut_off,
    mean_error,
    stronger_kl_advice,
    summaries,
    weighted_evidence,
)
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.signals.setting_names import describe_setting

WEIGHTS = {"reward_hacking or reward_component_drop": 0.6, "kl_blowup or kl_drift": 0.4}
"""Weight of a reward that rises with others, and of the KL."""

UNFINISHED = {"truncation": 0.6, "length_explosion": 0.4}
"""Weight of completions that earn more though they are cut off."""

LONGER = {"length_explosion or truncation": 0.4}
"""Weight of completions that only become longer."""

LEVEL_VALUES = 8
"""Logged rewards whose mean is a level."""

LEVEL_ERRORS = 2.0
"""Standard errors by which it exceeds that before: one of many such means does by one error."""


class RewardHacked(StatedCause):
    """Diagnoses by a reward that rises with KL and length."""

    title = "reward hacking"
    explains = frozenset({
        "reward_hacking", "reward_component_drop", "kl_blowup", "kl_drift", "length_explosion",
        "truncation", "repetition",
    })  # fmt: skip
    suggested_by: ClassVar[Mapping[str, float]] = {"length_explosion": 0.25, "length_collapse": 0.3}
    sign = "the completions with the highest reward are not better than earlier ones when read"

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The joint rise and further incidents; nothing if the reward fell."""
        hacking = context.earliest("reward_hacking", "reward_component_drop")
        is_unfinished = is_rewarded_though_cut_off(context.earliest("truncation"))
        if hacking is not None or is_unfinished:
            yield from weighted_evidence(context, WEIGHTS)
            yield from weighted_evidence(context, UNFINISHED if is_unfinished else LONGER)
            yield from weighted_evidence(context, {"repetition": 0.4})

    def contradictions(self, context: CaseContext) -> Iterable[str]:
        """A reward that fell, or is not above what it was."""
        yield from summaries(context, "reward_collapse")
        hacking = context.earliest("reward_hacking", "reward_component_drop")
        began = hacking or context.earliest("truncation")
        points = context.history.get("reward", ())
        before = [reward for step, reward in points if began and step < began.onset_step]
        rewards = [reward for _, reward in points]
        start = began.evidence.get("reward_at_start") if began else None
        if len(before) < LEVEL_VALUES and isinstance(start, float):
            # They are no longer known, or it began with the run.
            before = [start] * LEVEL_VALUES
        if min(len(before), len(rewards)) >= LEVEL_VALUES:
            error = mean_error(rewards, len(before), LEVEL_VALUES)
            if fmean(rewards[-LEVEL_VALUES:]) <= fmean(before) + LEVEL_ERRORS * error:
                yield "The reward has not risen."

    def remedy(self, context: CaseContext) -> str:
        """Read samples, use the best checkpoint, and fix the reward."""
        if is_rewarded_though_cut_off(context.earliest("truncation")):
            mask = describe_setting("mask for truncated completions", context.metadata)
            return (
                "Read the completions with the highest reward: they are cut off, and have no end "
                "that could earn it. Remove the length from the reward, and give a truncated "
                f"completion none, or exclude it from the loss with {mask}. Then resume from the "
                "checkpoint before the onset."
            )
        return (
            "Read the completions with the highest reward, and score the checkpoints with a "
            "measure that is not trained on; use the best one. To continue, remove length and "
            "repetition from the reward, or retrain the reward model on samples of the present "
            f"policy; {stronger_kl_advice(context)} only slows the problem down."
        )
