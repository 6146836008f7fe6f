"""Length collapse: completions have become very short.

Formula
    tiny     = each of the last 3 lengths is below `first_share` of the median of the first 5; tiny
               lengths among the first 5 are left out of that median
    far      = the median of the last 8 lengths is below `share` of that of the first 5, by over 4
               standard errors, or `first_share` of the first length, by over 4 standard deviations
    recent   = a baseline without a trend has 8 nats of evidence that ln(length) is below its recent
               level by more than ln `recent`, and that median of 8 is below half of the first 5
    Finding  = tiny, far or recent
    warning  = the reward is known and is not above its level before the fall; otherwise info: a
               short completion that earns more may be better

Units
    `share`, `first_share`: fraction of 1, of `completion_length`. `recent`: plain factor.

Source
    If a reward punishes errors, an immediate end-of-sequence token is the cheapest completion.
    Evidence: sentinel.stats.baseline.

Defaults
    On 300 healthy synthetic runs (197,590 points) there was no warning. Completions that halve
    every 30 or 10 points are found in 57 and 60 of 60 runs, after a median of 49 and 20 points;
    every 80 in 21, since most runs end before. `share` 0.25 allows a policy to learn brevity: the
    shortest of the healthy public runs ends at 0.35. `first_share` 0.1 three times in a row is far
    below the noise; `recent` 2 within a hundred points is no learning either.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import isfinite
from statistics import median

from sentinel.model.finding import CLEAR, DetectorOutput, Finding, Severity
from sentinel.model.quantity_text import distinct_texts
from sentinel.model.record import Record
from sentinel.stats.level_shift import LevelShift

MAX_COLLAPSED_SHARE = 0.5
"""Largest fraction of the first lengths that counts as a collapse."""

TINY_VALUES = 3
"""Tiny lengths in a row that are a collapse: each is the mean of many completions."""

COMPARED_VALUES = 8
"""Latest lengths and rewards of tiny completions, and rewards before, whose medians are compared.
"""


@dataclass
class LengthCollapse:
    """Evaluates `completion_length`, together with `reward` if it is logged."""

    share: float = 0.25
    first_share: float = 0.1
    recent: float = 2.0

    needs = frozenset({"completion_length"})
    signal = "completion_length"
    severity = Severity.INFO
    remedy = (
        "Read a few completions. If they are empty or one word long, resume from the checkpoint "
        "before the onset. Look for a penalty that an empty completion avoids and for a wrong "
        "stop token, and set `min_new_tokens` in the sampling parameters."
    )

    def __post_init__(self) -> None:
        self._shift = LevelShift(-1, 1 / self.share, self.recent, self.first_share)
        self._first_step: int | None = None
        self._tiny_step = 0
        self._tiny_lengths: deque[float] = deque(maxlen=COMPARED_VALUES)
        self._tiny_rewards: deque[float] = deque(maxlen=COMPARED_VALUES)
        self._rewards_before: deque[float] = deque(maxlen=COMPARED_VALUES)

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one mean length."""
        length, reward = record.values["completion_length"], record.values.get("reward")
        if not isfinite(length) or length <= 0.0:
            return None
        if self._first_step is None:
            self._first_step = record.step
        shift = self._shift
        shift.add(length, reward, record.step)
        self._update_tiny(length, reward, record.step)
        if len(self._tiny_lengths) >= TINY_VALUES:
            rewards = self._tiny_rewards, self._rewards_before
            is_unrewarded = all(rewards) and median(rewards[0]) <= median(rewards[1])
            return self._finding(
                shift.first_level,
                median(self._tiny_lengths),
                onset=self._tiny_step,
                is_unrewarded=is_unrewarded,
            )
        if not shift.is_ready:
            return None
        before = self._length_before()
        if before is None:
            return CLEAR
        return self._finding(
            before, shift.current_level, onset=shift.onset, is_unrewarded=shift.is_unrewarded()
        )

    def _length_before(self) -> float | None:
        """The length before the collapse in tokens; None if there is no collapse."""
        shift = self._shift
        low, first = self.share * shift.first_level, self.first_share * shift.first_value
        if not shift.has_begun and first <= low:
            return None
        level = shift.current_level
        if shift.has_left_recent_level and level < MAX_COLLAPSED_SHARE * shift.first_level:
            return max(shift.first_level, shift.expected_level)
        if level < low and shift.is_significant:
            return shift.first_level
        return shift.first_value if level < first and shift.is_off_first_value else None

    def _finding(
        self, before: float, now: float, *, onset: int | None, is_unrewarded: bool
    ) -> Finding:
        first, last = distinct_texts(before, now, digits=4)
        text = f"Completions shrank from {first} to {last} tokens"
        if now >= before:
            text = f"Completions have {last} tokens"
        return Finding(
            summary=text + (", without a gain in reward." if is_unrewarded else "."),
            evidence={
                "completion_length_tokens_now": now,
                "completion_length_tokens_before": before,
                "completion_length_tokens_expected": self._shift.expected_level,
                **self._shift.reward_gain.evidence(),
            },
            severity=Severity.WARNING if is_unrewarded else None,
            onset_step=self._first_step if onset is None else onset,
        )

    def _update_tiny(self, length: float, reward: float | None, step: int) -> None:
        """Update the present series of tiny lengths, and the rewards before and in it."""
        is_tiny = length < self.first_share * self._shift.first_level
        if is_tiny:
            self._tiny_step = self._tiny_step if self._tiny_lengths else step
            self._tiny_lengths.append(length)
        else:
            self._tiny_lengths.clear()
            self._tiny_rewards.clear()
        if reward is not None and isfinite(reward):
            (self._tiny_rewards if is_tiny else self._rewards_before).append(reward)
