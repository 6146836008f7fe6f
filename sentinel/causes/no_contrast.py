"""No contrast: all completions of a prompt have the same reward although they differ.

A policy that is compared with itself learns from differences of reward. Prompts that it always
solves, or never does, have none; nor has a reward that does not distinguish completions.

Evidence
    Groups with one reward are the cause itself. A healthy entropy shows that the completions
    differ; a reward that never rose that they were all wrong from the start; few completions per
    prompt make it likelier. If entropy, reward or KL left their range first, that is the reason.

Source
    DAPO (arXiv:2503.14476), which skips prompts that are all right or all wrong; the advantage of
    GRPO (arXiv:2402.03300), which is 0 for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import began_first, symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting

FEW_GENERATIONS = 4
"""Completions per prompt at which groups are often all right or all wrong."""

HEALTHY_ENTROPY = 0.1
"""Nats per token above which completions are hardly ever equal."""


class NoContrast:
    """Diagnoses by groups with one reward, of an otherwise healthy policy."""

    title: ClassVar[str] = "all completions of a prompt have the same reward"
    explains: ClassVar[frozenset[str]] = frozenset({
        "reward_zero_variance", "reward_stalled", "grad_vanishing",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The groups and their reason; nothing if another incident explains them."""
        uniform = context.earliest("reward_zero_variance")
        earlier = context.earliest("entropy_collapse", "reward_collapse", "kl_blowup", "repetition")
        if uniform is None or (earlier is not None and began_first(earlier, uniform)):
            return
        yield from symptom_evidence(uniform, 0.5)
        yield from symptom_evidence(context.earliest("reward_stalled"), 0.3)
        yield from symptom_evidence(context.earliest("grad_vanishing"), 0.2)
        entropy = context.values.get("entropy")
        if entropy is not None and entropy > HEALTHY_ENTROPY:
            yield Evidence(0.2, f"Entropy is {entropy:.3g} nats per token, so completions differ.")
        count = context.number("num_generations")
        if count is not None and count <= FEW_GENERATIONS:
            yield Evidence(0.2, f"There are only {count:g} completions per prompt.")

    def remedy(self, context: CaseContext) -> str:
        """Depends on whether the prompts are solved or too hard."""
        metadata, uniform = context.metadata, context.earliest("reward_zero_variance")
        is_solved = uniform is not None and uniform.severity is Severity.INFO
        advice = (
            "The prompts are solved: use harder ones, or stop here. "
            if is_solved
            else "Score a correct completion manually: if it has no reward, fix the parsing of the "
            "reward. Otherwise start with easier prompts, or some supervised training. "
        )
        return (
            f"{advice}Skip prompts whose completions have the same reward (with "
            f"{describe_setting('filter for zero-variance groups', metadata)} if available), and "
            f"set {describe_setting('completions per prompt', metadata)} to 8 to 16."
        )
