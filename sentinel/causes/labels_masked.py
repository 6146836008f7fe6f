"""Labels masked: no token counts, so that there is no loss and nothing to learn from.

A template whose answers are not found, answers behind the length at which texts are cut, padding
that took all labels along: every label is -100, and the mean over nothing is 0 or not a number.

Clues
    A loss of exactly 0 beside no gradient, or one that is no number from the first step on; in
    fine-tuning on answers it is likelier than elsewhere, where a term of the loss may be lost. What
    was well for some steps and broke then is another matter.

Source
    The cross-entropy of PyTorch, which is 0/0 if every target is its `ignore_index`; trainers that
    log such a loss as 0 (hiyouga/LLaMA-Factory issues 4850 and 5627). Tiny trainings without
    labels, in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.model.diagnosis import Clue, Scene, Sign, seen
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import lever


class LabelsMasked:
    """Judges by a loss that is nothing, and by gradients that are none."""

    title: ClassVar[str] = "all labels are masked"
    explains: ClassVar[frozenset[str]] = frozenset({"loss_zero", "nan_or_inf", "grad_vanishing"})
    severity: ClassVar[Severity | None] = None

    def clues(self, scene: Scene) -> Iterable[Clue]:
        """No loss, and no gradient; a loss that was learnt away is only noted, and is none."""
        zero, never = scene.signs.get("loss_zero"), _never_a_number(scene)
        if zero is not None and zero.severity is Severity.INFO:
            return
        if zero is None and never is None:
            return
        yield from seen(zero, 0.5)
        yield from seen(never, 0.6)
        yield from seen(scene.signs.get("grad_vanishing"), 0.3)
        if scene.values.get("grad_norm") == 0.0:
            yield Clue(0.3, "The gradient norm is 0.")
        if scene.text("algorithm") == "sft":
            yield Clue(0.2, "Which labels count is up to a template, in fine-tuning.")

    def remedy(self, scene: Scene) -> str:
        """Count the labels that are left."""
        return (
            "Stop it, and count the labels of one batch that are not -100. If there are none, "
            "check the template of the answers against the tokenizer's, "
            f"{lever('loss on answers alone', scene.facts)}, and whether "
            f"{lever('longest text', scene.facts)} cuts texts off before the answer begins. "
            "Begin again from the start: weights may be lost already."
        )


def _never_a_number(scene: Scene) -> Sign | None:
    """The loss, where no value of it ever was one."""
    lost, apart = scene.signs.get("nan_or_inf"), scene.number("logging_steps") or 1.0
    if lost is None or "loss" not in lost.evidence or lost.onset_step > max(1.0, apart):
        return None
    return lost
