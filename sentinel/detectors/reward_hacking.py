"""Reward hacking: reward, KL and completion length rise together.

Formula
    far      = the baseline of the KL has `sure` nats of evidence that it departs upwards
    long     = the baseline of the length has `sure` nats of evidence that it departs upwards, and
               the median of the last 8 is `wordy` times the expected value or more
    Finding  = far and long within `within` values of each other, the length has not returned to
               the expected value, and the reward is above its level before and its start

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

from sentinel.model.finding import CLEAR, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.stats.level_departure import LevelDeparture
from sentinel.stats.shared_baselines import SharedBaselines


@dataclass
class RewardHacking:
    """Evaluates `reward`, `kl_ref` and `completion_length` together."""

    sure: float = 5.0
    wordy: float = 1.25
    within: int = 40

    needs = frozenset({"reward", "kl_ref", "completion_length"})
    baselines = frozenset({"kl_ref", "completion_length"})
    signal = "reward"
    severity = Severity.INFO
    remedy = (
        "Read the samples with the highest reward, and score some with a measure that is not "
        "trained on. If that measure does not rise, use its best checkpoint. Remove the length "
        "from the reward, and retrain the reward model on samples of the present policy."
    )

    def __post_init__(self) -> None:
        self._length = LevelDeparture("completion_length", 1, self.wordy, self.sure)
        self._reward_before: float | None = None
        """Level of the reward when the evidence of longer completions began."""
        self._count = 0
        self._far = self._long = -1, 0
        """The last value at which KL and length had departed, and the onset of that."""

    def update(self, record: Record, baselines: SharedBaselines) -> DetectorOutput:
        """Evaluate one record with all three signals."""
        values, gain, departure = record.values, baselines.reward_gain, self._length
        reward, kl, length = values["reward"], values["kl_ref"], values["completion_length"]
        if not (isfinite(reward) and isfinite(kl) and isfinite(length)) or length <= 0.0:
            return None
        had_evidence, baseline = departure.evidence > 0.0, baselines.get("kl_ref")
        if baseline is None or not departure.add(length, baselines):
            return None
        if departure.evidence > 0.0 and not had_evidence:
            self._reward_before = gain.current_level if gain.is_ready else None
        self._count += 1
        if baseline.rise.evidence >= self.sure:
            self._far = self._count, baseline.rise.onset
        if departure.has_departed:
            self._long = self._count, departure.onset_range[0]
        last, before = min(self._far[0], self._long[0]), self._reward_before
        is_joint = last >= 0 and self._count - last <= self.within
        # A reward that rises once the completions are short again does not pay for their length.
        is_joint = is_joint and departure.level > (departure.expected_level or 0.0)
        has_gained = is_joint and gain.is_ready and gain.has_gained
        if not has_gained or (before is not None and not gain.is_above(before)):
            return CLEAR if baseline.rise.is_armed and departure.threshold is not None else None
        return Finding(
            summary=f"Reward rose to {gain.current_level:.3g} while KL reached "
            f"{kl:.3g} nats and completions {departure.level:.4g} tokens.",
            evidence={
                **gain.evidence(),
                "kl_nats": kl,
                "completion_length_tokens_median_of_8": departure.level,
                "completion_length_tokens_expected": departure.expected_level or length,
            },
            onset_step=min(self._far[1], self._long[1]),
        )
