"""Bad batch: a few examples threw the loss up once, and the training got over it.

Clues
    One jump of the loss, and gradients that jumped at the same step. A loss that stays away,
    swings, or jumps again and again is no matter of a batch.

Source
    Chowdhery et al. 2022 (arXiv:2204.02311), section 5.1: jumps of the loss went away when the run
    was restarted before them and some hundred batches were skipped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting

MAX_STEPS_APART = 3
"""Steps between two jumps of one batch, as both are dated."""


class BadBatch:
    """Judges by a jump of loss and gradients at one step, and by what does not follow."""

    title: ClassVar[str] = "bad batch"
    explains: ClassVar[frozenset[str]] = frozenset({"loss_spike", "grad_explosion"})
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """Both jumps; nothing where there were more, or the loss did not come back."""
        jump, steep = context.symptoms.get("loss_spike"), context.symptoms.get("grad_explosion")
        worse = context.earliest_symptom(
            "loss_divergence", "oscillation", "nan_or_inf", "rank_outlier"
        )
        if jump is None or steep is None or worse is not None or jump.occurrences > 1:
            return
        if abs(jump.onset_step - steep.onset_step) <= MAX_STEPS_APART:
            yield from symptom_evidence(jump, 0.4)
            yield from symptom_evidence(steep, 0.4)

    def remedy(self, context: CaseContext) -> str:
        """Wait first: most heal."""
        jump = context.symptoms.get("loss_spike")
        at = "" if jump is None else f" of step {jump.onset_step}"
        return (
            f"Wait: most come back within some ten steps. Read the batches{at} and of the few "
            "steps before (repeated text, broken files, other units). If the loss does not come "
            "back, go on from a checkpoint some 100 steps before, skip these batches, and clip "
            f"harder ({describe_setting('gradient clipping', context.metadata)})."
        )
