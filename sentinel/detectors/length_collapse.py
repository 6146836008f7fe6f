"""Length collapse: answers have shrunk to almost nothing.

Formula
    shrunk   = the median of the last 8 lengths is under `share` of that of the first 5, or under
               `first_share` of the very first, or a margin CUSUM finds ln(length) below its own
               recent level by more than ln `recent` and the median is under half of the first 5
    Finding  = shrunk
    warning  = the reward is known, and is not above where it began or where it was before, or has
               been lost again; otherwise info: a short answer that earns more may be the best one

Units
    `share`, `first_share`: share of 1, of `completion_length`. `recent`: a plain factor.

Source
    An end-of-sequence token as the first one is the cheapest answer to a reward that punishes.
    CUSUM after Page, Biometrika 1954.

Defaults
    On 120 healthy synthetic runs (84,000 points) there was no warning, and on public logs none but
    in the 3 runs that did collapse, 5 to 11 points after they began to. Answers that halve every 30
    or 10 points are found in 35 and 40 of 40 runs, by the median after 45 and 19 points; every 80,
    in 2, since most runs end before. `share` 0.25 leaves alone a policy that learns to be brief:
    the briefest of the healthy public runs ends at 0.35. `first_share` 0.1 is far below what one
    noisy first value explains; `recent` 2 within a hundred points is no learning either.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.stats.level_shift import LevelShift

MAX_COLLAPSED_SHARE = 0.5
"""Share of the first lengths above which nothing has collapsed, however fast it went."""


@dataclass
class LengthCollapse:
    """Judges `completion_length`, with `reward` where it is logged."""

    share: float = 0.25
    first_share: float = 0.1
    recent: float = 2.0

    needs: ClassVar[frozenset[str]] = frozenset({"completion_length"})
    signal: ClassVar[str] = "completion_length"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Read a few answers. If they are empty or one word, go back to the checkpoint before the "
        "onset, look for a length or format penalty that silence escapes and for a wrong stop "
        "token, and set min_new_tokens in the sampling parameters while you look."
    )

    def __post_init__(self) -> None:
        self._length_shift = LevelShift(-1, self.recent, 1 / self.share)
        self._first_step: int | None = None

    def update(self, record: Record) -> DetectorOutput:
        """Judge one mean length."""
        length, reward = record.values["completion_length"], record.values.get("reward")
        if not isfinite(length) or length <= 0.0:
            return None
        if self._first_step is None:
            self._first_step = record.step
        seen = self._length_shift
        seen.add(length, reward if reward is not None and isfinite(reward) else None, record.step)
        if not seen.is_ready:
            return None
        was = self._length_before()
        if was is None:
            return Clear()
        told = {"length": seen.current_level, "first": was, "usual": seen.expected_level}
        if seen.reward_gain.is_ready:
            told |= {
                "reward": seen.reward_gain.current_level,
                "reward_first": seen.reward_gain.first_level,
            }
        return Finding(
            summary=f"Answers shrank from {was:.4g} to {seen.current_level:.4g} tokens"
            + (", and the reward is no better." if seen.is_unrewarded else "."),
            evidence=told,
            severity=Severity.WARNING if seen.is_unrewarded else None,
            onset_step=self._first_step if seen.onset is None else seen.onset,
        )

    def _length_before(self) -> float | None:
        """The length it has fallen from; None where it has not."""
        seen = self._length_shift
        if (
            not seen.has_begun
            and self.first_share * seen.first_value <= self.share * seen.first_level
        ):
            return None
        if seen.current_level < self.share * seen.first_level or (
            seen.has_left_recent_level
            and seen.current_level < MAX_COLLAPSED_SHARE * seen.first_level
        ):
            return seen.first_level
        return (
            seen.first_value if seen.current_level < self.first_share * seen.first_value else None
        )
