"""Truncated completions: a growing share of completions is cut off at the length limit.

Formula
    cut      = the median of the last 8 truncated fractions
    Finding  = cut is at least `some`
    warning  = the share of finished completions has fallen to a third of that of the first 5
               records; and each of the last 5 fractions is at least `most`, and the reward is known
               and is not above its level before, or the median of the last 32 fractions is at least
               `most`, whatever the reward does; or that median is, whatever the share was at
               first, and the reward has not risen in 64 records; otherwise info

Units
    `some`, `most`: fraction of the completions of a step.

Source
    A truncated completion earns the reward of an unfinished one and is trained on; DAPO
    (arXiv:2503.14476) masks or shapes its reward. If the reward rises while hardly any completion
    ends, it does not depend on how they end: it is one of length, or of the first tokens.

Defaults
    Healthy reasoning runs truncate up to a third of their completions, which `some` 0.3 shows;
    above `most` 0.8 the reward measures the limit, not the completions. A fraction is a mean over
    dozens of completions: if half of 16 are cut, 13 or more are in 1 of 94 records by chance, and
    in five in a row never. In 40-line logs in which all completions reach a limit of 1.8 times
    their usual length, the warning comes with the fifth such line.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import isfinite
from statistics import median

from sentinel.model.finding import CLEAR, DetectorOutput, Finding, Severity
from sentinel.model.quantity_text import distinct_texts
from sentinel.model.record import Record
from sentinel.stats.k_of_n import KOfN
from sentinel.stats.reward_gain import RewardGain
from sentinel.stats.reward_history import RewardHistory

BASELINE_VALUES = 5
"""First values, whose median is the start."""

LASTING_VALUES = 32
"""Values whose median shows that most completions are cut off for good."""

STALLED_REWARDS = 64
"""Rewards after which one that has not risen is of no use."""

EARNED_REWARD = 0.1
"""A reward that completions earn which are all cut off by design, at a fixed length."""

UNBROKEN_VALUES = 5
"""Fractions of at least `most`, one after the other, that are no chance."""

EARLIER_SHARE = 0.25
"""Share of the rise of the fraction up to which a record belongs to the time before."""

MAX_FINISHED_RATIO = 1 / 3
"""Finished completions, as a fraction of those at the start, that count as a change."""


@dataclass
class Truncation:
    """Evaluates `truncated_fraction`, together with `reward` if it is logged."""

    some: float = 0.3
    most: float = 0.8

    needs = frozenset({"truncated_fraction"})
    signal = "truncated_fraction"
    severity = Severity.INFO
    remedy = (
        "Read the end of a few truncated completions. If they make progress, raise {maximum "
        "completion length} or use {mask for truncated completions}; if they ramble, resume from "
        "the checkpoint before the onset and penalise overlong completions. Check that the stop "
        "token is sampled."
    )

    def __post_init__(self) -> None:
        self._first_fractions: list[float] = []
        self._first_rewards: list[float] = []
        self._recent = KOfN(8)
        self._reward_gain = RewardGain()
        self._reward_history = RewardHistory()
        self._unbroken_count = 0
        self._latest: deque[float] = deque(maxlen=LASTING_VALUES)

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate the truncated fraction of one step."""
        cut, reward = record.values["truncated_fraction"], record.values.get("reward")
        if not 0.0 <= cut <= 1.0:
            return None
        if reward is not None and isfinite(reward):
            self._reward_gain.add(reward)
            self._reward_history.extend((cut,), (reward,))
            if len(self._first_rewards) < BASELINE_VALUES:
                self._first_rewards.append(reward)
        if len(self._first_fractions) < BASELINE_VALUES:
            self._first_fractions.append(cut)
        self._unbroken_count = self._unbroken_count + 1 if cut >= self.most else 0
        self._latest.append(cut)
        is_high = self._recent.add(cut, self.some, record.step)
        if not is_high:
            return None if is_high is None else CLEAR
        return self._finding(self._recent.median)

    def _finding(self, level: float) -> Finding:
        first, gain = median(self._first_fractions), self._reward_gain
        has_fewer_finished = first < level and 1 - level <= MAX_FINISHED_RATIO * (1 - first)
        reward_before = self._reward_before(first, level)
        is_unrewarded = gain.is_ready and (gain.has_lost or not gain.is_above(reward_before))
        is_sudden = self._unbroken_count >= UNBROKEN_VALUES and is_unrewarded
        is_lasting = len(self._latest) == LASTING_VALUES and median(self._latest) >= self.most
        is_rewarded = is_lasting and has_fewer_finished and gain.is_ready and not is_unrewarded
        evidence: dict[str, float | str] = {
            "truncated_share_median_of_8": level,
            "truncated_share_at_start": first,
            **gain.evidence(),
        }
        reward = ""
        if is_rewarded:
            evidence["reward_before_truncation"] = reward_before
            earlier, later = distinct_texts(reward_before, gain.current_level, digits=4)
            reward = f" The reward rises all the same, from {earlier} to {later}."
        # Cut off from the start is no less wrong: healthy runs cut off a third.
        is_fixed = first >= 1.0 and gain.is_ready and gain.current_level > EARNED_REWARD
        is_stalled = gain.count >= STALLED_REWARDS and not gain.has_gained
        is_useless = is_lasting and is_stalled and not is_fixed
        is_warning = is_useless or (has_fewer_finished and (is_sudden or is_lasting))
        now, before = distinct_texts(level, first, digits=2, percent=True)
        return Finding(
            summary=f"{now} of the completions are cut off at the length limit"
            + (", as at the start." if now == before else f"; at the start it was {before}.")
            + reward,
            evidence=evidence,
            severity=Severity.WARNING if is_warning else None,
            onset_step=self._recent.onset,
        )

    def _reward_before(self, first: float, level: float) -> float:
        """The latest reward while hardly more completions were cut off than at first.

        0 without a reward.
        """
        limit = first + EARLIER_SHARE * (level - first)
        before = self._reward_history.reward_at_level(1, limit)
        return median(self._first_rewards or [0.0]) if before is None else before
