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

from sentinel.causes._evidence import symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting

EXCLUDING_DETECTORS = ("kl_blowup", "entropy_collapse", "entropy_explosion", "repetition")

NEAR_LIMIT_SHARE = 0.6
"""Share of the limit from which on the mean length leaves no room for the longer half."""

LOOPING_SHARE = 0.4
"""Share of repeated phrases from which on texts loop: that of repetition."""


class AnswersCutOff:
    """Judges by truncation and length, of texts that do not loop."""

    title: ClassVar[str] = "answers are longer than they may be"
    explains: ClassVar[frozenset[str]] = frozenset({
        "truncation", "length_explosion", "reward_stalled", "reward_collapse",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """What is cut and how it came about; nothing of a policy that is ill otherwise."""
        cut, grown = (
            context.earliest_symptom("truncation"),
            context.earliest_symptom("length_explosion"),
        )
        fall = context.earliest_symptom("reward_collapse")
        if cut is None or context.earliest_symptom(*EXCLUDING_DETECTORS) is not None:
            return
        if fall is not None and grown is None:
            # Many a healthy run cuts a third of its answers, which costs it no reward.
            return
        yield from symptom_evidence(cut, 0.5 if cut.severity is Severity.INFO else 0.6)
        yield from symptom_evidence(grown, 0.5)
        yield from symptom_evidence(fall or context.earliest_symptom("reward_stalled"), 0.4)
        length, limit = (
            context.values.get("completion_length"),
            context.number("max_completion_length"),
        )
        if length is not None and limit is not None and length > NEAR_LIMIT_SHARE * limit:
            yield Evidence(
                0.3, f"The mean answer has {length:.4g} tokens of the {limit:g} allowed."
            )
        repeats = context.values.get("sample_repetition")
        if repeats is not None and repeats < LOOPING_SHARE:
            yield Evidence(
                0.2, f"Texts do not loop: {repeats:.0%} of their phrases are repetitions."
            )

    def remedy(self, context: CaseContext) -> str:
        """Room, or a reason to be brief."""
        facts = context.metadata
        return (
            "Read the end of a few answers that were cut. If they were getting somewhere, raise "
            f"{describe_setting('maximum completion length', facts)}, or leave them out of the loss with "
            f"{describe_setting('mask for truncated completions', facts)}; if they ramble, let the reward "
            "fall off before the limit, so that brevity pays."
        )
