"""Value function unfit: the value model misleads, and the policy learns from its errors.

Its advantages are noisier than plain returns would be: what was better than usual counts as worse,
and the reward stands still, or is lost again.

Clues
    A value model that explains less than a constant, before the reward stood or fell, is the heart
    of it; an algorithm that has one is known by that. Where KL or entropy left as well, the value
    model could not follow a policy that ran off.

Source
    Schulman et al. 2016 (arXiv:1506.02438) on advantages from a value model; VAPO
    (arXiv:2504.05118) on training it ahead of the policy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.model.diagnosis import Clue, Scene, led, seen
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import lever

CLIPPED = 0.5
"""Share of value predictions that are clipped at which most of its error teaches nothing."""


class ValueFunctionUnfit:
    """Judges by the fit of the value model, and by the reward."""

    title: ClassVar[str] = "the value model misleads the policy"
    explains: ClassVar[frozenset[str]] = frozenset({
        "value_fit", "reward_stalled", "reward_collapse",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def clues(self, scene: Scene) -> Iterable[Clue]:
        """The fit and what came of it; nothing where it followed the policy's fall."""
        unfit, fall = scene.first("value_fit"), scene.first("reward_collapse")
        away = scene.first("kl_blowup", "entropy_collapse", "entropy_explosion")
        if unfit is None or away is not None or not led(unfit, fall):
            return
        yield from seen(unfit, 0.5)
        yield from seen(fall or scene.first("reward_stalled"), 0.4)
        clipped = scene.values.get("value_clip_fraction")
        if clipped is not None and clipped > CLIPPED:
            yield Clue(0.2, f"{clipped:.0%} of the value predictions are clipped.")

    def remedy(self, scene: Scene) -> str:
        """Let it learn first, and faster."""
        facts = scene.facts
        return (
            f"Train the value model before the policy ({lever('value model head start', facts)}), "
            f"raise {lever('value model learning rate', facts)} or "
            f"{lever('value coefficient', facts)}, bound the rewards, and check that values and "
            "returns are of the same steps. RLOO and GRPO do without one."
        )
