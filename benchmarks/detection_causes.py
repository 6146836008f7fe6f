"""The causes that are right for each fault, and the count of diagnoses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from detection_evaluators import NotifiedCase
from detection_families import FAULTY

RIGHT_CAUSES = {
    "kl_blowup": "weak_kl_term learning_rate_too_high",
    "entropy_collapse": "exploration_lost",
    "length_explosion": "answers_cut_off policy_collapse",
    "repetition": "degenerate_text",
    "reward_zero_variance": "no_contrast",
    "policy_collapse": "policy_collapse weak_kl_term too_many_updates",
    "loss_spike": "bad_batch",
    "loss_divergence": "learning_rate_too_high",
    "overfitting": "overfit",
    "oscillation": "learning_rate_too_high",
    "grad_explosion": "learning_rate_too_high",
    "nan_or_inf": "numerical_breakdown",
    "step_stride": "step_counted_twice",
    "straggler": "slow_rank",
}
"""By fault; for other faults nothing in the run shows a cause, so that any named one is wrong."""


def right_causes(fault: str) -> set[str]:
    """The causes that are right for a fault."""
    if fault in FAULTY:
        return set(FAULTY[fault].causes)
    return set(RIGHT_CAUSES.get(fault, "").split())


@dataclass
class Diagnoses:
    """Diagnoses of notified cases: right, wrong by cause, and wrong ones that were critical."""

    cases: int = 0
    right: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    wrong_critical: int = 0

    @property
    def given(self) -> int:
        return self.right + self.wrong.total()

    def add(self, cases: Iterable[NotifiedCase], right: set[str]) -> None:
        """Count the cases of one run; a case without a diagnosis counts as a case only."""
        for case in cases:
            self.cases += 1
            if case.cause in right:
                self.right += 1
            elif case.cause:
                self.wrong[case.cause] += 1
                self.wrong_critical += case.critical

    def merge(self, other: Diagnoses) -> None:
        self.cases, self.right = self.cases + other.cases, self.right + other.right
        self.wrong.update(other.wrong)
        self.wrong_critical += other.wrong_critical
