"""Reward collapse: the policy has lost a large part of its reward.

Formula
    drawdown = over the last 4, 8, 16, 32 or 64 rewards, the mean is below the best such mean by
               more than `errors` standard errors and `lost` of the gain; where nothing was gained,
               it is as far below the mean of all rewards before
    step     = in the first 64 rewards, cut in two where two levels fit best, the later level, of at
               least 6 rewards, is lower by more than `errors` standard errors and `sigmas`
               standard deviations, and at most a tenth of the rewards, and of the earlier ones, is
               nearer to the other level
    low      = the last rewards, at least 8, are all as low as a share q of those before, with
               count * ln(1/q) > `surprise`; and they are all equal, or below the median before by
               `sigmas` standard deviations of those before or of the later half of them, and the
               count is divided by that of correlated rewards worth one independent one
    Finding  = drawdown, step or low, each larger than `least` of the size of the reward; until half
               of the fall is regained
    critical = the same with twice the significance, over at least 16 rewards, with a loss of more
               than 95 % of the gain, or of half of it 64 rewards after it was found; a drawdown
               after the first 64 rewards only, a step of 4.5 standard deviations; and the reward
               does not rise again: 48 rewards after it was found or later, the slope of those since
               is less than a standard error, or at least 8 of them are all equal
    where gain is the best mean minus that of the first 8 rewards, if that is significant, and a
    standard error is the larger of that of single rewards, with their autocorrelation, and that of
    earlier means of as many, both from falls before the last half or 64 of the rewards. Rewards
    that repeat each other count as fewer; of the means of the last 100 episodes that control
    libraries log, each that has 12.5 new ones is evaluated, 6 in the first 400. The onset is the
    first of the last rewards that are below the middle of both levels, but for single ones.

Units
    The unit of `reward` is irrelevant. `errors`: standard errors of a mean. `sigmas`: standard
    deviations of single rewards. `lost`: fraction of the gain. `least`: fraction of the size of the
    reward. `surprise`: nats.

Source
    Drawdown of the mean at several scales, with the noise of falls only; two levels as in Hinkley,
    Biometrika 1970; the bound on the best of several means is sqrt(2 ln n), as for normal noise.

Defaults
    On fresh synthetic runs there is no finding in 340,988 healthy points of 400 runs, none in 400
    coins and none in 400 take-offs, and 4 warnings in 400 sparse rewards. A loss of 50 % of the
    gain in 40 points, 80 % in 15 or 120 % in 3 is found in 367, 395 and 398 of 400 runs, after a
    median of 37, 12 and 5 points. `lost` 0.4 and `sigmas` 3 exclude fluctuations that are
    significant but harmless, `least` 0.05 those of a control task at its floor. `surprise` 19 is a
    chance of 6 in 10^9. All this holds up to a lag-one
    correlation of 0.3, below which real rewards are (90 % are below 0.13); at 0.6 to 0.8 noise
    alone gives several warnings in 10,000 points. Swings of 30 to 90 % of the gain that come back
    within 20 to 80 points still give 46 warnings in 10,000 points, but no critical in 160 fresh
    runs; of 120 falls of 70 to 110 % that last, all are found and 110 are critical. A policy
    whose task is replaced by another of the same kind learns it within 100 to 400 steps: with 64
    samples a step 0 of 24 such runs are critical, with 16 samples 12 of 24; where the reward stays
    at chance 48 of 48 are, after a median of 52 rewards.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from itertools import islice
from math import log

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Severity
from sentinel.model.quantity_text import distinct_texts
from sentinel.model.record import Record
from sentinel.stats.block_means import linear_fall
from sentinel.stats.episode_window import EpisodeWindow, is_episode_mean
from sentinel.stats.mean_drawdown import RECENT_VALUES, SCALES, START_VALUES, Fall, MeanDrawdown
from sentinel.stats.mean_fall import MeanFall, find_fall
from sentinel.stats.neighbour_correlation import neighbour_correlation
from sentinel.stats.rolling_quantiles import median_of_sorted, sigma_of_sorted

MAX_REWARD = 1e100
"""Larger rewards, whose squares overflow, are ignored as NaN is."""

YOUNG_REWARDS = 64
"""Rewards of a run up to which two levels are compared without knowing the noise before."""

MIN_FALL_REWARDS = 4
"""Rewards nearer to the current than to the best mean: a dip of three is no fall."""

MIN_FALL_SHARE = 3 / 8
"""The same as a share of the rewards of a mean; of few values, not all are low after a fall."""

MIN_STEP_REWARDS = 6
"""Rewards at the lower of two levels."""

MAX_MIXED_SHARE = 0.1
"""Largest share of the rewards that are nearer to the other of the two levels."""

MIN_LOW_REWARDS = 8
"""Last rewards that are all low."""

CRITICAL_FACTOR = 2.0
"""Factor on the significance of a critical fall."""

CRITICAL_REWARDS = 16
"""Rewards that show a critical fall: it lasts."""

CRITICAL_GAIN_SHARE = 0.95
"""Share of the gain that a critical fall takes: a lesser one may come back."""

LASTING_GAIN_SHARE = 0.5
"""The same for a fall that has lasted for `LASTING_REWARDS`."""

LASTING_REWARDS = 64
"""Rewards since a fall was found, after which few come back."""

TURN_REWARDS = 48
"""Rewards since a fall was found in which a task that got harder shows that it is learned."""

TURN_ERRORS = 1.0
"""Standard errors of its slope by which a reward rises again since it fell."""

CRITICAL_STEP_SIGMAS = 4.5
"""Standard deviations by which two levels of the first rewards differ in a critical fall."""

SUSPICIOUS_SHARE = 1 / 3
"""Share of `errors` from which every reward is evaluated; otherwise every fourth is, and those that
are lower than the last `CRITICAL_REWARDS`."""


@dataclass
class RewardCollapse(DetectorDefaults):
    """Evaluates the mean of `reward` at five scales."""

    errors: float = 4.5
    lost: float = 0.4
    least: float = 0.05
    sigmas: float = 3.0
    surprise: float = 19.0

    needs = frozenset({"reward"})
    signal = "reward"
    remedy = (
        "Check that the reward service answers, and compare samples from before and after the "
        "onset. If the policy has collapsed, resume from the checkpoint before the onset, and "
        "raise {KL coefficient} or lower {learning rate}. If the task got harder on purpose, "
        'declare it with `sentinel.mark("stage")`.'
    )

    def __post_init__(self) -> None:
        self._drawdown = MeanDrawdown()
        self._window = EpisodeWindow()
        self._steps: deque[int] = deque(maxlen=RECENT_VALUES)
        self._is_suspicious = False
        self._has_fallen = self._is_critical = False
        self._before = self._after = 0.0
        self._scale = self._fallen_count = 0
        self._start_end = 0
        self._onset = 0

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one reward."""
        reward = record.values["reward"]
        if not abs(reward) < MAX_REWARD:
            return None
        if is_episode_mean(record.attributes.get("reward", "")) and not self._window.update(
            record.values, record.step
        ):
            return None
        drawdown = self._drawdown
        drawdown.add(reward)
        self._steps.append(record.step)
        if drawdown.count <= START_VALUES:
            self._start_end = record.step
        self._fallen_count = self._fallen_count + 1 if self._has_fallen else 0
        if self._has_fallen and self._is_regained():
            self._has_fallen = self._is_critical = drawdown.is_frozen = False
        if not self._is_critical and (
            self._is_suspicious
            or drawdown.count <= YOUNG_REWARDS
            or drawdown.count % SCALES[0] == 0
            or reward < min(islice(reversed(drawdown.recent), 1, 1 + CRITICAL_REWARDS))
        ):
            self._evaluate()
        if self._has_fallen:
            return self._finding(reward)
        return CLEAR if drawdown.count >= CRITICAL_REWARDS else None

    def _evaluate(self) -> None:
        values = list(self._drawdown.recent)
        self._evaluate_drawdown()
        if self._drawdown.count <= YOUNG_REWARDS:
            self._evaluate_step(values)
        self._evaluate_low(values)

    def _evaluate_drawdown(self) -> None:
        falls = list(self._drawdown.falls())
        errors = max((fall.errors for fall in falls), default=0.0)
        self._is_suspicious = errors > SUSPICIOUS_SHARE * self.errors
        falls = [fall for fall in falls if self._is_fall(fall)]
        if falls:
            # Rewards may be means over many of the same episodes, and fall together by chance.
            correlation = self._correlation(min(fall.scale for fall in falls))
            falls = [fall for fall in self._drawdown.falls(correlation) if self._is_fall(fall)]
        if falls:
            fall = max(falls, key=lambda fall: fall.errors)
            is_critical = any(self._is_critical_fall(fall) for fall in falls)
            self._report((fall.best, fall.current), fall.scale, is_critical=is_critical)

    def _correlation(self, low_count: int) -> float:
        """The correlation of neighbours, 0 if the rewards before the low ones are a curve."""
        values = list(self._drawdown.recent)
        return neighbour_correlation(values) if neighbour_correlation(values[:-low_count]) else 0.0

    def _is_fall(self, fall: Fall) -> bool:
        return (
            fall.errors > self.errors
            and fall.low_count >= max(MIN_FALL_REWARDS, MIN_FALL_SHARE * fall.scale)
            and self._is_large(fall.best, fall.current, fall.gain)
        )

    def _is_critical_fall(self, fall: Fall) -> bool:
        return (
            fall.scale >= CRITICAL_REWARDS
            and fall.errors > CRITICAL_FACTOR * self.errors
            and self._drawdown.count - self._fallen_count > YOUNG_REWARDS
            and self._is_total(fall.size, fall.gain)
        )

    def _is_total(self, size: float, gain: float) -> bool:
        """Whether a fall took nearly all of the gain, or half of it for long."""
        is_lasting = self._fallen_count >= LASTING_REWARDS
        return size > (LASTING_GAIN_SHARE if is_lasting else CRITICAL_GAIN_SHARE) * gain

    def _is_large(self, before: float, after: float, gain: float) -> bool:
        least = self.least * max(abs(before), abs(after))
        return before - after > max(least, self.lost * gain)

    def _evaluate_step(self, values: list[float]) -> None:
        change = find_fall(values)
        if (
            change is None
            or change.low_count < MIN_STEP_REWARDS
            or change.errors <= self.errors
            or change.before - change.after <= self.sigmas * change.sigma
            or not self._is_large(change.before, change.after, 0.0)
            or _mixed_share(values, change) > MAX_MIXED_SHARE
        ):
            return
        is_critical = (
            change.errors > CRITICAL_FACTOR * self.errors
            and change.low_count >= CRITICAL_REWARDS
            and change.before - change.after > CRITICAL_STEP_SIGMAS * change.sigma
        )
        self._report((change.before, change.after), MIN_LOW_REWARDS, is_critical=is_critical)

    def _evaluate_low(self, values: list[float]) -> None:
        if len(values) < MIN_LOW_REWARDS:
            return
        high = max(values[-MIN_LOW_REWARDS:])
        if high >= self._drawdown.best:
            return
        count = next((n for n, value in enumerate(reversed(values)) if value > high), len(values))
        before, low = sorted(values[:-count]), sorted(values[-count:])
        share = (bisect_right(before, high) + 1) / (len(before) + 2)
        surprise = min(count, len(before)) * log(1.0 / share)
        if surprise <= self.surprise:
            return
        level, after = median_of_sorted(before), median_of_sorted(low)
        if low[0] < high:
            # Rewards that are means over many of the same episodes are low together.
            correlation = self._correlation(count)
            surprise *= (1.0 - correlation) / (1.0 + correlation)
            if surprise <= self.surprise:
                return
        # A rise spreads the rewards of the run, not those of its later half.
        later = sorted(values[-count - max(MIN_LOW_REWARDS, len(before) // 2) : -count])
        sigma = min(sigma_of_sorted(before), sigma_of_sorted(later))
        margin = self.sigmas * sigma if low[0] < high else 0.0
        gain = level - self._drawdown.start
        if level - high <= margin or not self._is_large(level, after, gain):
            return
        is_critical = (
            surprise > CRITICAL_FACTOR * self.surprise
            and count >= CRITICAL_REWARDS
            and self._is_total(level - after, gain)
        )
        self._report((level, after), MIN_LOW_REWARDS, is_critical=is_critical)

    def _report(self, levels: tuple[float, float], scale: int, *, is_critical: bool) -> None:
        """Store a fall between two levels, unless a known one is no less severe.

        Means of `scale` rewards show whether it is regained.
        """
        if self._has_fallen and not is_critical:
            return
        if not self._has_fallen:
            self._onset = self._find_onset(*levels)
        self._has_fallen, self._is_critical = True, is_critical
        self._before, self._after = levels
        self._scale = scale
        self._drawdown.is_frozen = True

    def _find_onset(self, before: float, after: float) -> int:
        """The first step of the last rewards that are nearer to the lower level, most of them."""
        middle = (before + after) / 2
        surplus = largest = count = 0
        for at, reward in enumerate(reversed(self._drawdown.recent), start=1):
            surplus += 1 if reward < middle else -1
            if surplus > largest:
                largest, count = surplus, at
            elif surplus <= largest - MIN_FALL_REWARDS:
                break
        return self._steps[-max(1, count)]

    def _is_regained(self) -> bool:
        latest = list(self._drawdown.recent)[-self._scale :]
        return sum(latest) / len(latest) > (self._before + self._after) / 2

    def _has_stayed(self) -> bool:
        """Whether the reward has not risen again in the time that learning takes to show.

        Rewards that are all equal have nothing to learn from.
        """
        latest = list(self._drawdown.recent)[-max(self._fallen_count, 1) :]
        if len(latest) >= MIN_LOW_REWARDS and min(latest) == max(latest):
            return True
        fall, error = linear_fall(latest)
        return len(latest) >= TURN_REWARDS and -fall < TURN_ERRORS * error

    def _finding(self, reward: float) -> Finding:
        start, onset = self._drawdown.start, self._onset
        # The first rewards of a run that fell at once contain the fall.
        suffix = f"; it started at {start:.4g}" if onset > self._start_end else ""
        before, after = distinct_texts(self._before, self._after, digits=4)
        return Finding(
            summary=f"Reward fell from {before} to {after}{suffix}.",
            evidence={
                "reward": reward,
                "reward_before": self._before,
                "reward_now": self._after,
                "reward_at_start": start,
            },
            severity=Severity.CRITICAL if self._is_critical and self._has_stayed() else None,
            onset_step=onset,
        )


def _mixed_share(values: list[float], change: MeanFall) -> float:
    """Share of the values, or of the earlier ones, that are nearer to the other of the two levels.

    Of few earlier values, the highest ones may be chance.
    """
    middle, cut = (change.before + change.after) / 2, len(values) - change.low_count
    early = sum([value < middle for value in values[:cut]])
    late = sum([value >= middle for value in values[cut:]])
    return max((early + late) / len(values), early / cut)
