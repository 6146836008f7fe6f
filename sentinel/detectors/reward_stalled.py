"""Stalled reward: the reward has not risen since the start of the run.

Formula
    floored  = over at least `points` rewards, the fraction `share` of them is the lowest reward,
               and the others are fewer in the last half than in the first, by half the standard
               error of such counts
    unmoved  = over at least `many` rewards, or over at least `points` past half of the planned
               steps or at the end of the run, the mean of the last quarter exceeds the lower of
               those of the first quarter and the first sixteenth by less than `noises` times the
               noise, including two standard errors; unless it exceeds the first sixteenth by four
               standard errors and a fifth of its size: the noise of single episodes may exceed any
               gain of their mean. At the end of a shorter run that finished, 48 do if the means
               differ by less than twice that, in either direction, and no eighth of the run is
               above the last quarter by 2.5 standard errors
    constant = the first `points` / 3 rewards or more are all equal, not above 0, and no record
               shows a spread of rewards
    frozen   = over as many the entropy of the policy stays the same to a thousandth, above 0.05
               nats, and the reward has no gain as for unmoved; or it is that of a uniform choice
               among 2 to 32 actions, with which any gain is chance
    Finding  = floored, unmoved, constant or frozen; info if none is certain yet, but over at least
               `points` rewards the last quarter does not exceed the first sixteenth by its own
               standard error; info too while an exploration rate or an epsilon above a half is
               logged: most actions are random, and so is the reward
    none     = the reward was above its start and is below that again, or is below its start, each
               by 2.5 standard errors and a twentieth of its size: that is a decline; or the last
               quarter is within a tenth of the range of all rewards from the highest: nothing is
               left to gain. Of rewards between 0 and 1 that range is from 0 to 1

Units
    `share`: fraction of 1. `points`, `many`: logged rewards. `noises`: standard deviations.

Source
    Two one-sided tests of equivalence, Schuirmann 1987: the stall is shown, not merely not refuted.

Defaults
    `points` 96 and `share` 0.75 allow a policy that is rewarded for one completion in four to
    continue. `noises` 0.5: a healthy reward gains 2.5 to 25 times its noise over a run, and the
    slowest start of 60 runs rose by half of it within 700 points, so that `many` 1,000 are needed
    before half of a run, and none of 20 healthy synthetic runs has a warning past it or at its end.
    Of 480 runs of 50 to 90 rewards without a gain, 53 % have a warning at their end; of 480 that
    gain 2.5 times their noise, none has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, inf, isfinite, log, nan, sqrt
from statistics import fmean

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Severity
from sentinel.model.record import METADATA, START, STEP, STOP, Record
from sentinel.signals.key_assignment import is_game
from sentinel.stats.block_means import BlockMeans
from sentinel.stats.reward_gain import RewardGain
from sentinel.stats.share_of_one import are_shares_of_one

CONFIDENCE_Z = 2.0
"""Standard errors between an estimate and its bound."""

DECLINE_Z = 2.5
"""Standard errors that show a gain, and its loss."""

MIN_DECLINE_SHARE = 0.05
"""Share of the size of the reward that a decline exceeds, as a fall in reward_collapse does."""

MEAN_CHANGE_TO_SIGMA = 0.886
"""Standard deviation divided by mean absolute change, for white normal noise."""

SOLVED_RANGE_SHARE = 0.1
"""Distance from the highest reward, as a share of the range, at which nothing is left to gain."""

FINE_BLOCK, MIN_FINE_BLOCKS = 4, 12
"""Rewards in a block, and blocks, that are compared at the end of a run, which may be short."""

LEARNING_Z, LEARNING_SHARE = 4.0, 0.2
"""Standard errors, and share of the size of the reward, of a gain that is shown whatever the noise
of a single reward."""

FROZEN_SHARE, MIN_ENTROPY = 1e-3, 0.05
"""Share of its size by which the entropy of a policy that learns changes, and least such entropy in
nats: one that is spent may stay the same."""

MAX_UNIFORM_ENTROPY = log(32.5)
"""Nats above which the entropies of uniform choices are too close to each other."""

RARER_REWARD_Z = 0.5
"""Standard errors by which rewards must have become rarer; learning proceeds in jumps."""


EXPLORATION_PATTERN = re.compile(r"(.*/)?(exploration_rate|epsilon)", re.IGNORECASE)
"""Names of the share of actions that are random."""

MAX_EXPLORATION = 0.5
"""Share of random actions above which the reward does not show what was learned."""

GAME_REMEDY = (
    "Check that the reward of an episode is higher where the agent does better, and that a random "
    "agent earns some. Raise {entropy bonus} or the exploration, or train longer if an agent needs "
    "more episodes. Check that {learning rate} is not 0 and that the weights change."
)


@dataclass
class RewardStalled(DetectorDefaults):
    """Evaluates `reward` over the whole run."""

    points: int = 96
    share: float = 0.75
    many: int = 1000
    noises: float = 0.5

    steps_with = frozenset({"reward"})
    reads = frozenset({"entropy"})
    signal = "reward"
    remedy = (
        "Score a few correct completions manually: if they earn no reward, fix the parsing or "
        "the format check. Otherwise start with easier prompts or supervised training, and raise "
        "{number of completions per prompt}. Check that {learning rate} is not 0 and that the "
        "weights change."
    )

    def __post_init__(self) -> None:
        self._max_steps = 0.0
        self._change_total = 0.0
        self._lowest, self._highest = inf, -inf
        self._lowest_entropy, self._highest_entropy = inf, -inf
        self._last_reward: float | None = None
        self._blocks = BlockMeans()
        self._fine_blocks = BlockMeans(FINE_BLOCK)
        self._reward_gain = RewardGain()
        self._above_lowest = BlockMeans(is_trimmed=False)
        """Shares of the rewards above the lowest."""
        self._count = 0
        self._first_step: int | None = None
        self._stall_evidence: dict[str, float] = {}
        self._is_certain = False
        self._has_varied = False

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one reward, or the end of the run; tested after every completed block."""
        if record.event is not STEP or "reward" not in record.values:
            return self._update_run(record)
        reward = record.values["reward"]
        if not isfinite(reward):
            return None
        if self._first_step is None:
            self._first_step = record.step
        self._count += 1
        entropy = record.values.get("entropy", nan)
        # A policy without a known entropy is not frozen.
        self._lowest_entropy = min(self._lowest_entropy, entropy if isfinite(entropy) else -inf)
        self._highest_entropy = max(self._highest_entropy, entropy)
        self._highest = max(self._highest, reward)
        if reward < self._lowest:
            # Every earlier reward is above the new lowest one.
            self._lowest, self._above_lowest.means = reward, [1.0] * len(self._above_lowest.means)
        self._reward_gain.add(reward)
        self._above_lowest.add(float(reward > self._lowest))
        if self._last_reward is not None:
            self._change_total += abs(reward - self._last_reward)
        self._last_reward = reward
        self._has_varied |= record.values.get("reward_std") != 0.0 or reward != self._highest
        self._fine_blocks.add(reward)
        if self._blocks.add(reward) and self._is_judged():
            is_late = 0.0 < self._max_steps < record.step * 2
            self._test_blocks(self._blocks, is_late=is_late)
        if self._count < self.points and not self._is_judged():
            return None
        return self._finding(record) if self._stall_evidence else CLEAR

    def _update_run(self, record: Record) -> DetectorOutput:
        """Read the planned length from a start, and evaluate the reward at the end."""
        if record.event in (START, METADATA):
            self._max_steps = record.values.get("max_steps", self._max_steps)
        # A log that breaks off may be that of a longer run.
        is_finished = record.attributes.get("outcome") == "finished"
        is_enough = self._is_judged() or (
            is_finished and len(self._fine_blocks.means) >= MIN_FINE_BLOCKS
        )
        if record.event is STOP and is_enough and self._fine_blocks.means:
            self._test_blocks(self._fine_blocks, is_late=True)
            is_shown = self._stall_evidence and (self._is_certain or self._is_judged())
            return self._finding(record) if is_shown else CLEAR
        return None

    def _is_judged(self) -> bool:
        """Whether there are enough rewards; where none has ever differed, a third of them is."""
        is_constant = not self._has_varied and self._highest <= 0.0
        return self._count >= (self.points // 3 if is_constant else self.points)

    def _finding(self, record: Record) -> Finding:
        evidence = self._stall_evidence
        return Finding(
            summary=f"Reward has not risen significantly in {self._count} logged values: it "
            f"started at {evidence['mean_reward_at_start']:.4g} and is "
            f"{evidence['mean_reward_of_last_quarter']:.4g} now.",
            evidence=dict(evidence),
            severity=None
            if self._is_certain and not _is_exploring(record.values)
            else Severity.INFO,
            onset_step=self._first_step,
            remedy=GAME_REMEDY if is_game(record.values) else None,
        )

    def _is_frozen(self) -> bool:
        """Whether the entropy of the policy has never changed."""
        lowest, highest = self._lowest_entropy, self._highest_entropy
        return self._count >= self.points and (
            highest > MIN_ENTROPY and highest - lowest <= FROZEN_SHARE * highest
        )

    def _noise(self) -> float:
        """Standard deviation of a reward; not 0 where rewards repeat."""
        mean_change = self._change_total / max(1, self._count - 1)
        return max(self._reward_gain.noise, MEAN_CHANGE_TO_SIGMA * mean_change)

    def _test_blocks(self, blocks: BlockMeans, *, is_late: bool) -> None:
        means, length = blocks.means, blocks.values_per_block
        sixteenth, quarter = max(1, len(means) // 16), max(1, len(means) // 4)
        start, last = fmean(means[:sixteenth]), fmean(means[-quarter:])
        noise = self._noise()
        error = noise * sqrt(1 / (sixteenth * length) + 1 / (quarter * length))
        quarter_error = noise * sqrt(2 / (quarter * length))
        above, half = self._above_lowest.means, len(self._above_lowest.means) // 2
        size = self._above_lowest.values_per_block
        early, late = sum(above[:half]) * size, sum(above[len(above) - half :]) * size
        is_rarer = early - late >= RARER_REWARD_Z * sqrt(early + late)
        lowest_share = 1.0 - fmean(above)
        is_floored = lowest_share >= self.share and is_rarer
        gain = last - min(start, fmean(means[:quarter]))
        is_learning = last - start > max(
            LEARNING_Z * error, LEARNING_SHARE * max(abs(start), abs(last))
        )
        is_unmoved = (is_late or self._count >= self.many) and (
            gain + CONFIDENCE_Z * quarter_error < self.noises * noise and not is_learning
        )
        best = max(fmean(means[at : at + quarter]) for at in range(len(means) - quarter + 1))
        # The error of few rewards leaves room for a bound of twice the size only, on both sides.
        eighth = max(1, len(means) // 8)
        highest = max(fmean(means[at : at + eighth]) for at in range(len(means) - eighth + 1))
        eighth_error = noise * sqrt(1 / (eighth * length) + 1 / (quarter * length))
        is_unmoved |= self._count < self.points and (
            abs(gain) + CONFIDENCE_Z * quarter_error < 2 * self.noises * noise
            and highest - last < DECLINE_Z * eighth_error
        )
        # A decline is shown against the noise without outliers.
        margin = DECLINE_Z * error * ((self._reward_gain.noise or noise) / noise if noise else 0.0)
        has_declined = best - last > margin and (best - start > margin or start - last > margin)
        before = max(best, start)
        has_declined &= before - last > MIN_DECLINE_SHARE * max(abs(before), abs(last))
        # A choice that is uniform at every step has learned nothing.
        choices = exp(min(self._highest_entropy, MAX_UNIFORM_ENTROPY))
        is_uniform = choices > 1.5 and abs(choices - round(choices)) <= FROZEN_SHARE * choices
        is_long = is_late or self._count >= self.many
        is_frozen = is_long and self._is_frozen() and (is_uniform or not is_learning)
        self._is_certain = is_floored or is_unmoved or is_frozen
        lowest, highest = self._lowest, self._highest
        if are_shares_of_one(lowest, highest):
            lowest, highest = 0.0, 1.0
        is_solved = 0.0 <= highest - last < SOLVED_RANGE_SHARE * (highest - lowest)
        is_moving = has_declined or (not self._is_certain and last - start >= error)
        if is_solved or (is_moving and not is_frozen):
            self._stall_evidence = {}
            return
        self._stall_evidence = {
            "mean_reward_at_start": start,
            "mean_reward_of_last_quarter": last,
            "usual_reward_fluctuation": noise,
            "lowest_reward": self._lowest,
            "share_at_lowest_reward": lowest_share,
        }


def _is_exploring(values: Mapping[str, float]) -> bool:
    """Whether most actions of the agent are random."""
    return any(
        value > MAX_EXPLORATION and EXPLORATION_PATTERN.fullmatch(name)
        for name, value in values.items()
    )
