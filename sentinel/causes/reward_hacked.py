"""Reward hacked: the policy pleases the reward, and does so by what nobody wanted.

Its reward goes on rising while it leaves its reference and writes more and more, or the same again
and again: the reward pays for length, for a form of words, or for what a reward model never saw.

Clues
    Reward, KL and length that rise together, noted by one detector, are the heart of it; a KL or a
    length that is an alarm by itself, and texts that repeat, confirm it. A reward that has fallen
    is another matter.

Source
    Gao et al. 2023 (arXiv:2210.10760): the true reward falls with distance while the proxy rises;
    Singhal et al. 2023 (arXiv:2310.03716): length is most of what reward models are hacked by.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import stronger_kl_advice, symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity


class RewardHacked:
    """Judges by a reward that rises with KL and length."""

    title: ClassVar[str] = "the reward is being hacked"
    explains: ClassVar[frozenset[str]] = frozenset({
        "reward_hacking", "kl_blowup", "kl_drift", "length_explosion", "truncation", "repetition",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """What rises together, and what is an alarm of it; nothing where the reward fell."""
        together = context.earliest_symptom("reward_hacking")
        if together is None or context.earliest_symptom("reward_collapse") is not None:
            return
        yield from symptom_evidence(together, 0.6)
        yield from symptom_evidence(context.earliest_symptom("kl_blowup", "kl_drift"), 0.4)
        yield from symptom_evidence(context.earliest_symptom("length_explosion", "truncation"), 0.4)
        yield from symptom_evidence(context.earliest_symptom("repetition"), 0.4)

    def remedy(self, context: CaseContext) -> str:
        """Look, stop at what was best, and mend the reward."""
        return (
            "Read the answers of highest reward, and score the checkpoints by a measure that is "
            "not trained on: the best by that one is the result. To go on, take length and "
            "repetition out of the reward or renew the reward model on what the policy says now; "
            f"{stronger_kl_advice(context)} only slows it down."
        )
