"""Too many updates: a batch is used until the policy has moved away from the one that sampled it.

From then on most tokens are clipped and contribute no gradient, the others are optimised on
outdated samples, and the gain on one batch is lost on the next.

Evidence
    Clipping that began before the KL rose, the reward fell or the gradient grew, and a large
    KL to the sampling policy. Many epochs per batch are the reason; if each batch is used for a
    single update, the ratio is 1, and this is not the cause.

Source
    Schulman et al. 2017 (arXiv:1707.06347) on clipped ratios and epochs; Huang et al. 2024
    (arXiv:2403.17031), who train language models with up to 4 epochs per batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from sentinel.causes._evidence import (
    StatedCause,
    certainly_first,
    possibly_first,
    weighted_evidence,
)
from sentinel.model.diagnosis import CaseContext, Evidence

WEIGHTS = {"clip_saturation": 0.5, "kl_blowup or kl_drift": 0.5}
"""Weight of the clipping, and of the KL."""

EFFECT_WEIGHTS = {
    "reward_collapse": 0.3,
    "entropy_collapse or entropy_explosion": 0.3,
    "grad_explosion": 0.3,
}
"""Weight of each further effect."""

MAX_HARMLESS_PASSES = 4
"""Epochs per batch that are harmless for language models."""

HIGH_KL_OLD = 0.1
"""Nats per token from the sampling policy; trainers stop early at 0.01 to 0.1."""

_BATCH_SETTINGS = (
    ("steps_per_generation", "gradient_accumulation_steps"),
    ("train_batch_size", "ppo_mini_batch_size"),
)


class TooManyUpdates(StatedCause):
    """Diagnoses by clipping, and by incidents after it."""

    title = "too many updates on each batch"
    explains = frozenset({
        "clip_saturation", "kl_blowup", "kl_drift", "reward_collapse", "entropy_collapse",
        "entropy_explosion", "grad_explosion",
    })  # fmt: skip
    suggested_by: ClassVar[Mapping[str, float]] = {"kl_blowup": 0.35, "reward_collapse": 0.2}
    sign = (
        "the share of clipped tokens (log the clip ratio) rises before the KL, and one update "
        "per batch prevents it"
    )
    advice = (
        "Lower {number of updates per batch} to 1 or 2, or halve {learning rate}; a larger "
        "mini-batch per update has the same effect. If the reward has already fallen, resume from "
        "the last checkpoint before the onset."
    )

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """Clipping and its effects; nothing if another incident came first."""
        clipped = context.earliest("clip_saturation")
        drift = context.earliest("kl_blowup", "kl_drift")
        effects = [context.earliest(*names.split(" or ")) for names in EFFECT_WEIGHTS]
        passes = _passes_per_batch(context)
        if clipped is None:
            return
        # The KL rises so slowly that its onset is known to many values only.
        is_first = possibly_first(clipped, drift) and certainly_first(clipped, *effects)
        if not is_first and (passes or 0) <= MAX_HARMLESS_PASSES:
            return
        yield from weighted_evidence(context, WEIGHTS)
        yield from weighted_evidence(context, EFFECT_WEIGHTS)
        kl_old = context.values.get("kl_old")
        if kl_old is not None and kl_old > HIGH_KL_OLD:
            yield Evidence(0.2, f"The KL to the sampling policy is {kl_old:.3g} nats per token.")
        if passes is not None and passes > 1:
            weight = 0.3 if passes > MAX_HARMLESS_PASSES else 0.1
            yield Evidence(weight, f"Each batch is used for {passes:g} epochs.")

    def contradictions(self, context: CaseContext) -> Iterable[str]:
        """A single update per batch, or a policy of which no token is clipped."""
        updates, clipped = _updates_per_batch(context), context.ranges.get("clip_fraction")
        if updates is not None and updates <= 1:
            yield "Each batch is used for a single update."
        if clipped is not None and clipped.highest == 0.0:
            yield "No token was clipped."


def _passes_per_batch(context: CaseContext) -> float | None:
    return context.number("num_iterations", "num_ppo_epochs", "ppo_epochs")


def _updates_per_batch(context: CaseContext) -> float | None:
    """Updates per batch according to the settings; None if unknown."""
    passes = _passes_per_batch(context)
    if passes is None:
        return None
    for batch_key, update_key in _BATCH_SETTINGS:
        batch_size, update_size = context.number(batch_key), context.number(update_key)
        if batch_size and update_size:
            return passes * batch_size / update_size
    return passes * (context.number("num_mini_batches") or 1.0)
