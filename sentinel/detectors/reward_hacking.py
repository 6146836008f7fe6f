"""Reward hacking: reward, KL and completion length rise together.

Formula
    far      = the baseline of the KL has `sure` nats of evidence that it departs upwards
    long     = the baseline of the length has `sure` nats of evidence that it departs upwards, and
               the median of the last 8 is `wordy` times the expected value or more
    Finding  = far and long within `within` values of each other, and the reward is above its level
               before and its start

Units
    `sure`: nats of evidence. `wordy`: plain factor. `within`: logged values.

Source
    Gao et al. 2023 (arXiv:2210.10760) on over-optimised proxies; Singhal et al. 2023
    (arXiv:2310.03716) on the length preference of reward models. It is evidence, not a proof, and
    needs another measure of quality: info only.

Defaults
    A prototype found 50, 90 and 100 % of mild, moderate and severe cases with this conjunction, and
    none in 63,000 healthy steps. `sure` 5 is the evidence at which kl_blowup reports
    severity info. `wordy` 1.25 is half of what is a fault by itself; effects of one cause were at
    most `within` 40 values apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

from sentinel.model.finding import CLEAR, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.stats.level_departure import LevelDeparture
from sentinel.stats.reward_gain import RewardGain
from sentinel.stats.shared_baselines import SharedBaselines


@dataclass
class RewardHacking:
    """Evaluates `reward`, `kl_ref` and `completion_length` together."""

    sure: float = 5.0
    wordy: float = 1.25
    within: int = 40

    needs: ClassVar[frozenset[str]] = frozenset({"reward", "kl_ref", "completion_length"})
    baselines: ClassVar[frozenset[str]] = frozenset({"kl_ref", "completion_length"})
    signal: ClassVar[str] = "reward"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Read the samples with the highest reward, and score some with a measure that is not "
        "trained on. If that measure does not rise, use its best checkpoint. Remove the length "
        "from the reward, and retrain the reward model on samples of the present policy."
    )

    def __post_init__(self) -> None:
        self._length = LevelDeparture(1, self.wordy, self.sure)
        self._last_far = self._last_long = -1
        self._count = 0

    def update(self, record: Record, baselines: SharedBaselines) -> DetectorOutput:
        """Evaluate one record with all three signals."""
        values = record.values
        reward, kl, length = values["reward"], values["kl_ref"], values["completion_length"]
        kl_baseline, length_baseline = baselines.get("kl_ref"), baselines.get("completion_length")
        if not (isfinite(reward) and isfinite(kl) and isfinite(length)) or length <= 0.0:
            return None
        if kl_baseline is None or length_baseline is None:
            return None
        far, long = kl_baseline.rise, length_baseline.rise
        if far is None or long is None:
            return None
        self._count += 1
        self._length.add(length, length_baseline, long, baselines.reward_gain)
        if far.evidence >= self.sure:
            self._last_far = self._count
        if self._length.is_off_course:
            self._last_long = self._count
        if not far.is_armed or not self._length.is_ready:
            return None
        both = min(self._last_far, self._last_long)
        if (
            both < 0
            or self._count - both > self.within
            or not self._has_reward_gain(baselines.reward_gain)
        ):
            return CLEAR
        level, gain = self._length.current_level, baselines.reward_gain
        return Finding(
            summary=f"Reward rose to {gain.current_level:.3g} while KL reached "
            f"{kl:.3g} nats and completions {level:.4g} tokens.",
            evidence={
                "reward_median_of_8": gain.current_level,
                "kl_nats": kl,
                "completion_length_tokens_median_of_8": level,
                "completion_length_tokens_expected": self._length.expected_level,
            },
            onset_step=min(
                [direction.onset for direction in (far, long) if direction.evidence]
                or [record.step]
            ),
        )

    def _has_reward_gain(self, gain: RewardGain) -> bool:
        before = self._length.reward_before
        return gain.is_ready and gain.has_gained and (before is None or gain.is_above(before))
