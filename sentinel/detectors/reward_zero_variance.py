"""Rewards without variance: all completions of a prompt have one reward; nothing is learned.

Formula
    idle     = frac_zero_std if it is logged; otherwise 1 if reward_std is 0; otherwise, for a run
               that logs the length of its completions, 1 if the reward equals the previous one
    lasting  = the mean of `idle` over the last `points` is at least `share`; at the start of a run
               over twice as many. Where each share is of one group, and so 0 or 1: as a share q
               of the n values before was, that of the last k >= `points` has a relative entropy of
               over `surprise` / min(k, n)
    floor    = each of the last k >= `few` is at least `share`, as a share q of the n values before
               was, with min(k, n) * ln(1/q) > `surprise`, and the mean reward of these is in the
               lowest tenth of its range
    Finding  = lasting or floor
    info     = the mean reward of these is near its highest, by 25 % of its range, or of that from
               0 or to 1: the prompts are solved; or lasting, and no spread of rewards is logged:
               a sparse reward has equal means as well
    where equal means count half in `surprise`, since one that differs differs from two.

Units
    `share`: fraction of 1. `points`, `few`: logged values. `surprise`: nats.

Source
    The advantage of GRPO (arXiv:2402.03300) and RLOO is the reward minus that of the other
    completions of the same prompt. DAPO (arXiv:2503.14476) skips such prompts and samples further.

Defaults
    Healthy runs on hard prompts have 0.5 to 0.8 of their groups idle; `share` 0.9 is beyond that,
    and `points` 16 of them are no coincidence. A run without variance so far has twice as long,
    since a policy may need some attempts until its first reward. On hard prompts with one group a
    value, 16 in a row are common: of 240 runs with up to 0.75 idle (18,298 points) none has a
    warning by the relative entropy, and 7 had without. `few` 6 at the floor are as sure
    where they were rare before: `surprise` 12 is a chance of 6 in a million. On fresh synthetic
    runs without a logged spread, 80 of sparse rewards have no warning in 62,097 points.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf, isfinite, log

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.stats.share_of_one import are_shares_of_one

SOLVED_RANGE_SHARE = 0.25
"""Distance of the mean from the highest reward, as a fraction of the range, that is solved."""

FLOOR_RANGE_SHARE = 0.1
"""Distance of the mean from the lowest reward, as a fraction of the range, that is the floor."""

MAX_VALUES = 64
"""Newest values that are kept, in which the onset is searched."""

EQUAL_WEIGHT = 0.5
"""Weight of equal mean rewards as evidence: a reward that differs differs from two."""

ONSET_SHARE = 0.85
"""Idle share above which a value belongs to the idle stretch rather than to what was before."""

ONSET_DOUBT = 0.5
"""Sum of idle shares by which the earliest and the latest onset fit less well."""


ROUNDING_MARGIN = 1 - 1e-9
"""Share of a bound below which a value cannot bring a mean to it, even by rounding errors."""


@dataclass
class RewardZeroVariance(DetectorDefaults):
    """Evaluates `frac_zero_std`, `reward_std` or `reward`, the first of them that is logged."""

    share: float = 0.9
    points: int = 16
    few: int = 6
    surprise: float = 12.0

    needs = frozenset({"reward"})
    signal = "frac_zero_std"
    remedy = (
        "Inspect the rewards of one group; if all completions are wrong, check the parsing of "
        "the reward first. Use harder prompts if all completions are correct, and easier ones if "
        "all are wrong. Raise {number of completions per prompt}, or skip such prompts with "
        "{filter for zero-variance groups}."
    )

    def __post_init__(self) -> None:
        self._points: deque[tuple[int, float, float]] = deque(maxlen=MAX_VALUES)
        """Step, idle share and reward of the newest values."""
        self._lowest_reward, self._highest_reward = inf, -inf
        self._last_reward: float | None = None
        self._has_varied = self._is_spread_known = self._has_fractions = self._is_lasting = False
        self._count = self._idle_count = self._idle_run = 0
        self._last_idle = 0
        """The number of the last value that is idle, or short of it by a rounding error; from 1."""

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate the reward of one step."""
        reward = record.values["reward"]
        idle = self._zero_variance_share(record, reward) if isfinite(reward) else None
        if idle is None:
            return None
        self._lowest_reward = min(self._lowest_reward, reward)
        self._highest_reward = max(self._highest_reward, reward)
        self._points.append((record.step, idle, reward))
        self._count += 1
        if idle >= ROUNDING_MARGIN * self.share:
            self._last_idle = self._count + 1
        self._idle_run = self._idle_run + 1 if idle >= self.share else 0
        self._idle_count += idle >= self.share
        if not self._has_varied and self._count >= self.points:
            self._has_varied = self._mean_idle(self.points) < self.share
        self._has_fractions |= 0.0 < idle < 1.0 or "frac_zero_std" not in record.values
        window = self.points if self._has_varied else 2 * self.points
        is_idle = (
            self._count >= window
            # One of the newest values is idle.
            and self._count - self._last_idle < window
            and self._mean_idle(window) >= self.share
        )
        self._is_lasting = is_idle and (
            self._is_lasting
            or self._has_fractions
            or not self._has_varied
            or self._is_unlikely(window)
        )
        if self._is_lasting:
            return self._finding(window, reward)
        if self._idle_run >= self.few and self._is_at_floor():
            return self._finding(self._idle_run, reward)
        return CLEAR if self._count >= window else None

    @property
    def _weight(self) -> float:
        return 1.0 if self._is_spread_known else EQUAL_WEIGHT

    def _zero_variance_share(self, record: Record, reward: float) -> float | None:
        values = record.values
        last, self._last_reward = self._last_reward, reward
        share, spread = values.get("frac_zero_std"), values.get("reward_std")
        self._is_spread_known = share is not None or spread is not None
        if share is not None:
            return share if 0.0 <= share <= 1.0 else None
        if spread is not None:
            return float(spread == 0.0) if isfinite(spread) else None
        return float(reward == last) if "completion_length" in values else None

    def _latest(self, count: int) -> list[tuple[int, float, float]]:
        return list(self._points)[-count:]

    def _mean_idle(self, count: int) -> float:
        latest = self._latest(count)
        return sum([idle for _, idle, _ in latest]) / len(latest)

    def _is_unlikely(self, window: int) -> bool:
        """Whether so many idle values of one group each are no chance, by their share before."""
        for count in range(window, len(self._points) + 1, self.points):
            now = self._mean_idle(count)
            before = self._count - count
            usual = (self._idle_count - now * count + 1) / (before + 2)
            nats = now * log(now / usual)
            nats += (1 - now) * log((1 - now) / (1 - usual)) if now < 1.0 else 0.0
            if now >= self.share > usual and min(count, before) * nats > self.surprise:
                return True
        return False

    def _is_at_floor(self) -> bool:
        before = self._count - self._idle_run
        share = (self._idle_count - self._idle_run + 1) / (before + 2)
        extent = self._highest_reward - self._lowest_reward
        return (
            min(before, self._idle_run) * log(1.0 / share) > self.surprise / self._weight
            and extent > 0.0
            and self._mean_reward(self._idle_run) - self._lowest_reward
            <= FLOOR_RANGE_SHARE * extent
        )

    def _mean_reward(self, count: int) -> float:
        latest = self._latest(count)
        return sum(reward for _, _, reward in latest) / len(latest)

    def _onset(self) -> tuple[int, int, int]:
        """The earliest, the likely and the latest step at which groups became idle.

        From there on, the sum of the later values, each less `ONSET_SHARE`, is largest.
        """
        total, sums = 0.0, []
        for _, idle, _ in reversed(self._points):
            total += idle - ONSET_SHARE
            sums.append(total)
        sums.reverse()
        best = max(sums)
        near = [
            at for at, each in enumerate(sums) if each >= best - ONSET_DOUBT * (1 - ONSET_SHARE)
        ]
        steps = [step for step, _, _ in self._points]
        return steps[near[0]], steps[sums.index(best)], steps[near[-1]]

    def _is_solved(self, level: float) -> bool:
        """Whether a mean reward is so high that nearly all groups earn the highest reward."""
        bottom, top = min(self._lowest_reward, 0.0), self._highest_reward
        if are_shares_of_one(self._lowest_reward, top):
            top = 1.0
        # What never varied taught nothing, and so has not been solved by the training.
        is_varied = self._has_varied and self._highest_reward > self._lowest_reward
        return is_varied and top - level <= SOLVED_RANGE_SHARE * (top - bottom)

    def _finding(self, count: int, reward: float) -> Finding:
        mean, level = self._mean_idle(count), self._mean_reward(count)
        is_solved = self._is_solved(level)
        suffix = ", near its highest" if is_solved else ""
        earliest, onset, latest = self._onset()
        what = (
            "of the groups all completions have the same reward"
            if self._is_spread_known
            else f"of the last {count} records the mean reward is that of the record before"
        )
        is_usual = not (self._is_spread_known or self._is_at_floor())
        return Finding(
            summary=f"In {mean:.0%} {what}; the mean reward is {level:.4g}{suffix}.",
            evidence={
                "share_of_groups_without_variance": mean,
                "reward": reward,
                "mean_reward": level,
                "highest_reward": self._highest_reward,
            },
            severity=Severity.INFO if is_solved or is_usual else None,
            onset_step=onset,
            onset_range=(earliest, latest),
        )
