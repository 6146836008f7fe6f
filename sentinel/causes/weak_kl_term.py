"""Weak KL term: the KL term is too weak, and the policy moves away from its reference.

The reward has not fallen yet, so there is time: this is the early stage of a policy collapse, or of
a hacked reward.

Evidence
    The KL to the reference rises, and a KL coefficient that is small or 0, or a high learning rate,
    allows it. Once the reward falls or texts repeat, it is a policy collapse.

Source
    Ouyang et al. 2022 (arXiv:2203.02155), section 3.5, on the purpose of the penalty per token; Gao
    et al. 2023 (arXiv:2210.10760) on the distance at which the true reward falls.
"""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.causes._evidence import (
    StatedCause,
    stronger_kl_advice,
    weak_kl_control_evidence,
    weighted_evidence,
)
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.signals.setting_names import describe_setting
from sentinel.signals.usual_learning_rate import usual_learning_rate


class WeakKlTerm(StatedCause):
    """Diagnoses by a rising KL, and by the settings that allow it."""

    title = "weak KL term"
    explains = frozenset({"kl_blowup", "kl_drift"})
    excluded_by = frozenset({"reward_collapse", "repetition"})
    sign = (
        "the KL to the reference rises steadily while the reward does not fall, and a higher "
        "KL coefficient prevents it"
    )

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The KL and its reason."""
        # A run without a reference has no such term.
        rise = list(weighted_evidence(context, {"kl_blowup or kl_drift": 0.5}))
        if rise and "kl_ref" in context.values:
            yield from (*rise, *weak_kl_control_evidence(context))

    def remedy(self, context: CaseContext) -> str:
        """Strengthen the KL term."""
        name, usual = "learning rate", usual_learning_rate(context.metadata)
        rate = context.number("learning_rate") or context.values.get("learning_rate") or 0.0
        setting = describe_setting(name, context.metadata)
        advice = f"If that costs reward, halve {setting} instead."
        if usual is not None and rate > usual.highest:
            advice = f"Lower {setting} to {usual.highest:g} or less, usual for {usual.kind}."
        return (
            "Resume from the last checkpoint before the onset with "
            f"{stronger_kl_advice(context)}. {advice}"
        )
