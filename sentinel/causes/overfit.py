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

from sentinel.model.diagnosis import Clue, Scene, seen
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import lever

MANY = 4.0
"""Passes over the data that cost nothing yet."""


class Overfit:
    """Judges by what held-out data say."""

    title: ClassVar[str] = "over-fitting"
    explains: ClassVar[frozenset[str]] = frozenset({
        "overfitting", "loss_zero", "grad_vanishing", "loss_plateau",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def clues(self, scene: Scene) -> Iterable[Clue]:
        """The held-out loss, and why it rises; nothing where the loss in training rises too."""
        rising = scene.signs.get("overfitting")
        if rising is None or scene.signs.get("loss_divergence") is not None:
            return
        yield from seen(rising, 0.7)
        yield from seen(scene.first("loss_zero", "grad_vanishing", "loss_plateau"), 0.2)
        epochs = scene.number("num_train_epochs", "total_epochs")
        if epochs is not None and epochs > MANY:
            yield Clue(0.2, f"The run is to see its data {epochs:g} times.")

    def remedy(self, scene: Scene) -> str:
        """Back to the best, by its step, and less of the same."""
        rising = scene.signs.get("overfitting")
        best = None if rising is None else rising.evidence.get("best_step")
        at = f" at step {best:.0f}" if isinstance(best, float | int) else ""
        return (
            f"Use the checkpoint of the best evaluation{at}, and stop here, unless a score that "
            "counts more than this loss still rises. Next time keep "
            f"{lever('best checkpoint at the end', scene.facts)}, lower "
            f"{lever('epochs', scene.facts)}, or raise {lever('weight decay', scene.facts)}; more "
            "data help more than either."
        )
