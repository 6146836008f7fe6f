"""Reward zero variance: all completions of a prompt have the same reward, so nothing is learned.

Formula
    idle     = frac_zero_std if it is logged; otherwise 1 if reward_std is 0; otherwise, for a run
               that logs the length of its completions, 1 if the reward equals the previous one
    Finding  = the mean of `idle` over the last `points` is at least `share`; at the start of a run
               over twice as many
    info     = the reward is at its highest: the prompts are solved

Units
    `share`: fraction of 1. `points`: logged values.

Source
    The advantage of GRPO (arXiv:2402.03300) and RLOO is the reward minus that of the other
    completions of the same prompt. DAPO (arXiv:2503.14476) skips such prompts and samples further.

Defaults
    On public logs all 4 runs labelled so are found, and no other. Healthy runs on hard prompts have
    0.5 to 0.8 of their groups idle; `share` 0.9 is beyond that, and `points` 16 of them are no
    coincidence. A run without variance so far has twice as long, since a policy may need some
    attempts until its first reward.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf, isfinite
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record

SOLVED_RANGE_SHARE = 0.02
"""Distance from the highest reward, as a fraction of the range, that counts as solved."""


@dataclass
class RewardZeroVariance:
    """Evaluates `frac_zero_std`, `reward_std` or `reward`, the first of them that is logged."""

    share: float = 0.9
    points: int = 16

    needs: ClassVar[frozenset[str]] = frozenset({"reward"})
    signal: ClassVar[str] = "frac_zero_std"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Inspect the rewards of one group. If all completions are correct, the prompts are too "
        "easy; if all are wrong, too hard, or the reward does not distinguish them: check its "
        "parsing first. Then sample more completions per prompt (TRL num_generations, verl "
        "rollout.n), or skip such prompts (verl algorithm.filter_groups.enable=True)."
    )

    def __post_init__(self) -> None:
        self._zero_variance_shares: deque[float] = deque()
        self._steps: deque[int] = deque()
        self._lowest_reward, self._highest_reward = inf, -inf
        self._last_reward: float | None = None
        self._has_varied = False

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate the reward of one step."""
        reward = record.values["reward"]
        idle = self._zero_variance_share(record, reward) if isfinite(reward) else None
        if idle is None:
            return None
        self._lowest_reward, self._highest_reward = (
            min(self._lowest_reward, reward),
            max(self._highest_reward, reward),
        )
        self._zero_variance_shares.append(idle)
        self._steps.append(record.step)
        if len(self._zero_variance_shares) > 2 * self.points:
            self._zero_variance_shares.popleft()
            self._steps.popleft()
        if not self._has_varied and len(self._zero_variance_shares) >= self.points:
            self._has_varied = self._recent_mean(self.points) < self.share
        window = self.points if self._has_varied else 2 * self.points
        if len(self._zero_variance_shares) < window:
            return None
        mean = self._recent_mean(window)
        if mean < self.share:
            return Clear()
        return self._finding(mean, reward, min(self._steps[-window], record.step))

    def _zero_variance_share(self, record: Record, reward: float) -> float | None:
        values = record.values
        last, self._last_reward = self._last_reward, reward
        share, spread = values.get("frac_zero_std"), values.get("reward_std")
        if share is not None:
            return share if 0.0 <= share <= 1.0 else None
        if spread is not None:
            return float(spread == 0.0) if isfinite(spread) else None
        return float(reward == last) if "completion_length" in values else None

    def _recent_mean(self, count: int) -> float:
        return sum(list(self._zero_variance_shares)[-count:]) / count

    def _finding(self, mean: float, reward: float, onset: int) -> Finding:
        extent = self._highest_reward - self._lowest_reward
        is_solved = extent > 0 and self._highest_reward - reward <= SOLVED_RANGE_SHARE * extent
        suffix = ", its highest level" if is_solved else ""
        return Finding(
            summary=f"In {mean:.0%} of the groups all completions have the same reward; the mean "
            f"reward is {reward:.4g}{suffix}.",
            evidence={
                "share_of_groups_without_variance": mean,
                "reward": reward,
                "highest_reward": self._highest_reward,
            },
            severity=Severity.INFO if is_solved else None,
            onset_step=onset,
        )
