"""Weak KL term: nothing holds the policy near its reference, and it leaves, as yet unpunished.

The reward still stands, so that there is time: this is the early stage of what ends as a policy
collapse, or as a policy that has learnt to please the reward and nothing else.

Clues
    The KL to the reference runs away, while a KL coefficient that is small or 0, or large steps,
    let it. Once the reward falls or texts repeat, it is a policy collapse, and no more said here.

Source
    Ouyang et al. 2022 (arXiv:2203.02155), section 3.5, on what the penalty per token is for;
    Gao et al. 2023 (arXiv:2210.10760) on how far a policy may go before the true reward falls.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import stronger_kl_advice, symptom_evidence, weak_kl_control_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting


class WeakKlTerm:
    """Judges by a KL that runs away, and by the settings that let it."""

    title: ClassVar[str] = "the KL term is too weak to hold the policy"
    explains: ClassVar[frozenset[str]] = frozenset({"kl_blowup", "kl_drift"})
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The KL and why; nothing where the reward has fallen, or texts repeat."""
        away = context.earliest_symptom("kl_blowup", "kl_drift")
        if away is None or context.earliest_symptom("reward_collapse", "repetition") is not None:
            return
        yield from symptom_evidence(away, 0.5)
        yield from weak_kl_control_evidence(context)

    def remedy(self, context: CaseContext) -> str:
        """Hold it before it is too late."""
        return (
            f"Go on with {stronger_kl_advice(context)}, from the last checkpoint before the onset if the "
            "KL is past what you meant to allow. If that costs reward that is truly earned, halve "
            f"{describe_setting('learning rate', context.metadata)} instead; until then keep more checkpoints."
        )
