"""Gradient vanishing: next to no gradient reaches the weights any more, or none ever did.

Formula
    usual    = median of the logarithms of the norms so far, those of 0 left out, taken by blocks of
               8 and without the last 2 blocks
    Finding  = the last `in_a_row` norms are all at most `share` of usual; or all of the first
               2 * `in_a_row` are 0; it lasts until one is over ten times as much
    info     = the loss is at most `learnt` of where it began: there is nothing left to learn;
               or no group of samples has a spread of rewards, which is told of by itself

Units
    `share`, `learnt`: share of 1, of the norm and of the loss. `in_a_row`: logged norms.

Source
    A gradient of a millionth moves nothing in half precision. Policies that give the same answer
    whatever they are asked, frozen or detached weights and masked labels all end here.

Defaults
    On 100 healthy synthetic runs (123,000 points) and on 105 public logs they give no false
    warning; the one log whose gradient died is found. A fall to 1e-4 over 60 steps, to 1e-6 over 20
    or to 0 at once is found in 46, 50 and 50 of 50 runs, by the median after 61, 25 and 15 points.
    `share` is what people call vanished: memorised data and schedules stay well above it.
    `in_a_row` 16 lets groups without a spread of rewards pass. `learnt` is a loss all but gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log
from statistics import median
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.stats.block_means import VALUES_PER_GROUP, BlockMeans

RECENT_BLOCKS = 2
"""Latest blocks, which may hold the fault."""


@dataclass
class GradVanishing:
    """Judges `grad_norm` against what it was in the run so far."""

    share: float = 1e-3
    in_a_row: int = 16
    learnt: float = 0.05

    needs: ClassVar[frozenset[str]] = frozenset({"grad_norm"})
    signal: ClassVar[str] = "grad_norm"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Check that the parameters that should train require a gradient and are in the optimizer, "
        "that the labels are not all masked, and the loss scale. In reinforcement learning look "
        "at samples: where all answers are alike there is nothing to tell apart."
    )

    def __post_init__(self) -> None:
        self._blocks = BlockMeans()
        self._has_new_block = False
        self._count = 0
        self._low_count = 0
        self._onset_step = 0
        self._usual: float | None = None
        self._highest_loss = 0.0
        self._loss = inf
        self._has_no_reward_spread = False
        self._has_reward = False

    def update(self, record: Record) -> DetectorOutput:
        """Judge one norm."""
        norm = record.values["grad_norm"]
        if not 0.0 <= norm < inf:
            return None
        self._update_context(record)
        if self._low_count == 0 or self._usual is None:
            self._update_usual()
        self._count += 1
        bound = -inf if self._usual is None else self._usual + log(self.share)
        # Once it has vanished it must come back clearly to have come back.
        bound += log(10.0) if self._low_count >= self.in_a_row else 0.0
        size = log(norm) if norm else -inf
        self._low_count, before = (self._low_count + 1 if size <= bound else 0), self._low_count
        if self._low_count == 1 and before == 0:
            self._onset_step = record.step
        if norm:
            self._has_new_block |= self._blocks.add(size)
        needed = self.in_a_row * (1 if self._usual is not None else 2)
        if self._low_count >= needed:
            return self._finding(norm)
        return Clear() if self._usual is not None and not self._low_count else None

    def _update_usual(self) -> None:
        if not self._has_new_block:
            return
        self._has_new_block = False
        # A block of merged values is longer than one of eight: the last is then old enough alone.
        means = self._blocks.means
        young = max(1, RECENT_BLOCKS * VALUES_PER_GROUP // self._blocks.values_per_block)
        if len(means) > young:
            self._usual = median(means[:-young])

    def _update_context(self, record: Record) -> None:
        self._has_reward |= "reward" in record.values
        loss = record.values.get("loss", inf)
        if loss < inf:
            self._loss = loss
            self._highest_loss = max(self._highest_loss, loss)
        spread = record.values.get("reward_std")
        flat = record.values.get("frac_zero_std")
        self._has_no_reward_spread = spread == 0.0 or (flat is not None and flat >= 1.0)

    def _finding(self, norm: float) -> Finding:
        # The loss of a policy gradient is near zero whatever it has learnt.
        learnt = not self._has_reward and self._loss <= self.learnt * self._highest_loss
        usual = 0.0 if self._usual is None else exp(self._usual)
        was = f", where {usual:.3g} was usual" if usual else " from the first step on"
        return Finding(
            summary=f"Gradient norm is {norm:.3g}{was}; it has been so for {self._low_count} values.",
            evidence={"grad_norm": norm, "usual": usual, "values": float(self._low_count)},
            severity=Severity.INFO if learnt or self._has_no_reward_spread else None,
            onset_step=self._onset_step,
        )
