"""Learning rate too high: steps are longer than the loss bears, so that it swings or climbs.

It throws the loss up at the end of a warm-up, or at once where there is none, and gradients with
it; just above what is borne, the loss swings at a beat instead.

Clues
    A loss that left for good, swings, or jumps again and again is the heart of it; gradients that
    grow beside it make it likely. A rate above what such a training takes, without a warm-up, says
    why, and lets even a single jump count.

Source
    Cohen et al. 2021 (arXiv:2103.00065) on the edge of stability; Wortsman et al. 2023
    (arXiv:2309.14322) on rates that diverge. Tiny trainings at 100 times their rate, in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.model.diagnosis import FAST, Clue, Scene, seen
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import lever

BY_COMPARISON = frozenset({
    "grpo", "rloo", "ppo", "gae", "online_dpo", "dpo", "kto", "orpo", "cpo",
})  # fmt: skip
"""Algorithms that move a policy a little from where it is."""

FINE_TUNING = 1e-4
"""Learning rate above which tuning all of a language model is fast; adapters take ten times it."""

FROM_SCRATCH = 1e-2
"""Learning rate above which any common training is fast."""

EARLY = 200
"""Steps in which a warm-up would have helped."""


class LearningRateTooHigh:
    """Judges by a loss that leaves, swings or jumps, by the gradients, and by the rate itself."""

    title: ClassVar[str] = "learning rate too high"
    explains: ClassVar[frozenset[str]] = frozenset({
        "loss_divergence", "loss_spike", "oscillation", "grad_explosion", "nan_or_inf",
        "loss_plateau",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def clues(self, scene: Scene) -> Iterable[Clue]:
        """A loss in turmoil, and why; nothing for one jump at a rate not known to be high."""
        away, swing = scene.signs.get("loss_divergence"), scene.signs.get("oscillation")
        jump, fast = scene.signs.get("loss_spike"), _fast(scene)
        again = jump is not None and jump.times > 1
        if away is None and swing is None and not again and not (jump is not None and fast):
            return
        yield from seen(away, 0.45)
        yield from seen(swing, 0.45)
        yield from seen(jump, 0.4 if again else 0.2)
        yield from seen(scene.signs.get("grad_explosion"), 0.4)
        yield from seen(scene.signs.get("nan_or_inf"), 0.2)
        yield from fast
        began = scene.first("loss_divergence", "oscillation", "loss_spike")
        if began is not None and began.onset_step <= EARLY and _no_warm_up(scene):
            yield Clue(0.2, "The run has no warm-up.")

    def remedy(self, scene: Scene) -> str:
        """Shorter steps, from before the onset."""
        return (
            "Go back to the last checkpoint before the onset and set "
            f"{lever('learning rate', scene.facts)} to a third; if it began within the first "
            f"steps, lengthen {lever('warm-up', scene.facts)} as well. Clip gradients with "
            f"{lever('gradient clipping', scene.facts)} at what was their usual norm."
        )


def _fast(scene: Scene) -> list[Clue]:
    """A rate that is high for this kind of training."""
    rates = (scene.number("learning_rate"), scene.values.get("learning_rate"))
    rate = max((rate for rate in rates if rate is not None), default=0.0)
    if scene.text("algorithm") in BY_COMPARISON:
        usual, kind = FAST, "training by rewards or preferences"
    elif scene.text("framework") in {"transformers", "trl", "verl"}:
        usual, kind = FINE_TUNING, "fine-tuning"
    else:
        usual, kind = FROM_SCRATCH, "any training"
    if "peft" in scene.facts:
        usual, kind = 10.0 * usual, f"{kind} with adapters"
    return [Clue(0.3, f"The learning rate is {rate:g}, high for {kind}.")] if rate > usual else []


def _no_warm_up(scene: Scene) -> bool:
    told = [scene.number("warmup_steps"), scene.number("warmup_ratio")]
    return any(told) is False and any(each is not None for each in told)
