"""What the detectors of one run share: the baselines of its signals, and the gain of its reward."""

from __future__ import annotations

from dataclasses import dataclass, field

from sentinel.stats.baseline import Baseline
from sentinel.stats.reward_gain import RewardGain


@dataclass(slots=True)
class SharedBaselines:
    """Baselines by signal, of those signals that have had a finite value.

    `reward_gain` is updated with the reward of each record that updates a baseline.
    """

    by_signal: dict[str, Baseline] = field(default_factory=dict)
    reward_gain: RewardGain = field(default_factory=RewardGain)

    def get(self, signal: str) -> Baseline | None:
        """The baseline of a signal, None before its first finite value."""
        return self.by_signal.get(signal)
