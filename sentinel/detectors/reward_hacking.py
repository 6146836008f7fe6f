"""Reward hacking: reward, KL and completion length rise together.

Formula
    far      = a margin CUSUM finds ln max(kl, `floor`) - 2 ln S above its recent level by more than
               ln `recent`, with S the sum of the learning rates so far
    long     = a margin CUSUM finds ln(length) above its recent level by more than ln `wordy`
    Finding  = far and long within `within` values of each other, and the reward is above its level
               before and its start

Units
    `floor`: nats per token, as `kl_ref`. `recent`, `wordy`: plain factors. `within`: logged values.

Source
    Gao et al. 2023 (arXiv:2210.10760) on over-optimised proxies; Singhal et al. 2023
    (arXiv:2310.03716) on the length preference of reward models. It is evidence, not a proof, and
    needs another measure of quality: info only.

Defaults
    A prototype found 50, 90 and 100 % of mild, moderate and severe cases with this conjunction, and
    none in 63,000 healthy steps. `recent` 1.5 and `wordy` 1.25 are half of what is a fault by
    itself; effects of one cause were at most `within` 40 values apart. `floor` 0.01 is that of
    kl_blowup.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, log
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.stats.cumulative_lr import CumulativeLearningRate
from sentinel.stats.level_shift import LevelShift
from sentinel.stats.margin_cusum import MarginCusum


@dataclass
class RewardHacking:
    """Evaluates `reward`, `kl_ref` and `completion_length` together."""

    recent: float = 1.5
    wordy: float = 1.25
    within: int = 40
    floor: float = 0.01

    needs: ClassVar[frozenset[str]] = frozenset({"reward", "kl_ref", "completion_length"})
    signal: ClassVar[str] = "reward"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Read the samples with the highest reward, and score some with a measure that is not "
        "trained on. If that measure does not rise, use its best checkpoint, remove the length "
        "from the reward, and retrain the reward model on samples of the present policy."
    )

    def __post_init__(self) -> None:
        self._kl_cusum = MarginCusum(sign=1, min_sigma=0.1)
        self._length_shift = LevelShift(1, self.wordy, 2.0)
        self._cumulative_lr = CumulativeLearningRate()
        self._last_kl_shift = self._last_length_shift = -1
        self._count = 0

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one record with all three signals."""
        values = record.values
        reward, kl, length = values["reward"], values["kl_ref"], values["completion_length"]
        cumulative_lr = self._cumulative_lr.add(values.get("learning_rate"))
        if not (isfinite(reward) and isfinite(kl) and isfinite(length)):
            return None
        if cumulative_lr == 0.0 or length <= 0.0:
            return None
        self._count += 1
        shift = self._length_shift
        shift.add(length, reward, record.step)
        course = log(max(kl, self.floor)) - 2 * log(cumulative_lr)
        if self._kl_cusum.update(course, log(self.recent), record.step):
            self._last_kl_shift = self._count
        if shift.has_left_recent_level:
            self._last_length_shift = self._count
        if not self._kl_cusum.is_armed:
            return None
        both = min(self._last_kl_shift, self._last_length_shift)
        if both < 0 or self._count - both > self.within or not self._has_reward_gain():
            return Clear()
        return Finding(
            summary=f"Reward rose to {shift.reward_gain.current_level:.3g} while KL reached "
            f"{kl:.3g} nats and completions {shift.current_level:.4g} tokens.",
            evidence={
                "reward_median_of_8": shift.reward_gain.current_level,
                "kl_nats": kl,
                "completion_tokens_median_of_8": shift.current_level,
                "completion_tokens_expected": shift.expected_level,
            },
            onset_step=min(self._kl_cusum.onset, shift.onset or record.step),
        )

    def _has_reward_gain(self) -> bool:
        gain, before = self._length_shift.reward_gain, self._length_shift.reward_before
        return gain.is_ready and gain.has_gained and (before is None or gain.is_above(before))
