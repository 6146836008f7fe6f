"""Numerical breakdown: numbers grew past what their format holds, and took the loss with them.

Half precision ends at 65504. Activations or gradients beyond it are infinite, the next difference
of two of them is not a number, and one such update makes every weight one.

Clues
    A loss or gradient that is no number is the heart of it. Gradients, or a loss, that left their
    level before it make it a matter of size; so do half precision, and a loss scale that had to
    fall to next to nothing.

Source
    Micikevicius et al. 2018 (arXiv:1710.03740) on half precision and loss scaling; a tiny training
    in float16 whose optimizer divides by what underflowed, in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.model.diagnosis import Clue, Scene, seen
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import lever

LITTLE = 1.0
"""A loss scale of no more protects nothing: it began at some 65536 and halved at each overflow."""


class NumericalBreakdown:
    """Judges by numbers that were lost, and by what grew before."""

    title: ClassVar[str] = "numerical breakdown"
    explains: ClassVar[frozenset[str]] = frozenset({
        "nan_or_inf", "grad_explosion", "loss_spike", "loss_divergence",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def clues(self, scene: Scene) -> Iterable[Clue]:
        """What was lost, and what led to it; a single lost norm is what a loss scaler is for."""
        lost = scene.signs.get("nan_or_inf")
        if lost is None or lost.severity is Severity.INFO:
            return
        yield from seen(lost, 0.5)
        for grown in (
            scene.signs.get("grad_explosion"),
            scene.first("loss_spike", "loss_divergence"),
        ):
            if grown is not None and grown.onset_step <= lost.onset_step:
                yield from seen(grown, 0.4)
        if scene.text("fp16") == "true":
            yield Clue(0.3, "The run trains in float16, which ends at 65504.")
        scale = scene.values.get("loss_scale")
        if scale is not None and 0.0 < scale <= LITTLE:
            yield Clue(0.4, f"The loss scale has fallen to {scale:g}.")

    def remedy(self, scene: Scene) -> str:
        """Room for the numbers, and a start from before they were lost."""
        return (
            "Stop it: weights that are no numbers do not heal. Go on from the last checkpoint "
            f"before the onset, in bfloat16 ({lever('bf16', scene.facts)}) if the GPU has it, with "
            f"{lever('gradient clipping', scene.facts)} at 1 and "
            f"{lever('learning rate', scene.facts)} halved. If it comes back at the same step, the "
            "batch of that step is to blame: look at it."
        )
