"""Reward function broken: the reward became constant while the policy did not change.

A scoring server that returns a default, a parser that fails, a judge whose quota is spent: all
completions then have the same reward, independent of the policy.

Evidence
    A reward that fell, and has since been the same for all completions. KL, entropy or length are
    logged, and neither they nor the sampling engine left their range before: if none of them is
    logged, or if one left its range, it may be a policy collapse. Groups with one reward long
    before the fall belong to prompts without contrast.

Source
    The reward functions of huggingface/trl and verl, which run outside the trainer and may return a
    default on an error; DanceGRPO issue 55 for a reward that falls for another reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import began_first, symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity

POLICY_SIGNALS = ("kl_ref", "entropy", "completion_length")

POLICY_DETECTORS = (
    "kl_blowup", "entropy_collapse", "entropy_explosion", "length_explosion", "length_collapse",
    "repetition", "grad_explosion", "rollout_mismatch", "clip_saturation",
)  # fmt: skip


class RewardFunctionBroken:
    """Diagnoses by a reward that fell to a constant while the policy did not change."""

    title: ClassVar[str] = "the reward function returns a constant"
    explains: ClassVar[frozenset[str]] = frozenset({
        "reward_collapse", "reward_zero_variance", "grad_vanishing", "reward_stalled",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = Severity.CRITICAL

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The fall and the constant; nothing if the policy changed first, or is unknown."""
        fall, zero_variance = (
            context.earliest("reward_collapse"),
            context.earliest("reward_zero_variance"),
        )
        known = [name for name in POLICY_SIGNALS if name in context.values]
        first = context.earliest(*POLICY_DETECTORS)
        if fall is None or not known or (first is not None and began_first(first, fall)):
            return
        constant = _is_reward_constant(context)
        if not began_first(fall, zero_variance) or (zero_variance is None and not constant):
            return
        yield from symptom_evidence(fall, 0.4)
        yield from symptom_evidence(zero_variance, 0.4)
        if constant:
            yield Evidence(0.4, f"All completions have the reward {context.values['reward']:.4g}.")
        values = ", ".join(f"{name} {context.values[name]:.3g}" for name in known)
        yield Evidence(0.2, f"The policy had not changed when the reward fell: {values}.")

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


def _is_reward_constant(context: CaseContext) -> bool:
    """Whether all latest completions have the same reward."""
    values = context.values
    spread = min(values.get("reward_std", 1.0), 1.0 - values.get("frac_zero_std", 0.0))
    return spread == 0.0 and "reward" in values
