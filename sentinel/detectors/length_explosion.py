"""Length explosion: completions grow quickly, mostly without a gain in reward.

Formula
    grown    = the median of the last 8 lengths is over `factor` times that of the first 5, and by
               more than 3 standard errors; or a margin CUSUM finds ln(length) above its recent
               level by more than ln `recent`; or each of the last 5 lengths is at the limit: 0.9 of
               the longest completion of the run, or 0.8 of the completions are cut off
    Finding  = grown, and the median is over 1.5 times that of the first 5; growth above the recent
               level counts only above 1.25 times the highest length that was usual before
    warning  = the reward is known and is not above its level before the growth, or the length is
               over `runaway` times that of 32 to 64 records before; otherwise info: longer
               completions that earn more are typical of reasoning

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
from math import inf, isfinite
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.stats.level_shift import LevelShift

MIN_FACTOR = 1.5
"""Smallest factor over the first lengths that counts as an explosion."""

MIN_USUAL_FACTOR = 1.25
"""Smallest factor over the usual length: less is the return from a collapse."""

SUDDEN_SHARE = 0.1
"""Lengths below this fraction of the first ones are a collapse, and not where the run began."""

MIN_COUNT = 10
"""Lengths needed for a result: five for the first level, and five of the current one."""

LIMIT_VALUES = 5
"""Lengths in a row at the limit that are an explosion."""

LIMIT_SHARE = 0.9
"""Mean length, as a fraction of the longest of the run, if nearly all completions are cut off."""

MAX_TRUNCATED_SHARE = 0.8
"""Share of truncated completions that shows the same, as in the detector truncation."""

MIN_RUNAWAY_COUNT = 64
"""Lengths before which a record may stand for so many steps that no growth is too fast."""


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
        self._length_shift = LevelShift(1, self.recent, self.factor, sudden_share=SUDDEN_SHARE)
        self._limit_count = 0
        self._longest = 0.0

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one mean length."""
        length, reward = record.values["completion_length"], record.values.get("reward")
        if not isfinite(length) or length <= 0.0:
            return None
        shift = self._length_shift
        shift.add(length, reward, record.step)
        self._update_limit(record, length)
        if shift.count < MIN_COUNT:
            return None
        is_at_limit = self._limit_count >= LIMIT_VALUES
        if not (is_at_limit or shift.has_begun):
            return Clear()
        times = shift.current_level / shift.first_level
        is_recent = (
            shift.has_left_recent_level
            and shift.current_level > MIN_USUAL_FACTOR * shift.highest_usual_level
        )
        has_grown = is_recent or is_at_limit or (times > self.factor and shift.is_significant)
        if times <= MIN_FACTOR or not has_grown:
            return Clear()
        is_unrewarded = shift.is_unrewarded if is_recent else shift.is_unrewarded_since_start
        return Finding(
            summary=f"Completions grew from {shift.first_level:.4g} to {shift.current_level:.4g} "
            "tokens" + (", without a gain in reward." if is_unrewarded else "."),
            evidence=self._evidence(record),
            severity=Severity.WARNING if is_unrewarded or self._is_runaway(is_recent) else None,
            onset_step=shift.onset,
        )

    def _is_runaway(self, is_recent: bool) -> bool:
        shift = self._length_shift
        return (
            is_recent
            and shift.count >= MIN_RUNAWAY_COUNT
            and shift.current_level > self.runaway * shift.noted_levels[0]
        )

    def _update_limit(self, record: Record, length: float) -> None:
        """Update the number of records in a row whose completions nearly all reach the limit."""
        values = record.values
        longest = values.get("completion_length_max", 0.0)
        self._longest = max(self._longest, longest if longest < inf else 0.0)
        is_at_limit = (
            length >= LIMIT_SHARE * (self._longest or inf)
            or values.get("truncated_fraction", 0.0) >= MAX_TRUNCATED_SHARE
        )
        self._limit_count = self._limit_count + 1 if is_at_limit else 0

    def _evidence(self, record: Record) -> dict[str, float | str]:
        evidence = self._length_shift.evidence("completion_tokens")
        if "truncated_fraction" in record.values:
            evidence["truncated_fraction"] = record.values["truncated_fraction"]
        return evidence
