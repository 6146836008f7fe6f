"""Truncation: more and more answers are cut off at the length limit, unfinished and unrewarded.

Formula
    cut      = the median of the last 8 truncated fractions
    Finding  = cut is at least `some`
    warning  = cut is at least `most`, the share of answers that end has fallen to a third of that
               of the first 5, and the reward is known and none the better, 8 times in a row;
               otherwise info

Units
    `some`, `most`: share of 1, of the answers of a step.

Source
    An answer that is cut earns what an unfinished one earns, and teaches that; DAPO
    (arXiv:2503.14476) masks or shapes it.

Defaults
    On public logs there is one warning, in the one run whose answers all ran into the limit.
    Healthy reasoning runs cut up to a third of their answers, which `some` 0.3 shows; over `most`
    0.8 the reward is that of the limit, not of the answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from statistics import median
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.stats.k_of_n import KOfN
from sentinel.stats.reward_gain import RewardGain

BASELINE_VALUES = 5
"""Values whose median is where the run began."""

MEDIAN_WINDOW = 8
"""Values whose median is where it is."""

MAX_FINISHED_RATIO = 1 / 3
"""Of the answers that ended in the beginning: fewer is another policy, more may be chance."""


@dataclass
class Truncation:
    """Judges `truncated_fraction`, with `reward` where it is logged."""

    some: float = 0.3
    most: float = 0.8

    needs: ClassVar[frozenset[str]] = frozenset({"truncated_fraction"})
    signal: ClassVar[str] = "truncated_fraction"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Read the end of a few answers. If they were getting somewhere, raise the limit (TRL "
        "max_completion_length, verl data.max_response_length) or leave cut answers out of the "
        "loss (TRL mask_truncated_completions=True); if they ramble, go back to the checkpoint "
        "before the onset and punish overlong answers. Check that the stop token is sampled."
    )

    def __post_init__(self) -> None:
        self._first_fractions: list[float] = []
        self._recent = KOfN(MEDIAN_WINDOW)
        self._reward_gain = RewardGain()
        self._onset_step: int | None = None
        self._unrewarded_count = 0

    def update(self, record: Record) -> DetectorOutput:
        """Judge the truncated fraction of one step."""
        cut, reward = record.values["truncated_fraction"], record.values.get("reward")
        if not 0.0 <= cut <= 1.0:
            return None
        if reward is not None and isfinite(reward):
            self._reward_gain.add(reward)
        if len(self._first_fractions) < BASELINE_VALUES:
            self._first_fractions.append(cut)
        many = self._recent.add(cut, self.some)
        if not self._recent.is_full:
            return None
        now = median(self._recent.values) if many else 0.0
        if now < self.some:
            self._onset_step, self._unrewarded_count = None, 0
            return Clear()
        if self._onset_step is None:
            self._onset_step = record.step
        return self._finding(now)

    def _finding(self, median_fraction: float) -> Finding:
        first, merit = median(self._first_fractions), self._reward_gain
        unpaid = merit.is_ready and (merit.has_lost or not merit.has_gained)
        fewer = (
            median_fraction >= self.most
            and first < median_fraction
            and 1 - median_fraction <= MAX_FINISHED_RATIO * (1 - first)
        )
        self._unrewarded_count = self._unrewarded_count + 1 if fewer and unpaid else 0
        told = {"truncated": median_fraction, "first": first}
        if merit.is_ready:
            told |= {"reward": merit.current_level, "reward_first": merit.first_level}
        return Finding(
            summary=f"{median_fraction:.0%} of the answers are cut off at the length limit; it began with "
            f"{first:.0%}.",
            evidence=told,
            severity=Severity.WARNING if self._unrewarded_count >= MEDIAN_WINDOW else None,
            onset_step=self._onset_step,
        )
