"""Overfit: the model learns its examples by heart, and gets worse at everything else.

Clues
    A held-out loss that rises while the loss in training goes on falling is the definition, and
    enough by itself. More passes over the data than examples bear say why; a training loss that
    came to nothing, or stands at its floor, shows how far it has gone.

Source
    Prechelt 1998, "Early stopping, but when?"; Muennighoff et al. 2023 (arXiv:2305.16264), by whom
    four passes over the same text are nearly as good as new text, and more soon are not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting

MAX_HARMLESS_EPOCHS = 4.0
"""Passes over the data that cost nothing yet."""


class Overfit:
    """Judges by what held-out data say."""

    title: ClassVar[str] = "over-fitting"
    explains: ClassVar[frozenset[str]] = frozenset({
        "overfitting", "loss_zero", "grad_vanishing", "loss_plateau",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The held-out loss, and why it rises; nothing where the loss in training rises too."""
        rising = context.symptoms.get("overfitting")
        if rising is None or context.symptoms.get("loss_divergence") is not None:
            return
        yield from symptom_evidence(rising, 0.7)
        yield from symptom_evidence(
            context.earliest_symptom("loss_zero", "grad_vanishing", "loss_plateau"), 0.2
        )
        epochs = context.number("num_train_epochs", "total_epochs")
        if epochs is not None and epochs > MAX_HARMLESS_EPOCHS:
            yield Evidence(0.2, f"The run is to see its data {epochs:g} times.")

    def remedy(self, context: CaseContext) -> str:
        """Back to the best, by its step, and less of the same."""
        rising = context.symptoms.get("overfitting")
        best = None if rising is None else rising.evidence.get("best_step")
        at = f" at step {best:.0f}" if isinstance(best, float | int) else ""
        return (
            f"Use the checkpoint of the best evaluation{at}, and stop here, unless a score that "
            "counts more than this loss still rises. Next time keep "
            f"{describe_setting('loading of the best checkpoint', context.metadata)}, lower "
            f"{describe_setting('epochs', context.metadata)}, or raise {describe_setting('weight decay', context.metadata)}; more "
            "data help more than either."
        )
