"""Overfit: the model memorises its examples, and gets worse on other data.

Evidence
    A held-out loss that rises while the training loss falls is the definition, and almost
    sufficient. More epochs than are useful are the reason; a training loss near 0, or a plateau,
    shows how far it has progressed. Where no held-out loss is logged, a training loss that fell
    and slowly rises again after the first epoch makes it possible only, unless the gradient, the
    rate or single jumps explain the rise: harder data, or too high a rate, raise it as well.

Source
    Prechelt 1998, "Early stopping, but when?"; Muennighoff et al. 2023 (arXiv:2305.16264): four
    epochs over the same text are almost as good as new text, and more soon are not.
"""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.causes._evidence import StatedCause, summaries, symptom_evidence, weighted_evidence
from sentinel.model.diagnosis import CaseContext, Evidence, Symptom
from sentinel.signals.setting_names import describe_setting

MAX_HARMLESS_EPOCHS = 4.0
"""Epochs that are as good as new data."""

OTHER_REASONS = ("grad_explosion", "nan_or_inf", "loss_spike", "oscillation", "learning_rate_high")
"""Detectors of other reasons why a training loss rises."""


class Overfit(StatedCause):
    """Diagnoses by the loss on held-out data."""

    title = "overfitting"
    explains = frozenset({
        "overfitting", "loss_zero", "grad_vanishing", "loss_plateau", "loss_divergence",
    })  # fmt: skip
    sign = "the loss on held-out data rises while the training loss falls (log an evaluation)"

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The rising loss and its reason."""
        rising = context.symptoms.get("overfitting")
        if rising is None:
            return
        yield from symptom_evidence(rising, 0.7 if _is_held_out(rising) else 0.45)
        yield from weighted_evidence(context, {"loss_zero or grad_vanishing or loss_plateau": 0.2})
        epochs = context.number("num_train_epochs", "total_epochs")
        if epochs is not None and epochs > MAX_HARMLESS_EPOCHS:
            yield Evidence(0.2, f"The run is configured for {epochs:g} epochs.")

    def contradictions(self, context: CaseContext) -> Iterable[str]:
        """Another reason why the loss rises."""
        rising = context.symptoms.get("overfitting")
        is_held_out = rising is None or _is_held_out(rising)
        yield from summaries(context, *(("loss_divergence",) if is_held_out else OTHER_REASONS))

    def remedy(self, context: CaseContext) -> str:
        """The best checkpoint, and fewer epochs."""
        return (
            f"{_checkpoint_advice(context)} Stop here unless a more important metric still "
            "improves. In the next run enable "
            f"{describe_setting('loading of the best checkpoint', context.metadata)}, lower "
            f"{describe_setting('number of epochs', context.metadata)}, or raise "
            f"{describe_setting('weight decay', context.metadata)}; more data help most."
        )


def _is_held_out(rising: Symptom) -> bool:
    """Whether it is the loss of an evaluation."""
    return "train_loss_now" not in rising.evidence


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
