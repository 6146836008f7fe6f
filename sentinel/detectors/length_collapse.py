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

from sentinel.model.finding import Calm, Finding, Opinion, Severity
from sentinel.model.record import Record
from sentinel.stats.level_shift import Departure

HALF = 0.5
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
        self._length = Departure(-1, self.recent, 1 / self.share)
        self._first_step: int | None = None

    def update(self, record: Record) -> Opinion:
        """Judge one mean length."""
        length, reward = record.values["completion_length"], record.values.get("reward")
        if not isfinite(length) or length <= 0.0:
            return None
        if self._first_step is None:
            self._first_step = record.step
        seen = self._length
        seen.add(length, reward if reward is not None and isfinite(reward) else None, record.step)
        if not seen.known:
            return None
        was = self._was()
        if was is None:
            return Calm()
        told = {"length": seen.now, "first": was, "usual": seen.usual}
        if seen.merit.known:
            told |= {"reward": seen.merit.now, "reward_first": seen.merit.first}
        return Finding(
            summary=f"Answers shrank from {was:.4g} to {seen.now:.4g} tokens"
            + (", and the reward is no better." if seen.unpaid else "."),
            evidence=told,
            severity=Severity.WARNING if seen.unpaid else None,
            onset_step=self._first_step if seen.onset is None else seen.onset,
        )

    def _was(self) -> float | None:
        """The length it has fallen from; None where it has not."""
        seen = self._length
        if not seen.begun and self.first_share * seen.opening <= self.share * seen.first:
            return None
        if seen.now < self.share * seen.first or (seen.left and seen.now < HALF * seen.first):
            return seen.first
        return seen.opening if seen.now < self.first_share * seen.opening else None
