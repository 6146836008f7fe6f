"""Length explosion: answers grow and grow, and the reward is none the better for it.

Formula
    grown    = the median of the last 8 lengths is over `factor` times that of the first 5, or a
               margin CUSUM finds ln(length) above its own recent level by more than ln `recent`
    Finding  = grown, and the length is at least 1.5 times where it began
    warning  = the reward is known, and is not above where it began or where it was before the
               growth, or has been lost again; or the length is over `runaway` times its recent
               level; otherwise info: longer answers that earn more are what reasoning looks like

Units
    `factor`, `recent`, `runaway`: plain factors of `completion_length`.

Source
    Length that grows with the reward is the course of DeepSeek-R1 (arXiv:2501.12948); growth
    without it is the length bias that Dr. GRPO (arXiv:2503.20783) and DAPO (arXiv:2503.14476)
    describe. CUSUM after Page, Biometrika 1954.

Defaults
    On 120 healthy synthetic runs (84,000 points), in which answers end at 0.5 to 3 times their
    length, there was no warning, and on public logs none in a run called healthy; of those logs'
    3 explosions 2 are found here, by 17 points after they began, and the third by truncation. A
    length that doubles every 80, 30 or 10 points is found in 36, 40 and 40 of 40 runs, by the
    median after 72, 28 and 12 points. `factor` 2 is what people call an explosion, `recent` 1.5
    what no run does within a hundred points without meaning to, and `runaway` 3 what none does.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.stats.level_shift import LevelShift

MIN_FACTOR = 1.5
"""Factor over its beginning below which no length has exploded, whatever it did lately."""


@dataclass
class LengthExplosion:
    """Judges `completion_length`, with `reward` where it is logged."""

    factor: float = 2.0
    recent: float = 1.5
    runaway: float = 3.0

    needs: ClassVar[frozenset[str]] = frozenset({"completion_length"})
    signal: ClassVar[str] = "completion_length"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Read a few of the longest answers. If they ramble or repeat themselves, go back to the "
        "checkpoint before the onset and take the length out of the objective: in TRL "
        'loss_type="dr_grpo" and mask_truncated_completions=True, in verl '
        "algorithm.norm_adv_by_std_in_grpo=False and the overlong reward buffer of DAPO."
    )

    def __post_init__(self) -> None:
        self._length_shift = LevelShift(1, self.recent, self.factor)

    def update(self, record: Record) -> DetectorOutput:
        """Judge one mean length."""
        length, reward = record.values["completion_length"], record.values.get("reward")
        if not isfinite(length) or length <= 0.0:
            return None
        seen = self._length_shift
        seen.add(length, reward if reward is not None and isfinite(reward) else None, record.step)
        if not seen.is_ready:
            return None
        if not seen.has_begun:
            return Clear()
        times = seen.current_level / seen.first_level
        grown = times > MIN_FACTOR and (seen.has_left_recent_level or times > self.factor)
        if not grown:
            return Clear()
        bad = seen.is_unrewarded or (
            seen.has_left_recent_level and seen.current_level > self.runaway * seen.expected_level
        )
        return Finding(
            summary=f"Answers grew from {seen.first_level:.4g} to {seen.current_level:.4g} tokens"
            + (", and the reward did not." if seen.is_unrewarded else "."),
            evidence=self._evidence(record),
            severity=Severity.WARNING if bad else None,
            onset_step=seen.onset,
        )

    def _evidence(self, record: Record) -> dict[str, float | str]:
        seen = self._length_shift
        told: dict[str, float | str] = {
            "length": seen.current_level,
            "first": seen.first_level,
            "usual": seen.expected_level,
        }
        if seen.reward_gain.is_ready:
            told |= {
                "reward": seen.reward_gain.current_level,
                "reward_first": seen.reward_gain.first_level,
            }
        cut = record.values.get("truncated_fraction")
        return told | ({} if cut is None else {"truncated_fraction": cut})
