"""Degenerate text: the policy loops, and writes on until it is cut off.

Whatever the reward still says of it, such answers are of no use, and a policy that loops seldom
finds out of it by itself.

Clues
    Phrases that repeat, more than they did at first, are the heart of it; answers that grow or are
    cut off are what loops look like from outside. With a KL or an entropy that left before, or a
    reward that falls, it is a policy collapse.

Source
    Welleck et al. 2020 (arXiv:1908.04319) and Holtzman et al. 2020 (arXiv:1904.09751) on repeated
    phrases as the mark of degenerate text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import stronger_kl_advice, symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity


class DegenerateText:
    """Judges by repetition in what is sampled, and by its length."""

    title: ClassVar[str] = "the policy writes in loops"
    explains: ClassVar[frozenset[str]] = frozenset({
        "repetition", "length_explosion", "truncation",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """Loops that grow; nothing of texts that repeat by nature, or with the reward's fall."""
        loops = context.earliest_symptom("repetition")
        if loops is None or loops.severity is Severity.INFO:
            return
        longer, cut = (
            context.earliest_symptom("length_explosion"),
            context.earliest_symptom("truncation"),
        )
        if context.earliest_symptom("reward_collapse") is not None or (
            longer is None and cut is None
        ):
            return
        yield from symptom_evidence(loops, 0.7)
        yield from symptom_evidence(longer, 0.6)
        yield from symptom_evidence(cut, 0.5)

    def remedy(self, context: CaseContext) -> str:
        """Back to before; a penalty at sampling cures nothing."""
        return (
            "Stop it, and go on from the last checkpoint before the onset with "
            f"{stronger_kl_advice(context)}. Check that the end-of-text token is trained on and stops the "
            "sampling, and that the reward gives nothing for length or repeated words. A penalty "
            "on repetition at sampling hides the loops and cures nothing."
        )
