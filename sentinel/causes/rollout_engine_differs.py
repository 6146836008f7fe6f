"""Rollout engine differs: the policy that samples is not the policy that is trained.

The engine has old weights, another precision, other kernels or other sampling parameters. The
trainer optimises samples of another policy, and over time gradient, KL or reward deteriorates.

Evidence
    A large mismatch is the cause itself. A moderate one is, if gradient, KL, entropy, clipping or
    reward deteriorated within 200 logged values after it. A mismatch that did not certainly begin
    before all of them may be an effect of a broken policy.

Source
    Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training";
    DanceGRPO issue 55, a reward that fell because of it; verl's page on rollout correction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from sentinel.causes._evidence import (
    StatedCause,
    certainly_first,
    is_reported,
    possibly_first,
    symptom_evidence,
)
from sentinel.model.diagnosis import CaseContext, Evidence, Symptom
from sentinel.model.finding import Severity

MAX_POINTS_AFTER_MISMATCH = 200
"""Logged values in which incidents are effects; many runs have a moderate mismatch throughout."""

LASTING_POINTS = 5
"""Logged values since its onset at which a mismatch without effects is a cause: a collapse that
caused it is an incident by then."""


class RolloutEngineDiffers(StatedCause):
    """Diagnoses by the mismatch, and by incidents after it."""

    title = "sampling engine that differs from the trained policy"
    explains = frozenset({
        "rollout_mismatch", "grad_explosion", "kl_blowup", "kl_drift", "reward_collapse",
        "entropy_collapse", "entropy_explosion", "clip_saturation", "loss_spike",
    })  # fmt: skip
    suggested_by: ClassVar[Mapping[str, float]] = {"rollout_mismatch": 0.45}
    sign = (
        "trainer and sampling engine give different log-probabilities to one completion, "
        "before anything else changed"
    )
    advice = (
        "Check that the engine receives new weights before it samples, and that engine and trainer "
        "use the same precision (bf16 or fp16, no quantised weights or cache), chat template and "
        "{sampling temperature}. Then enable {importance-sampling correction}, and resume from the "
        "last checkpoint before the onset."
    )

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The mismatch and its effects; nothing if another incident may have come first."""
        mismatch = context.earliest("rollout_mismatch")
        if mismatch is None:
            return
        drift = context.earliest_in_run("kl_blowup", "kl_drift")
        drift = drift if is_reported(drift) else None
        effects = [
            symptom
            for symptom in (
                context.earliest_in_run("grad_explosion", "loss_spike"),
                context.earliest_in_run("reward_collapse"),
                context.earliest_in_run("entropy_collapse", "entropy_explosion"),
                context.earliest_in_run("clip_saturation"),
            )
            if is_reported(symptom)
        ]
        # The KL rises so slowly that its onset is known to many values only.
        if not certainly_first(mismatch, *effects) or not possibly_first(mismatch, drift):
            return
        followed = effects if drift is None else [*effects, drift]
        soon = MAX_POINTS_AFTER_MISMATCH * context.steps_per_point
        is_soon = any(symptom.onset_step - mismatch.onset_step <= soon for symptom in followed)
        is_large = mismatch.severity is not Severity.INFO
        if not (is_soon if followed else is_large and _is_lasting(context, mismatch)):
            return
        # Many runs have a moderate mismatch throughout, so effects are needed as well.
        yield from symptom_evidence(mismatch, 0.7 if is_large else 0.4)
        for symptom in followed:
            yield from symptom_evidence(symptom, 0.4)
        engine = context.text("rollout_engine") or context.text("vllm_mode")
        if engine:
            yield Evidence(0.1, f"Completions are sampled by a separate engine ({engine}).")


def _is_lasting(context: CaseContext, mismatch: Symptom) -> bool:
    newest = max((points[-1][0] for points in context.history.values() if points), default=0)
    return newest - mismatch.latest_onset >= LASTING_POINTS * context.steps_per_point
