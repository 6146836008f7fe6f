"""Answers cut off: the longest answer is shorter than what the policy has to say.

An unfinished answer earns what an unfinished one earns, however good its way there; the policy is
taught against thinking at length, and the reward stands still or falls.

Clues
    Many answers that are cut off are the heart of it, answers that grow towards the limit how it
    came about, and a reward that stands or falls what it costs. Samples that do not repeat say
    that the texts were getting somewhere. Where texts loop, or KL or entropy left, length is a
    symptom.

Source
    DAPO (arXiv:2503.14476), section 3.4, on what cut answers do to the reward; Dr. GRPO
    (arXiv:2503.20783) on why answers grow.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.model.diagnosis import Clue, Scene, seen
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import lever

ILL = ("kl_blowup", "entropy_collapse", "entropy_explosion", "repetition")

NEAR = 0.6
"""Share of the limit from which on the mean length leaves no room for the longer half."""

LOOPS = 0.4
"""Share of repeated phrases from which on texts loop: that of repetition."""


class AnswersCutOff:
    """Judges by truncation and length, of texts that do not loop."""

    title: ClassVar[str] = "answers are longer than they may be"
    explains: ClassVar[frozenset[str]] = frozenset({
        "truncation", "length_explosion", "reward_stalled", "reward_collapse",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def clues(self, scene: Scene) -> Iterable[Clue]:
        """What is cut and how it came about; nothing of a policy that is ill otherwise."""
        cut, grown = scene.first("truncation"), scene.first("length_explosion")
        fall = scene.first("reward_collapse")
        if cut is None or scene.first(*ILL) is not None:
            return
        if fall is not None and grown is None:
            # Many a healthy run cuts a third of its answers, which costs it no reward.
            return
        yield from seen(cut, 0.5 if cut.severity is Severity.INFO else 0.6)
        yield from seen(grown, 0.5)
        yield from seen(fall or scene.first("reward_stalled"), 0.4)
        length, limit = scene.values.get("completion_length"), scene.number("max_completion_length")
        if length is not None and limit is not None and length > NEAR * limit:
            yield Clue(0.3, f"The mean answer has {length:.4g} tokens of the {limit:g} allowed.")
        repeats = scene.values.get("sample_repetition")
        if repeats is not None and repeats < LOOPS:
            yield Clue(0.2, f"Texts do not loop: {repeats:.0%} of their phrases are repetitions.")

    def remedy(self, scene: Scene) -> str:
        """Room, or a reason to be brief."""
        facts = scene.facts
        return (
            "Read the end of a few answers that were cut. If they were getting somewhere, raise "
            f"{lever('longest answer', facts)}, or leave them out of the loss with "
            f"{lever('mask for answers that were cut off', facts)}; if they ramble, let the reward "
            "fall off before the limit, so that brevity pays."
        )
