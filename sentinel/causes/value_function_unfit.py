"""Value function unfit: the value model is wrong, and the policy learns from its errors.

Its advantages are noisier than plain returns: completions better than the mean count as worse, and
the reward stagnates or falls.

Evidence
    A value model that predicts worse than a constant, before the reward stagnated or fell, is the
    main evidence. One that only predicts less well than before makes it possible: the returns of a
    policy that changes are harder to predict. If KL or entropy left their range as well, the value
    model could not follow a drifting policy.

Source
    Schulman et al. 2016 (arXiv:1506.02438) on advantages from a value model; VAPO
    (arXiv:2504.05118) on training it ahead of the policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from sentinel.causes._evidence import StatedCause, certainly_first, symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence

HIGH_CLIP_FRACTION = 0.5
"""Share of clipped value predictions above which most errors contribute no gradient."""


class ValueFunctionUnfit(StatedCause):
    """Diagnoses by the fit of the value model, and by the reward."""

    title = "unfit value model"
    explains = frozenset({
        "value_fit", "reward_stalled", "reward_collapse",
    })  # fmt: skip
    excluded_by = frozenset({
        "kl_blowup", "entropy_collapse", "entropy_explosion",
    })  # fmt: skip
    suggested_by: ClassVar[Mapping[str, float]] = {"reward_collapse": 0.3}
    sign = "the explained variance (log `explained_variance`) was below 0 before the reward fell"
    advice = (
        "Train the value model before the policy ({value model warm-up}), raise {value model "
        "learning rate} or {value coefficient}, bound the rewards, and check that values and "
        "returns belong to the same steps. RLOO and GRPO need no value model."
    )

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The fit and its effects; nothing if the reward fell first."""
        unfit, fall = context.earliest("value_fit"), context.earliest("reward_collapse")
        if unfit is None or not certainly_first(unfit, fall):
            return
        explained = unfit.evidence.get("explained_variance_median_of_8")
        is_better = isinstance(explained, float) and explained > 0.0
        yield from symptom_evidence(unfit, 0.3 if is_better else 0.5)
        yield from symptom_evidence(fall or context.earliest("reward_stalled"), 0.4)
        clipped = context.values.get("value_clip_fraction")
        if clipped is not None and clipped > HIGH_CLIP_FRACTION:
            yield Evidence(0.2, f"{clipped:.0%} of the value predictions are clipped.")

    def contradictions(self, context: CaseContext) -> Iterable[str]:
        """Rewards that are compared within groups of completions, as GRPO and RLOO do."""
        is_grouped = any(name in context.values for name in ("frac_zero_std", "reward_std"))
        if is_grouped and "explained_variance" not in context.values:
            yield "The advantages are those within groups, without a value model."
