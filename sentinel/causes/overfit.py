"""Overfit: the model memorises its examples, and gets worse on other data.

Evidence
    A held-out loss that rises while the training loss falls is the definition, and almost
    sufficient. More epochs than are useful are the reason; a training loss near 0, or a plateau,
    shows how far it has progressed.

Source
    Prechelt 1998, "Early stopping, but when?"; Muennighoff et al. 2023 (arXiv:2305.16264): four
    epochs over the same text are almost as good as new text, and more soon are not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting

MAX_HARMLESS_EPOCHS = 4.0
"""Epochs that are as good as new data."""


class Overfit:
    """Diagnoses by the loss on held-out data."""

    title: ClassVar[str] = "overfitting"
    explains: ClassVar[frozenset[str]] = frozenset({
        "overfitting", "loss_zero", "grad_vanishing", "loss_plateau",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None
    sign: ClassVar[str] = (
        "the loss on held-out data rises while the training loss falls (log an evaluation)"
    )
    excluded_by: ClassVar[frozenset[str]] = frozenset({"loss_divergence"})

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The held-out loss and its reason; nothing if the training loss diverges."""
        rising = context.symptoms.get("overfitting")
        if rising is None:
            return
        yield from symptom_evidence(rising, 0.7)
        yield from symptom_evidence(
            context.earliest("loss_zero", "grad_vanishing", "loss_plateau"), 0.2
        )
        epochs = context.number("num_train_epochs", "total_epochs")
        if epochs is not None and epochs > MAX_HARMLESS_EPOCHS:
            yield Evidence(0.2, f"The run is configured for {epochs:g} epochs.")

    def remedy(self, context: CaseContext) -> str:
        """The best checkpoint, and fewer epochs."""
        return (
            f"{_checkpoint_advice(context)} Stop here unless a more important metric still "
            "improves. In the next run enable "
            f"{describe_setting('loading of the best checkpoint', context.metadata)}, lower "
            f"{describe_setting('number of epochs', context.metadata)}, or raise "
            f"{describe_setting('weight decay', context.metadata)}; more data help most."
        )


def _checkpoint_advice(context: CaseContext) -> str:
    """The checkpoint nearest to the best evaluation, among those that are known."""
    rising = context.symptoms.get("overfitting")
    best = None if rising is None else rising.evidence.get("best_step")
    if not isinstance(best, float | int):
        return "Use the checkpoint of the best evaluation."
    limit = context.number("save_total_limit")
    keeps_best = context.text("load_best_model_at_end") == "true"
    kept = context.checkpoint_steps[-int(limit) :] if limit else context.checkpoint_steps
    saved = sorted({*(context.checkpoint_steps if keeps_best else kept)})
    if best in saved:
        return f"Use the checkpoint of the best evaluation, at step {best:.0f}."
    evaluated = f"The best evaluation was at step {best:.0f}"
    before = [step for step in saved if step < best]
    if before:
        return f"{evaluated}: use the last checkpoint before it, at step {before[-1]}."
    if saved:
        return (
            f"{evaluated}, before the oldest known checkpoint, at step {saved[0]}: compare that "
            "one by another evaluation."
        )
    return f"{evaluated}, and no checkpoint is known."
