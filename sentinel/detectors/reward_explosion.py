"""Reward explosion: the reward grows to many times its usual size.

Formula
    size     = max(1, |reward|)
    grown    = a baseline without a trend has 8 nats of evidence that ln(size) is above its recent
               level by more than ln `times`, and the median of the last 8 is over `times`; or that
               is above the best by `times` squared; in the training of a policy that writes texts
    jump     = each of the last `jumped` sizes is over `times` times every size before, of which
               there are as many
    Finding  = grown or jump, and the reward is positive

Units
    `times`: plain factor. `jumped`: rewards.

Source
    Rewards of verifiers are 0 to 1, sums of several up to about 5, and scores of reward models
    differ by a few standard deviations. A reward of ten times that is a mistake in its units, a
    reward service that fails, or an exploit. A game may pay any reward, and pays more as it is
    learned: there only a jump counts. Statistic: `sentinel.stats.level_guard`.

Defaults
    `times` 10. `jumped` 4 are more than a single sample with an extreme reward. In synthetic
    logs, 24 a size, a reward that grows from 0.6 to 15, 50 and 300 in the training of a text
    policy, or jumps as far in a log of nothing else, is always found; no healthy log has a finding,
    nor has a game that is learned.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import isfinite

from sentinel.detectors._guarded_signals import TEXT_SIGNALS
from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding
from sentinel.model.quantity_text import distinct_texts
from sentinel.model.record import Record
from sentinel.stats.level_guard import LevelGuard

LEAST_SIZE = 1.0
"""Size of a usual reward, as which smaller ones count."""

UNREAD_REWARDS = 160
"""Newest rewards that are read if a large one follows: as many as the recent level is made of."""


@dataclass
class RewardExplosion(DetectorDefaults):
    """Evaluates `reward`."""

    times: float = 10.0
    jumped: int = 4

    needs = frozenset({"reward"})
    signal = "reward"
    remedy = (
        "Read the samples with the highest reward, and check the scale and the service of the "
        "reward. Clip or normalise it. Resume from the checkpoint before the onset."
    )

    def __post_init__(self) -> None:
        self._guard = LevelGuard(1, self.times, self.times * LEAST_SIZE, least=LEAST_SIZE)
        self._unread: deque[tuple[int, float]] = deque(maxlen=UNREAD_REWARDS)
        self._latest: deque[tuple[int, float]] = deque()
        self._highest_before = LEAST_SIZE
        self._count_before = 0
        self._jump: tuple[int, float] | None = None
        self._writes_texts = False
        self._has_earned = False
        """Whether a reward was above 0: the first one of a game is no explosion."""

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one reward."""
        reward = record.values["reward"]
        self._unread.append((record.step, reward))
        if not reward > self.times * LEAST_SIZE:
            # Nearly all rewards are too small for a finding, and are read if a large one follows.
            return CLEAR
        guard = self._guard
        self._writes_texts = self._writes_texts or not TEXT_SIGNALS.isdisjoint(record.values)
        for step, size in self._unread:
            if isfinite(size):
                guard.update(abs(size), step)
                self._update_jump(abs(size), step)
        self._unread.clear()
        if guard.usual is not None and guard.is_beyond and self._writes_texts:
            return self._finding(guard.level, guard.usual, guard.onset)
        if self._jump is not None:
            return self._finding(reward, self._jump[1], self._jump[0])
        return CLEAR

    def _update_jump(self, size: float, step: int) -> None:
        """Store the step of a jump, and the highest size before, until the reward is back."""
        latest = self._latest
        latest.append((step, size))
        if len(latest) <= self.jumped:
            return
        _, before = latest.popleft()
        self._highest_before = max(self._highest_before, before)
        self._has_earned |= before > 0.0
        self._count_before += 1
        lowest = min(value for _, value in latest)
        if self._jump is not None:
            self._jump = self._jump if lowest > self.times * self._jump[1] else None
        elif (
            lowest > self.times * self._highest_before
            and self._count_before >= self.jumped
            and (self._has_earned or self._writes_texts)
        ):
            self._jump = latest[0][0], self._highest_before

    def _finding(self, level: float, before: float, onset: int | None) -> Finding:
        now, usual = distinct_texts(level, before)
        return Finding(
            summary=f"Reward has grown to {now}; before, it was at most {usual}.",
            evidence={"reward": level, "highest_usual_reward": before},
            onset_step=onset,
        )
