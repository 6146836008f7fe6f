"""Too many updates: a batch is used until the policy has left the one that sampled it.

From then on most tokens are clipped and teach nothing, the others push along old samples, and what
a pass gains on the batch is lost on the next.

Clues
    Clipping that began no later than the KL ran away, the reward fell or the gradient grew, and a
    policy that is far from itself at sampling. Many passes over a batch are why; where each batch
    is known to be used for one update only, the ratio should be 1, and this is not the cause.

Source
    Schulman et al. 2017 (arXiv:1707.06347) on clipped ratios and epochs; Huang et al. 2024
    (arXiv:2403.17031), who train on language with up to 4 epochs a batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import began_first, symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting

MAX_HARMLESS_PASSES = 4
"""Passes over one batch that language models bear."""

HIGH_KL_OLD = 0.1
"""Nats per token from the policy that sampled: what trainers stop early at is 0.01 to 0.1."""

_BATCH_SETTINGS = (
    ("steps_per_generation", "gradient_accumulation_steps"),
    ("train_batch_size", "ppo_mini_batch_size"),
)


class TooManyUpdates:
    """Judges by clipping, and by what followed."""

    title: ClassVar[str] = "too many updates on each batch"
    explains: ClassVar[frozenset[str]] = frozenset({
        "clip_saturation", "kl_blowup", "kl_drift", "reward_collapse", "entropy_collapse",
        "entropy_explosion", "grad_explosion",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """Clipping and what it leads to; nothing where something else came first."""
        clipped = context.earliest_symptom("clip_saturation")
        followed = [
            context.earliest_symptom("kl_blowup", "kl_drift"),
            context.earliest_symptom("reward_collapse"),
            context.earliest_symptom("entropy_collapse", "entropy_explosion"),
            context.earliest_symptom("grad_explosion"),
        ]
        passes, updates = _passes_per_batch(context), _updates_per_batch(context)
        if clipped is None or (updates is not None and updates <= 1):
            return
        if not began_first(clipped, *followed) and (passes or 0) <= MAX_HARMLESS_PASSES:
            return
        yield from symptom_evidence(clipped, 0.5)
        yield from symptom_evidence(followed[0], 0.5)
        for sign in followed[1:]:
            yield from symptom_evidence(sign, 0.3)
        away = context.values.get("kl_old")
        if away is not None and away > HIGH_KL_OLD:
            yield Evidence(0.2, f"The policy is {away:.3g} nats from the one that sampled.")
        if passes is not None and passes > 1:
            weight = 0.3 if passes > MAX_HARMLESS_PASSES else 0.1
            yield Evidence(weight, f"Each batch is passed over {passes:g} times.")

    def remedy(self, context: CaseContext) -> str:
        """Fewer passes first."""
        return (
            f"Bring {describe_setting('updates per batch', context.metadata)} down to 1 or 2, or halve "
            f"{describe_setting('learning rate', context.metadata)}; a larger share of the batch in each update "
            "does the same. If the reward has fallen already, go back to the last checkpoint "
            "before the onset."
        )


def _passes_per_batch(context: CaseContext) -> float | None:
    return context.number("num_iterations", "num_ppo_epochs", "ppo_epochs")


def _updates_per_batch(context: CaseContext) -> float | None:
    """Updates that each batch is used for, where the settings tell."""
    passes = _passes_per_batch(context)
    if passes is None:
        return None
    for whole, part in _BATCH_SETTINGS:
        held, used = context.number(whole), context.number(part)
        if held and used:
            return passes * held / used
    return passes * (context.number("num_mini_batches") or 1.0)
