"""Reward function broken: the reward went to a constant while the policy stayed as it was.

A scoring server that answers with a default, a parser that fails, a judge whose quota is spent: all
answers then earn the same, and the policy has done nothing to deserve it.

Clues
    A reward that fell off, and since then is one and the same number for all answers. KL, entropy
    or length are told, and none of them left its range before, nor did the sampling engine: with
    no such witness, or with one that speaks for the policy, it may be a policy collapse. Answers
    that were alike long before the fall are those to prompts without contrast.

Source
    huggingface/trl's and verl's reward functions, which run outside the trainer and are free to
    return a default on an error; DanceGRPO issue 55 for a reward that falls for another reason.
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
    """Judges by a reward that fell to a constant, of a policy that did not change."""

    title: ClassVar[str] = "the reward function returns a constant"
    explains: ClassVar[frozenset[str]] = frozenset({
        "reward_collapse", "reward_zero_variance", "grad_vanishing", "reward_stalled",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = Severity.CRITICAL

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The fall and the constant; nothing where the policy changed first, or none can say."""
        fall, alike = (
            context.earliest_symptom("reward_collapse"),
            context.earliest_symptom("reward_zero_variance"),
        )
        told = [name for name in POLICY_SIGNALS if name in context.values]
        first = context.earliest_symptom(*POLICY_DETECTORS)
        if fall is None or not told or (first is not None and began_first(first, fall)):
            return
        constant = _is_reward_constant(context)
        if not began_first(fall, alike) or (alike is None and not constant):
            return
        yield from symptom_evidence(fall, 0.4)
        yield from symptom_evidence(alike, 0.4)
        if constant:
            yield Evidence(
                0.4, f"All answers earn {context.values['reward']:.4g}, whatever they say."
            )
        held = ", ".join(f"{name} {context.values[name]:.3g}" for name in told)
        yield Evidence(0.2, f"The policy was as before when it fell: {held}.")

    def remedy(self, context: CaseContext) -> str:
        """Mend the service, and take back what it taught."""
        fall = context.earliest_symptom("reward_collapse", "reward_zero_variance")
        since = "the onset" if fall is None else f"step {fall.onset_step}"
        return (
            f"Look at the log of the reward function or its server at {since}: time-outs, a spent "
            "quota, a format it cannot parse. Call it by hand with an answer that earned something "
            "before. Then go on from the last checkpoint before the onset, and let it try again on "
            "an error, and rather stop the run than return a default."
        )


def _is_reward_constant(context: CaseContext) -> bool:
    """Whether no two of the latest answers earned differently."""
    values = context.values
    spread = min(values.get("reward_std", 1.0), 1.0 - values.get("frac_zero_std", 0.0))
    return spread == 0.0 and "reward" in values
