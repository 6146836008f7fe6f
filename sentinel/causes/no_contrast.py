"""No contrast: all answers to a prompt earn the same, although they differ.

A policy that is compared with itself learns from what is better and what is worse. Prompts that it
always solves, or never does, teach nothing; nor does a reward that cannot tell answers apart.

Clues
    Groups of one reward are the cause itself. Entropy that is well says that answers do differ, a
    reward that never moved that they were all wrong from the start; few answers a prompt make it
    likelier. Where entropy, reward or KL left first, answers are alike for that reason.

Source
    DAPO (arXiv:2503.14476), which leaves prompts out that are all right or all wrong; the advantage
    of GRPO (arXiv:2402.03300), which is then 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import began_first, symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting

FEW_GENERATIONS = 4
"""Answers a prompt with which one of middling difficulty is often all right or all wrong."""

HEALTHY_ENTROPY = 0.1
"""Nats per token above which answers of some length are hardly ever the same."""


class NoContrast:
    """Judges by groups of one reward, of a policy that is well otherwise."""

    title: ClassVar[str] = "the answers to a prompt all earn the same"
    explains: ClassVar[frozenset[str]] = frozenset({
        "reward_zero_variance", "reward_stalled", "grad_vanishing",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The groups, and why they say nothing; none where something else explains them."""
        alike = context.earliest_symptom("reward_zero_variance")
        ill = context.earliest_symptom(
            "entropy_collapse", "reward_collapse", "kl_blowup", "repetition"
        )
        if alike is None or (ill is not None and began_first(ill, alike)):
            return
        yield from symptom_evidence(alike, 0.5)
        yield from symptom_evidence(context.earliest_symptom("reward_stalled"), 0.3)
        yield from symptom_evidence(context.earliest_symptom("grad_vanishing"), 0.2)
        entropy = context.values.get("entropy")
        if entropy is not None and entropy > HEALTHY_ENTROPY:
            yield Evidence(
                0.2, f"Entropy is well at {entropy:.3g} nats per token: answers do differ."
            )
        each = context.number("num_generations")
        if each is not None and each <= FEW_GENERATIONS:
            yield Evidence(0.2, f"There are only {each:g} answers to a prompt.")

    def remedy(self, context: CaseContext) -> str:
        """By which side of the reward they are on."""
        facts, alike = context.metadata, context.earliest_symptom("reward_zero_variance")
        solved = alike is not None and alike.severity is Severity.INFO
        side = (
            "The prompts are solved: take harder ones, or stop here. "
            if solved
            else "Score a right answer by hand: if it earns nothing, mend the reward's parsing. "
            "Else begin with easier prompts, or some supervised training. "
        )
        return (
            f"{side}Leave out prompts whose answers all earn the same (with "
            f"{describe_setting('filter for zero-variance groups', facts)} where there is one), and sample "
            f"more of each: {describe_setting('completions per prompt', facts)} at 8 to 16."
        )
