"""Rollout engine differs: what samples is not the policy that is trained.

The engine has old weights, another precision, other kernels or other sampling parameters. The
trainer corrects what nobody said, and in time the gradient, the KL or the reward goes wrong.

Clues
    A mismatch that is gross is the cause itself. A moderate one is, where gradient, KL, entropy,
    clipping or reward went wrong after it and within `SOON` steps; one that came after them is
    what a policy that breaks does to any engine.

Source
    Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training";
    DanceGRPO issue 55, a reward that fell for it; verl's page on rollout correction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import began_first, symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting

MAX_STEPS_AFTER_MISMATCH = 200
"""Steps within which a moderate mismatch does what it does: many runs bear one all along."""


class RolloutEngineDiffers:
    """Judges by the mismatch, and by what followed."""

    title: ClassVar[str] = "the engine that samples is not the policy that is trained"
    explains: ClassVar[frozenset[str]] = frozenset({
        "rollout_mismatch", "grad_explosion", "kl_blowup", "kl_drift", "reward_collapse",
        "entropy_collapse", "entropy_explosion", "clip_saturation", "loss_spike",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The mismatch and what it did; nothing where the policy went first."""
        apart = context.earliest_symptom("rollout_mismatch")
        if apart is None:
            return
        followed = [
            sign
            for sign in (
                context.earliest_symptom("grad_explosion", "loss_spike"),
                context.earliest_symptom("kl_blowup", "kl_drift"),
                context.earliest_symptom("reward_collapse"),
                context.earliest_symptom("entropy_collapse", "entropy_explosion"),
                context.earliest_symptom("clip_saturation"),
            )
            if sign is not None
        ]
        soon = any(
            sign.onset_step - apart.onset_step <= MAX_STEPS_AFTER_MISMATCH for sign in followed
        )
        gross = apart.severity is not Severity.INFO
        if not began_first(apart, *followed) or not (soon or gross):
            return
        # Many runs bear a moderate one all along: what followed has to speak as well.
        yield from symptom_evidence(apart, 0.7 if gross else 0.4)
        for sign in followed:
            yield from symptom_evidence(sign, 0.4)
        engine = context.text("rollout_engine") or context.text("vllm_mode")
        if engine:
            yield Evidence(0.1, f"Answers are sampled by an engine of its own ({engine}).")

    def remedy(self, context: CaseContext) -> str:
        """Bring the two together, then correct for what is left."""
        facts = context.metadata
        return (
            "Check that new weights reach the engine before it samples, and that both use one "
            "precision (bf16 or fp16, no quantised weights or cache), one chat template and one "
            f"{describe_setting('sampling temperature', facts)}. Then switch on "
            f"{describe_setting('importance-sampling correction', facts)}, and go on from the last "
            "checkpoint before the onset."
        )
