"""Vanishing gradient: almost no gradient reaches the weights any more, or none ever did.

Formula
    usual    = median of ln(norm) so far, without norms of 0, in blocks of 8 and without the last 2
               blocks; the first blocks count for a norm of 0
    Finding  = the last `in_a_row` norms are all at most `share` of usual; or the last
               2 * `in_a_row` are 0 where it is unknown. It ends with a norm above ten times that
               bound
    info     = the loss is at most `learnt` of its maximum: nothing is left to learn. With a reward,
               the last norm above 0 is at most `learnt` of the first one as well, and the loss,
               then above 0, fell at least as far. Or no group of samples has a spread of rewards,
               which is reported separately

Units
    `share`, `learnt`: fraction of 1, of the norm and of the loss. `in_a_row`: logged norms.

Source
    In half precision a gradient of a millionth changes no weight. Policies that give the same
    completion for every prompt, frozen or detached weights and masked labels all cause this.

Defaults
    On 100 healthy synthetic runs (123,000 points) and on 105 public logs there is no false warning;
    the one log whose gradient vanished is found. A fall to 1e-4 over 60 steps, to 1e-6 over 20 or
    to 0 at once is found in 46, 50 and 50 of 50 runs, after a median of 61, 25 and 15 points.
    Memorised data and schedules stay well above `share` 1e-3. `in_a_row` 16 ignores a few groups
    without a spread of rewards. `learnt` 0.05 is a loss that is almost gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log
from statistics import median

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.signals.loss_kind import has_no_advantage
from sentinel.stats.block_means import VALUES_PER_GROUP, BlockMeans

RECENT_BLOCKS = 2
"""Latest blocks, which are not part of the reference."""


@dataclass
class GradVanishing(DetectorDefaults):
    """Evaluates `grad_norm` against its values in the run so far."""

    share: float = 1e-3
    in_a_row: int = 16
    learnt: float = 0.05

    needs = frozenset({"grad_norm"})
    signal = "grad_norm"
    remedy = (
        "Check that the parameters to be trained require a gradient and are in the optimizer. "
        "Check that some labels are not masked and that the loss scale is not 0. In "
        "reinforcement learning read samples: if all completions of a prompt have the same "
        "reward, the advantages are 0."
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
        self._has_no_advantage = False
        self._has_reward = False
        self._first_norm = 0.0
        self._has_converged = False
        """Whether the loss had fallen as far as the last norm above 0; both may then become 0."""

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one norm."""
        norm = record.values["grad_norm"]
        if not 0.0 <= norm < inf:
            return None
        self._update_context(record)
        if self._low_count == 0 or self._usual is None:
            self._update_usual()
        if norm == 0.0 and self._usual is None and self._blocks.means:
            self._usual = median(self._blocks.means)
        self._count += 1
        bound = -inf if self._usual is None else self._usual + log(self.share)
        # A vanished gradient has recovered only if it is clearly above the bound.
        bound += log(10.0) if self._low_count >= self.in_a_row else 0.0
        size = log(norm) if norm else -inf
        self._low_count, before = (self._low_count + 1 if size <= bound else 0), self._low_count
        if self._low_count == 1 and before == 0:
            self._onset_step = record.step
        if norm:
            self._first_norm = self._first_norm or norm
            fall = norm / self._first_norm
            # A loss that is the square of a small residual is 0 before its gradient.
            if self._loss:
                is_small = fall <= self.learnt
                self._has_converged = is_small and 0.0 < self._loss <= fall * self._highest_loss
            self._has_new_block |= self._blocks.add(size)
        needed = self.in_a_row * (1 if self._usual is not None else 2)
        if self._low_count >= needed:
            return self._finding(norm)
        return CLEAR if self._usual is not None and not self._low_count else None

    def _update_usual(self) -> None:
        if not self._has_new_block:
            return
        self._has_new_block = False
        # Merged blocks are longer than 8 values, so fewer of them are recent.
        means = self._blocks.means
        recent = max(1, RECENT_BLOCKS * VALUES_PER_GROUP // self._blocks.values_per_block)
        if len(means) > recent:
            self._usual = median(means[:-recent])

    def _update_context(self, record: Record) -> None:
        values = record.values
        self._has_reward = self._has_reward or "reward" in values
        loss = values.get("loss", inf)
        if loss < inf:
            self._loss = loss
            self._highest_loss = max(self._highest_loss, loss)
        self._has_no_advantage = has_no_advantage(record)

    def _finding(self, norm: float) -> Finding:
        is_learnt = self._has_converged or (
            # The loss of a policy gradient is near zero in any case, or below it.
            not self._has_reward and self._loss <= self.learnt * self._highest_loss
        )
        usual = 0.0 if self._usual is None else exp(self._usual)
        since = "the first step" if self._low_count == self._count else f"step {self._onset_step}"
        before = f"; it was {usual:.3g} before" if usual else f"; it has been 0 since {since}"
        return Finding(
            summary=f"Gradient norm is {norm:.3g}, low for {self._low_count} logged values"
            f"{before}.",
            evidence={
                "grad_norm": norm,
                "grad_norm_before": usual,
                "low_values_in_a_row": float(self._low_count),
            },
            severity=Severity.INFO if is_learnt or self._has_no_advantage else None,
            onset_step=self._onset_step,
        )
