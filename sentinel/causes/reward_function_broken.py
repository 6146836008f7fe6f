"""Reward function broken: the reward became constant while the policy did not change.

A scoring server that returns a default, a parser that fails, a judge whose quota is spent: all
completions then have the same reward, independent of the policy.

Evidence
    A reward that fell within two records to one value, and has had that value, without any spread,
    in all records since, at least five. KL, entropy or length are logged, and each is as it was
    just before the fall: if none of them is logged, or if one changed, it may be a policy collapse
    or truncated completions. The same holds for incidents of the policy that began shortly before
    the fall or may have begun with it; one that began long before did not touch the reward, except
    for a sampling engine that differs, whose effect accumulates.

Source
    The reward functions of huggingface/trl and verl, which run outside the trainer and may return a
    default on an error; DanceGRPO issue 55 for a reward that falls for another reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise, takewhile
from math import isclose
from statistics import fmean, median

from sentinel.causes._evidence import StatedCause, possibly_first, weighted_evidence
from sentinel.model.diagnosis import CaseContext, Evidence, Symptom
from sentinel.model.evidence_text import in_words
from sentinel.model.finding import Severity

POLICY_SIGNALS = ("kl_ref", "entropy", "completion_length", "truncated_fraction")

POLICY_DETECTORS = (
    "kl_blowup", "kl_drift", "entropy_collapse", "entropy_explosion", "length_explosion",
    "length_collapse", "truncation", "repetition", "grad_explosion", "rollout_mismatch",
    "clip_saturation",
)  # fmt: skip

MIN_CONSTANT_VALUES = 5
"""Logged rewards that must be the same: groups can all fail by chance in a few records."""

BEFORE_VALUES = 8
"""Logged values just before the fall that show the level of a signal."""

MAX_CHANGE_SPREADS, MAX_CHANGE_SHARE, MAX_TRUNCATION_CHANGE = 2.0, 0.1, 0.2
"""Change of a policy signal that is none: standard deviations of its noise plus a share of its
level; of the share of truncated completions, an absolute change. The standard error of the median
of five values is 0.56 standard deviations."""

MAX_DRIFT_SHARE = 0.25
"""Share of its level by which a signal may have drifted in the 24 values before the fall, beside
its noise."""

NEAR_POINTS = 16
"""Logged values before the fall in which an incident of the policy counts."""

DATING_POINTS = 2
"""Logged values by which the constant may begin after the fall: one record can be a mixture."""


class RewardFunctionBroken(StatedCause):
    """Diagnoses by a reward that fell to a constant while the policy did not change."""

    title = "reward function that returns a constant"
    explains = frozenset({
        "reward_collapse", "reward_zero_variance", "grad_vanishing", "reward_stalled",
    })  # fmt: skip
    severity = Severity.CRITICAL
    sign = "a completion that had a reward before has none now, scored manually"

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The fall and the constant; nothing if the policy changed, or is unknown."""
        fall = context.earliest("reward_collapse")
        if fall is None or not is_sudden_constant(context, fall, MIN_CONSTANT_VALUES):
            return
        yield from weighted_evidence(context, {"reward_collapse": 0.4, "reward_zero_variance": 0.4})
        step, reward = _constant_rewards(context)[0]
        yield Evidence(0.5, f"All completions have had the reward {reward:.4g} since.", step)
        values = ", ".join(
            f"{in_words(name)} {context.values[name]:.3g}" for name in _known_signals(context)
        )
        yield Evidence(0.2, f"The policy did not change with it: {values}.")

    def remedy(self, context: CaseContext) -> str:
        """Fix the reward function; resume from before its fault."""
        fall = context.earliest("reward_collapse", "reward_zero_variance")
        since = "the onset" if fall is None else f"step {fall.onset_step}"
        return (
            f"Check the log of the reward function or its server at {since}: time-outs, a spent "
            "quota, a format that it cannot parse. Call it manually with a completion that had a "
            "reward before, and let it retry on errors instead of returning a default. Resume from "
            "the last checkpoint before the onset."
        )


def is_sudden_constant(context: CaseContext, fall: Symptom, min_values: int) -> bool:
    """Whether the reward fell to a constant at once, while the policy did not change."""
    constant, known = _constant_rewards(context), _known_signals(context)
    if len(constant) < min_values or not known:
        return False
    since, margin = constant[0][0], DATING_POINTS * context.steps_per_point
    near_step = fall.earliest_onset - NEAR_POINTS * context.steps_per_point
    near = (
        symptom
        for symptom in map(context.earliest_in_run, POLICY_DETECTORS)
        if symptom is not None
        and (symptom.earliest_onset >= near_step or symptom.detector == "rollout_mismatch")
    )
    return (
        since <= fall.latest_onset + margin
        and _is_sudden(context.history["reward"], since)
        and all(_is_unchanged(name, context.history[name], since) for name in known)
        and not any(possibly_first(symptom, fall) for symptom in near)
    )


def _known_signals(context: CaseContext) -> list[str]:
    return [name for name in POLICY_SIGNALS if context.history.get(name)]


def _constant_rewards(context: CaseContext) -> list[tuple[int, float]]:
    """The newest rewards that are the same and have no spread, with their steps."""
    points = context.history.get("reward", ())
    spreads = dict(context.history.get("reward_std", ()))
    idle_shares = dict(context.history.get("frac_zero_std", ()))

    def is_constant(point: tuple[int, float]) -> bool:
        step, reward = point
        has_spread = spreads.get(step, 0.0) > 1e-9
        if step not in spreads:
            has_spread = idle_shares.get(step, 1.0) < 1.0 - 1e-9
        return isclose(reward, points[-1][1], rel_tol=1e-6, abs_tol=1e-9) and not has_spread

    return list(takewhile(is_constant, reversed(points)))[::-1]


def _is_sudden(rewards: Sequence[tuple[int, float]], since: int) -> bool:
    """Whether the reward was at its usual level until two records before the constant."""
    before = [reward for step, reward in rewards if step < since][:-1]
    if len(before) < BEFORE_VALUES:
        return False
    constant, usual = rewards[-1][1], median(before[-4 * BEFORE_VALUES :])
    return abs(fmean(before[-3:]) - constant) > 0.5 * abs(usual - constant) > 0.0


def _is_unchanged(signal: str, points: Sequence[tuple[int, float]], since: int) -> bool:
    """Whether a signal of the policy is as it was just before the reward became constant."""
    values = [value for step, value in points if step < since]
    before, earlier = values[-BEFORE_VALUES:], values[-3 * BEFORE_VALUES : -BEFORE_VALUES]
    after = [value for step, value in points if step >= since][:MIN_CONSTANT_VALUES]
    if len(earlier) < BEFORE_VALUES or not after:
        return False
    usual, level_before = median(before), median(earlier)
    # The mean absolute difference of two normal values is 1.13 standard deviations.
    noise = fmean(abs(a - b) for a, b in pairwise(earlier)) / 1.13
    allowed = MAX_CHANGE_SPREADS * noise + MAX_CHANGE_SHARE * abs(usual)
    drift = noise + MAX_DRIFT_SHARE * abs(level_before)
    if signal == "truncated_fraction":
        allowed = drift = MAX_TRUNCATION_CHANGE
    now = median(after)
    return bool(
        abs(usual - level_before) <= drift
        and abs(now - usual) <= allowed
        and abs(now - level_before) <= drift + noise
    )
