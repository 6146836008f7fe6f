"""Policy collapse: the policy runs from its reference, and loses what it was rewarded for.

It drifts where the KL term hardly holds it or where steps are too large, until its texts leave
what the reward was made for; then the reward falls off, and texts repeat, grow or thin out.

Clues
    The reward's fall is the heart of it. KL that rose no later than the reward fell is the classic
    sign, entropy or length that left their range before it another: two of three policy runs log
    no KL. A KL coefficient below `WEAK` or steps above `FAST` are why.

Source
    Ouyang et al. 2022 (arXiv:2203.02155) on what the KL term is for; the collapses of the labelled
    logs, where reward, length and entropy leave within 80 points of each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.diagnosis import Clue, Scene, seen
from sentinel.finding import Severity
from sentinel.levers import lever

WEAK = 0.01
"""KL coefficient below which the term is weaker than what frameworks ship (0.04 to 0.2)."""

FAST = 1e-5
"""Learning rate above which a full fine-tuning by reward is fast."""

LATER = 8
"""Steps by which the sign of a parent may seem to begin after that of its child: detectors differ
in how early they doubt."""


class PolicyCollapse:
    """Judges by the reward's fall, and by what began no later."""

    title: ClassVar[str] = "policy collapse"
    explains: ClassVar[frozenset[str]] = frozenset({
        "kl_blowup", "kl_drift", "reward_collapse", "entropy_collapse", "entropy_explosion",
        "length_explosion", "length_collapse", "repetition", "truncation", "grad_explosion",
        "clip_saturation", "reward_zero_variance", "loss_spike", "loss_divergence", "kl_negative",
        "value_fit",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = Severity.CRITICAL

    def clues(self, scene: Scene) -> Iterable[Clue]:
        """The fall and what came before it; nothing without a fall, or with nothing else wrong."""
        fall = scene.first("reward_collapse", "repetition")
        if fall is None:
            return
        before = [
            sign
            for sign in (
                scene.first("kl_blowup", "kl_drift"),
                scene.first("entropy_collapse", "entropy_explosion"),
                scene.first("length_explosion", "length_collapse"),
            )
            if sign is not None
        ]
        if not before or min(sign.onset_step for sign in before) > fall.onset_step + LATER:
            return
        yield from seen(fall, 0.5)
        for sign in before:
            yield from seen(sign, 0.5)
        yield from seen(scene.first("reward_zero_variance"), 0.2)
        yield from _why(scene)

    def remedy(self, scene: Scene) -> str:
        """Back to before, and hold it tighter."""
        return (
            "Stop it and go on from the last checkpoint before it began, with "
            f"{lever('KL coefficient', scene.facts)} 2 to 5 times as high and "
            f"{lever('learning rate', scene.facts)} halved. If it happens again at the same "
            "samples, read them: the reward may pay for what nobody wants."
        )


def _why(scene: Scene) -> Iterable[Clue]:
    beta = scene.number("beta", "kl_coef", "kl_loss_coef")
    if beta is not None and beta < WEAK:
        yield Clue(0.3, f"The KL coefficient is {beta:g}, which hardly holds the policy.")
    rate = scene.number("learning_rate") or scene.values.get("learning_rate")
    if rate is not None and rate > FAST:
        yield Clue(0.2, f"The learning rate is {rate:g}, fast for training by reward.")
