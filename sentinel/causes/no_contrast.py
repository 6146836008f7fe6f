"""No contrast: all completions of a prompt have the same reward although they differ.

A policy that is compared with itself learns from differences of reward. Prompts that it always
solves, or never does, have none; nor has a reward that does not distinguish completions.

Evidence
    Groups with one reward are the cause itself. A healthy entropy shows that the completions
    differ; a reward that never rose that they were all wrong from the start; few completions per
    prompt make it likelier. If entropy or KL may have left their range first, that is the reason. A
    reward that has fallen is a collapse, or a broken reward function.

Source
    DAPO (arXiv:2503.14476), which skips prompts that are all right or all wrong; the advantage of
    GRPO (arXiv:2402.03300), which is 0 for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import ClassVar

from sentinel.causes._evidence import (
    StatedCause,
    certainly_first,
    mean_error,
    possibly_first,
    weighted_evidence,
)
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.key_assignment import is_game
from sentinel.signals.setting_names import describe_setting

WEIGHTS = {"reward_zero_variance": 0.5, "reward_stalled": 0.3, "grad_vanishing": 0.2}
"""Weight of the groups, and of each of their effects."""

FEW_GENERATIONS = 4
"""Completions per prompt at which groups are often all right or all wrong."""

HEALTHY_ENTROPY = 0.1
"""Nats per token above which completions are hardly ever equal."""

LEVEL_VALUES, CURRENT_VALUES = 8, 5
"""Logged rewards whose mean is the level before, and now."""

LOST_SHARE, LOST_STANDARD_ERRORS = 0.5, 6.0
"""Share of the best level above the lowest reward, and standard errors, that are a fall."""


class NoContrast(StatedCause):
    """Diagnoses by groups with one reward, of an otherwise healthy policy."""

    title = "prompts whose completions have equal rewards"
    explains = frozenset({
        "reward_zero_variance", "reward_stalled", "grad_vanishing",
    })  # fmt: skip
    suggested_by: ClassVar[Mapping[str, float]] = {"reward_stalled": 0.4}
    sign = (
        "the completions of a prompt differ as texts (log `entropy`), and have the same "
        "reward (log `reward_std`)"
    )

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The groups and their reason; nothing if another incident explains them."""
        uniform = context.earliest("reward_zero_variance")
        earlier = context.earliest_in_run("entropy_collapse", "kl_blowup", "repetition")
        if uniform is None or (earlier is not None and possibly_first(earlier, uniform)):
            return
        rewards = [reward for _, reward in context.history.get("reward", ())]
        is_first = certainly_first(uniform, context.earliest_in_run("reward_collapse"))
        # Groups that were idle because they were solved may be idle now since all fail.
        if not is_first or _has_fallen(rewards):
            return
        yield from weighted_evidence(context, WEIGHTS)
        entropy = context.values.get("entropy")
        if entropy is not None and entropy > HEALTHY_ENTROPY:
            yield Evidence(0.2, f"Entropy is {entropy:.3g} nats per token, so completions differ.")
        count = context.number("num_generations")
        if count is not None and count <= FEW_GENERATIONS:
            yield Evidence(0.2, f"There are only {count:g} completions per prompt.")

    def contradictions(self, context: CaseContext) -> Iterable[str]:
        """Groups that differ again, or a run without prompts."""
        if is_game(context.values):
            yield "The run plays episodes: it has no prompts with several completions."
        uniform = context.earliest("reward_zero_variance")
        if uniform is not None and uniform.is_over:
            yield "The completions of a prompt have different rewards again."

    def remedy(self, context: CaseContext) -> str:
        """Depends on whether the prompts are solved or too hard."""
        metadata, uniform = context.metadata, context.earliest("reward_zero_variance")
        is_solved = uniform is not None and uniform.severity is Severity.INFO
        advice = (
            "The prompts are solved: use harder ones, or stop here. "
            if is_solved
            else "Score a correct completion manually: if it has no reward, fix the parsing of the "
            "reward. Otherwise start with easier prompts, or some supervised training. "
        )
        return (
            f"{advice}Skip prompts whose completions have the same reward (with "
            f"{describe_setting('filter for zero-variance groups', metadata)} if available), and "
            f"set {describe_setting('number of completions per prompt', metadata)} to 8 to 16."
        )


def _has_fallen(rewards: Sequence[float]) -> bool:
    """Whether most of the best level of these rewards is lost, beyond their noise."""
    before, now = rewards[:-CURRENT_VALUES], rewards[-CURRENT_VALUES:]
    if len(before) < LEVEL_VALUES:
        return False
    levels = (fmean(before[i : i + LEVEL_VALUES]) for i in range(len(before) - LEVEL_VALUES + 1))
    best = max(levels)
    error = mean_error(rewards, LEVEL_VALUES, CURRENT_VALUES)
    least = max(LOST_SHARE * (best - min(rewards)), LOST_STANDARD_ERRORS * error)
    return bool(best - fmean(now) > least)
