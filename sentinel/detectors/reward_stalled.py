"""Reward stalled: the reward has not risen since the start of the run.

Formula
    floored  = over at least `points` rewards, the fraction `share` of them is the lowest reward,
               and the others are fewer in the last half than in the first, by half the standard
               error of such counts
    unmoved  = over at least `many` rewards, the mean of the last quarter exceeds that of the first
               sixteenth by less than `noises` times the noise, including two standard errors
    Finding  = floored or unmoved; info if neither is certain yet, but over at least `points`
               rewards the last quarter does not exceed the first sixteenth by its own standard
               error

Units
    `share`: fraction of 1. `points`, `many`: logged rewards. `noises`: standard deviations.

Source
    Two one-sided tests of equivalence, Schuirmann 1987: the stall is shown, not merely not refuted.

Defaults
    On public logs all 4 runs labelled so are found, and only one other, whose reward had collapsed
    before; on 42,000 points of 60 healthy synthetic runs there is no warning. `points` 96 and
    `share` 0.75 allow a policy that is rewarded for one completion in four to continue. `noises`
    0.5 and `many` 1,000: a healthy reward gains 2.5 to 25 times its noise over a run, and the
    slowest start of 60 runs rose by half of it within 700 points.
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
"""Standard errors between an estimate and its bound."""

RARER_REWARD_Z = 0.5
"""Standard errors by which rewards must have become rarer; learning proceeds in jumps."""


@dataclass
class RewardStalled:
    """Evaluates `reward` over the whole run."""

    points: int = 96
    share: float = 0.75
    many: int = 1000
    noises: float = 0.5

    needs: ClassVar[frozenset[str]] = frozenset({"reward"})
    signal: ClassVar[str] = "reward"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Score a few correct completions manually: if they earn no reward, the parsing or the "
        "format check is usually wrong. If they do, start with easier prompts or some supervised "
        "training, sample more completions per prompt, and check that the learning rate is not 0 "
        "and that the weights change."
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
        """Evaluate one reward; the test is repeated after every completed block."""
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
        evidence = self._stall_evidence
        return Finding(
            summary=f"Reward has not risen in {self._count} logged values: it started at "
            f"{evidence['mean_reward_first_sixteenth']:.4g} and is "
            f"{evidence['mean_reward_last_quarter']:.4g} now.",
            evidence=dict(evidence),
            severity=None if self._is_certain else Severity.INFO,
            onset_step=self._first_step,
        )

    def _test_blocks(self) -> None:
        means, length = self._blocks.means, self._blocks.values_per_block
        first_blocks, last_blocks = max(1, len(means) // 16), max(1, len(means) // 4)
        first = sum(means[:first_blocks]) / first_blocks
        last = sum(means[-last_blocks:]) / last_blocks
        noise = self._reward_gain.noise
        error = noise * sqrt(1 / (first_blocks * length) + 1 / (last_blocks * length))
        early, late = self._near_minimum.counts_by_half
        is_rarer = early - late >= RARER_REWARD_Z * sqrt(early + late)
        lowest_share = 1 - self._near_minimum.share
        is_floored = lowest_share >= self.share and is_rarer
        gain = last - first
        is_unmoved = self._count >= self.many and gain + CONFIDENCE_Z * error < self.noises * noise
        self._is_certain = is_floored or is_unmoved
        if not self._is_certain and gain >= error:
            self._stall_evidence = {}
            return
        self._stall_evidence = {
            "mean_reward_first_sixteenth": first,
            "mean_reward_last_quarter": last,
            "reward_noise": noise,
            "lowest_reward": self._near_minimum.minimum,
            "share_at_lowest_reward": lowest_share,
        }
