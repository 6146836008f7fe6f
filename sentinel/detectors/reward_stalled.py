"""Reward stalled: the policy has not become better, although it could.

Formula
    floored  = over at least `points` rewards, `share` of them are the lowest of all, and the others
               are fewer in the last half than in the first, by half the error of such counts
    unmoved  = over at least `many` rewards, the mean of the last quarter is above that of the first
               sixteenth by less than `noises` times the noise, two standard errors included
    Finding  = floored or unmoved; info where neither is sure yet: over at least `points` rewards
               the last quarter is not above the first by its own error

Units
    `share`: share of 1. `points`, `many`: logged rewards. `noises`: standard deviations.

Source
    Two one-sided tests of equivalence, Schuirmann 1987: a stall is shown, not merely not refuted.

Defaults
    On public logs they find all 4 runs labelled so, and warn of no other but one whose reward had
    collapsed before; on 42,000 points of 60 healthy synthetic runs there is no warning. `points` 96
    and `share` 0.75 let a policy that is rewarded for one answer in four go on trying. `noises` 0.5
    and `many` 1,000: a healthy reward gains 2.5 to 25 times its noise over a run, and the slowest
    start of 60 runs moved by half of it within 700 points.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.stats.above_minimum_rate import AboveMinimumRate
from sentinel.stats.block_means import BlockMeans
from sentinel.stats.reward_gain import RewardGain

CONFIDENCE_Z = 2.0
"""Standard errors that a statement keeps clear of its bound."""

RARER_REWARD_Z = 0.5
"""Standard errors by which rewards must have become rarer: a run that learns does so in leaps."""


@dataclass
class RewardStalled:
    """Judges `reward` over the whole run."""

    points: int = 96
    share: float = 0.75
    many: int = 1000
    noises: float = 0.5

    needs: ClassVar[frozenset[str]] = frozenset({"reward"})
    signal: ClassVar[str] = "reward"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Score a few right answers by hand: a reward that cannot be earned is most often a parsing "
        "or format fault. If they earn it, begin with easier prompts or some supervised training "
        "so that the policy earns it at times, sample more answers a prompt, and check that the "
        "learning rate is not nought and that the weights change."
    )

    def __post_init__(self) -> None:
        self._blocks = BlockMeans()
        self._reward_gain = RewardGain()
        self._near_minimum = AboveMinimumRate()
        self._count = 0
        self._first_step: int | None = None
        self._stall_evidence: dict[str, float] = {}
        self._is_certain = False

    def update(self, record: Record) -> DetectorOutput:
        """Judge one reward; the statement is made anew with every completed block."""
        reward = record.values["reward"]
        if not isfinite(reward):
            return None
        if self._first_step is None:
            self._first_step = record.step
        self._count += 1
        self._reward_gain.add(reward)
        self._near_minimum.add(reward)
        if self._blocks.add(reward) and self._count >= self.points:
            self._test_blocks()
        if self._count < self.points:
            return None
        if not self._stall_evidence:
            return Clear()
        return Finding(
            summary=f"Reward stands at {self._stall_evidence['lately']:.4g} after {self._count} points; it "
            f"began at {self._stall_evidence['first']:.4g}.",
            evidence=dict(self._stall_evidence),
            severity=None if self._is_certain else Severity.INFO,
            onset_step=self._first_step,
        )

    def _test_blocks(self) -> None:
        means, length = self._blocks.means, self._blocks.values_per_block
        few, quarter = max(1, len(means) // 16), max(1, len(means) // 4)
        first, lately = sum(means[:few]) / few, sum(means[-quarter:]) / quarter
        noise = self._reward_gain.noise
        error = noise * sqrt(1 / (few * length) + 1 / (quarter * length))
        early, late = self._near_minimum.counts_by_half
        fewer = early - late >= RARER_REWARD_Z * sqrt(early + late)
        floored = 1 - self._near_minimum.share >= self.share and fewer
        gone = lately - first
        unmoved = self._count >= self.many and gone + CONFIDENCE_Z * error < self.noises * noise
        self._is_certain = floored or unmoved
        stands = self._is_certain or gone < error
        told = {
            "first": first,
            "lately": lately,
            "noise": noise,
            "lowest": self._near_minimum.minimum,
        }
        self._stall_evidence = (
            told | {"share_lowest": 1 - self._near_minimum.share} if stands else {}
        )
