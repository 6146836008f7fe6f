"""Length explosion: completions grow quickly, mostly without a gain in reward.

Formula
    grown    = the median of the last 8 lengths is over `factor` times that of the first 5, or a
               margin CUSUM finds ln(length) above its recent level by more than ln `recent`
    Finding  = grown, and the length is at least 1.5 times that of the first 5
    warning  = the reward is known and is not above its start or its level before the growth, or its
               gain was lost again; or the length is over `runaway` times its recent level;
               otherwise info: longer completions that earn more are typical of reasoning

Units
    `factor`, `recent`, `runaway`: plain factors of `completion_length`.

Source
    In DeepSeek-R1 (arXiv:2501.12948) length grows with the reward; growth without it is the length
    bias described by Dr. GRPO (arXiv:2503.20783) and DAPO (arXiv:2503.14476). CUSUM: Page,
    Biometrika 1954.

Defaults
    On 120 healthy synthetic runs (84,000 points), in which completions end at 0.5 to 3 times their
    length, there was no warning, and on public logs none in a run labelled healthy; of the 3
    explosions in those logs 2 are found here, within 17 points of the onset, and the third by
    truncation. A length that doubles every 80, 30 or 10 points is found in 36, 40 and 40 of 40
    runs, after a median of 72, 28 and 12 points. `factor` 2 is a common definition of an explosion;
    no run reaches `recent` 1.5 within a hundred points unintentionally, and none reaches `runaway`
    3.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.stats.level_shift import LevelShift

MIN_FACTOR = 1.5
"""Smallest factor over the first lengths that counts as an explosion."""


@dataclass
class LengthExplosion:
    """Evaluates `completion_length`, together with `reward` if it is logged."""

    factor: float = 2.0
    recent: float = 1.5
    runaway: float = 3.0

    needs: ClassVar[frozenset[str]] = frozenset({"completion_length"})
    signal: ClassVar[str] = "completion_length"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Read a few of the longest completions. If they ramble or repeat themselves, resume from "
        "the checkpoint before the onset and remove the length from the objective: in TRL "
        'loss_type="dr_grpo" and mask_truncated_completions=True, in verl '
        "algorithm.norm_adv_by_std_in_grpo=False and the overlong reward buffer of DAPO."
    )

    def __post_init__(self) -> None:
        self._length_shift = LevelShift(1, self.recent, self.factor)

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one mean length."""
        length, reward = record.values["completion_length"], record.values.get("reward")
        if not isfinite(length) or length <= 0.0:
            return None
        shift = self._length_shift
        shift.add(length, reward, record.step)
        if not shift.is_ready:
            return None
        if not shift.has_begun:
            return Clear()
        times = shift.current_level / shift.first_level
        if times <= MIN_FACTOR or not (shift.has_left_recent_level or times > self.factor):
            return Clear()
        is_runaway = (
            shift.has_left_recent_level
            and shift.current_level > self.runaway * shift.expected_level
        )
        return Finding(
            summary=f"Completions grew from {shift.first_level:.4g} to {shift.current_level:.4g} "
            "tokens" + (", without a gain in reward." if shift.is_unrewarded else "."),
            evidence=self._evidence(record),
            severity=Severity.WARNING if shift.is_unrewarded or is_runaway else None,
            onset_step=shift.onset,
        )

    def _evidence(self, record: Record) -> dict[str, float | str]:
        evidence = self._length_shift.evidence("completion_tokens")
        if "truncated_fraction" in record.values:
            evidence["truncated_fraction"] = record.values["truncated_fraction"]
        return evidence
