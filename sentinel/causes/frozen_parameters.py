"""Frozen parameters: what should be trained is not, from the first step on.

Adapters that hang on no output, `requires_grad` False, an optimizer without the parameters that
matter, a learning rate of 0: the run costs what a training costs, and changes nothing.

Clues
    A gradient of exactly 0 from the first step on, or a learning rate that never was over 0, is
    proof by itself. A loss or a reward that never moved follows from it. Groups of answers without
    a spread of rewards, labels that are all masked and losses that are no numbers leave no gradient
    either, and are other causes.

Source
    locuslab/open-unlearning issue 178 and huggingface/peft issue 137: adapters that no gradient
    reached beside gradient checkpointing, since no input required one. Tiny trainings of frozen
    weights, in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.model.diagnosis import Clue, Scene, Sign, seen
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import lever

NOTHING = 1e-7
"""Gradient norm that moves no weight."""


class FrozenParameters:
    """Judges by gradients, or a learning rate, that were 0 from the start."""

    title: ClassVar[str] = "frozen parameters: nothing is trained"
    explains: ClassVar[frozenset[str]] = frozenset({
        "grad_vanishing", "learning_rate_anomaly", "loss_never_moved", "loss_plateau",
        "reward_stalled",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def clues(self, scene: Scene) -> Iterable[Clue]:
        """Nothing to train by from the start, and a loss or reward that shows it."""
        if scene.first("reward_zero_variance", "loss_zero", "nan_or_inf") is not None:
            return
        still = _from_the_start(scene.signs.get("grad_vanishing"), "usual")
        no_rate = _from_the_start(scene.signs.get("learning_rate_anomaly"), "highest", None)
        stands = scene.first("loss_never_moved", "reward_stalled")
        norm = scene.values.get("grad_norm")
        faint = still is None and stands is not None and norm is not None and 0 <= norm < NOTHING
        if still is None and no_rate is None and not faint:
            return
        yield from seen(still, 0.65)
        yield from seen(no_rate, 0.8)
        yield from seen(stands, 0.5)
        if faint:
            yield Clue(0.5, f"The gradient norm is {norm:.2g}, which moves no weight.")

    def remedy(self, scene: Scene) -> str:
        """What to count, and where adapters lose their gradient."""
        return (
            "Stop it. Count the parameters that require a gradient and are in the optimizer "
            "(`sum(p.numel() for p in model.parameters() if p.requires_grad)`), and see that "
            f"{lever('learning rate', scene.facts)} is not 0. With adapters and gradient "
            "checkpointing call `model.enable_input_require_grads()`, and see that the adapter is "
            "the active one. Checkpoints of this run hold the weights that it began with."
        )


def _from_the_start(sign: Sign | None, known: str, default: float | None = 0.0) -> Sign | None:
    """The sign, if what it was before (its evidence of that name) is 0: it never was anything."""
    if sign is None or sign.severity is Severity.INFO:
        return None
    return sign if sign.evidence.get(known, default) == 0.0 else None
