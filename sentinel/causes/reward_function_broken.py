"""Reward function broken: the reward became constant while the policy did not change.

A scoring server that returns a default, a parser that fails, a judge whose quota is spent: all
completions then have the same reward, independent of the policy.

Evidence
    A reward that fell within two records to one value, and has had that value, without any spread,
    in all records since, at least five. KL, entropy or length are logged, and each is as it was
    before the fall: if none of them is logged, or if one changed, it may be a policy collapse or
    truncated completions. The same holds for incidents of the policy that may have come first.

Source
    The reward functions of huggingface/trl and verl, which run outside the trainer and may return a
    default on an error; DanceGRPO issue 55 for a reward that falls for another reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from math import isclose
from statistics import fmean, median
from typing import ClassVar

from sentinel.causes._evidence import possibly_first, symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity

POLICY_SIGNALS = ("kl_ref", "entropy", "completion_length", "truncated_fraction")

POLICY_DETECTORS = (
    "kl_blowup", "kl_drift", "entropy_collapse", "entropy_explosion", "length_explosion",
    "length_collapse", "truncation", "repetition", "grad_explosion", "rollout_mismatch",
    "clip_saturation",
)  # fmt: skip

MIN_CONSTANT_VALUES = 5
"""Logged rewards that must be the same: groups can all fail by chance in a few records."""

BEFORE_VALUES, MIN_BEFORE_VALUES = 32, 8
"""Logged values before the fall that show the usual level."""

AFTER_VALUES = 8
"""Logged values after the fall in which the policy must be unchanged; it may drift later."""

MAX_CHANGE_SPREADS, MAX_CHANGE_SHARE, MAX_TRUNCATION_CHANGE = 2.0, 0.05, 0.1
"""Change of a policy signal that is none: standard deviations plus a share of the level. The
standard error of the mean of five values is 0.45 standard deviations."""

DATING_POINTS = 2
"""Logged values by which the constant may begin after the fall: one record can be a mixture."""


class RewardFunctionBroken:
    """Diagnoses by a reward that fell to a constant while the policy did not change."""

    title: ClassVar[str] = "the reward function returns a constant"
    explains: ClassVar[frozenset[str]] = frozenset({
        "reward_collapse", "reward_zero_variance", "grad_vanishing", "reward_stalled",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = Severity.CRITICAL

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The fall and the constant; nothing if the policy changed, or is unknown."""
        fall, constant_since = context.earliest("reward_collapse"), _constant_since(context)
        if fall is None or constant_since is None or not _is_sudden(context, constant_since):
            return
        if constant_since > fall.latest_onset + DATING_POINTS * context.steps_per_point:
            return
        known = [name for name in POLICY_SIGNALS if name in context.history]
        if not known or not all(_is_unchanged(context, name, constant_since) for name in known):
            return
        incidents = (context.earliest_in_run(name) for name in POLICY_DETECTORS)
        if any(each is not None and possibly_first(each, fall) for each in incidents):
            return
        yield from symptom_evidence(fall, 0.4)
        yield from symptom_evidence(context.earliest("reward_zero_variance"), 0.4)
        reward = context.history["reward"][-1][1]
        yield Evidence(
            0.5, f"All completions have had the reward {reward:.4g} since.", constant_since
        )
        values = ", ".join(f"{name} {context.values[name]:.3g}" for name in known)
        yield Evidence(0.2, f"The policy has not changed: {values}.")

    def remedy(self, context: CaseContext) -> str:
        """Fix the reward function; resume from before its fault."""
        fall = context.earliest("reward_collapse", "reward_zero_variance")
        since = "the onset" if fall is None else f"step {fall.onset_step}"
        return (
            f"Check the log of the reward function or its server at {since}: time-outs, a spent "
            "quota, a format that it cannot parse. Call it manually with a completion that had a "
            "reward before. Then resume from the last checkpoint before the onset. Let the reward "
            "function retry on errors, and stop the run instead of returning a default."
        )


def _constant_since(context: CaseContext) -> int | None:
    """The step since which all rewards are the same; None if they vary or are too few."""
    points = context.history.get("reward", ())
    if not points:
        return None
    newest = points[-1][1]
    spreads = dict(context.history.get("reward_std", ()))
    idle_shares = dict(context.history.get("frac_zero_std", ()))
    constant = [
        step
        for step, _ in takewhile(
            lambda point: (
                isclose(point[1], newest, rel_tol=1e-6, abs_tol=1e-9)
                and abs(spreads.get(point[0], 0.0)) < 1e-9
                and idle_shares.get(point[0], 1.0) > 1.0 - 1e-9
            ),
            reversed(points),
        )
    ]
    return constant[-1] if len(constant) >= MIN_CONSTANT_VALUES else None


def _is_sudden(context: CaseContext, constant_since: int) -> bool:
    """Whether the reward was at its usual level until two records before the constant."""
    values, after = _split(context.history["reward"], constant_since)
    before = values[:-1]
    if len(before) < MIN_BEFORE_VALUES:
        return False
    usual, last = median(before), fmean(before[-3:])
    return abs(last - after[0]) > 0.5 * abs(usual - after[0]) > 0.0


def _is_unchanged(context: CaseContext, signal: str, constant_since: int) -> bool:
    """Whether a signal of the policy is as it was before the reward became constant."""
    before, after = _split(context.history[signal], constant_since)
    if len(before) < MIN_BEFORE_VALUES or not after:
        return False
    usual = median(before)
    spread = 1.48 * median(abs(value - usual) for value in before)
    allowed = MAX_CHANGE_SPREADS * spread + MAX_CHANGE_SHARE * abs(usual)
    if signal == "truncated_fraction":
        allowed += MAX_TRUNCATION_CHANGE
    return abs(median(after) - usual) <= allowed


def _split(points: Sequence[tuple[int, float]], step: int) -> tuple[list[float], list[float]]:
    """Values before that step, and from it on."""
    before = [value for at, value in points if at < step]
    after = [value for at, value in points if at >= step]
    return before[-BEFORE_VALUES:], after[:AFTER_VALUES]
