"""Misleading loss metric: the logged loss differs from the loss that is trained on.

Formula
    ratio    = `logged_loss` / mean of `loss` over the steps since the previous logged loss
    summed   = in each of the last `window`, the ratio is the declared gradient_accumulation_steps,
               the number of ranks, their product, or the inverse of one of these, to `tolerance`
    alone    = the logged loss is rank 0's loss, to `exact`, and not the mean of the ranks, in each
               of the last `window` logged steps in which rank 0 was the highest or the lowest rank
    Finding  = summed or alone

Units
    `tolerance`, `exact`: fraction of 1. `window`: logged losses.

Source
    Sums in place of means under gradient accumulation (VeOmni#1130, nanochat#52, trl#2456), and
    metrics of rank 0 alone (trl#2468): decisions are then based on a wrong number. Training itself
    may be correct, so the severity is info.

Defaults
    `window` 16 and `tolerance` 0.05: a ratio is not near one of three numbers sixteen times by
    chance. `exact` 1e-3 is the rounding of logged losses. Losses near 0, as GRPO's, are not
    evaluated.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Scope, Severity
from sentinel.model.record import METADATA, START, STEP, Record, Spread

MIN_LOSS = 1e-2
"""Smallest evaluated loss; a smaller one belongs to an objective near 0, or is rounded."""

MIN_RANK0_DISTANCE = 20.0
"""Distance of rank 0 from the mean, in multiples of `exact`, that separates the two."""


@dataclass
class MetricIntegrity(DetectorDefaults):
    """Compares `logged_loss` with the `loss` of all ranks."""

    tolerance: float = 0.05
    exact: float = 1e-3
    window: int = 16

    signal = "logged_loss"
    severity = Severity.INFO
    scope = Scope.TRAINING
    remedy = (
        "Use the loss that sentinel measures on every rank. Average the logged loss over "
        "micro-batches and ranks before it is logged, or upgrade the trainer."
    )

    def __post_init__(self) -> None:
        self._accumulation_steps = 1.0
        self._reset()

    def _reset(self) -> None:
        self._loss_sum = 0.0
        self._loss_count = 0
        self._ratios: deque[float] = deque(maxlen=self.window)
        self._matches_rank0: deque[bool] = deque(maxlen=self.window)

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one logged loss, or add a trained loss."""
        if record.event is START:
            self._reset()
        if record.event in (START, METADATA):
            declared = record.values.get("gradient_accumulation_steps", self._accumulation_steps)
            self._accumulation_steps = declared if 1.0 <= declared < 1e6 else 1.0
        loss, logged = record.values.get("loss"), record.values.get("logged_loss")
        if record.event is not STEP:
            return None
        if loss is not None:
            self._loss_sum, self._loss_count = self._loss_sum + loss, self._loss_count + 1
        if logged is None or not self._loss_count:
            return None
        mean, steps = self._loss_sum / self._loss_count, self._loss_count
        self._loss_sum, self._loss_count = 0.0, 0
        if not MIN_LOSS < abs(mean) < 1e30 or not abs(logged) < 1e30:
            return None
        self._ratios.append(logged / mean)
        spread = record.spread.get("loss")
        if steps == 1 and spread is not None:
            self._compare_with_rank0(logged, spread)
        return self._evaluate(logged, mean, 1 if spread is None else spread.count)

    def _compare_with_rank0(self, logged: float, spread: Spread) -> None:
        """Record whether the logged loss is rank 0's, if rank 0 differs from the mean."""
        extremes = {spread.max_rank: spread.max, spread.min_rank: spread.min}
        rank0_loss = extremes.get(0)
        rounding = self.exact * abs(spread.mean)
        if rank0_loss is not None and (
            abs(rank0_loss - spread.mean) > MIN_RANK0_DISTANCE * rounding
        ):
            self._matches_rank0.append(abs(logged - rank0_loss) <= rounding)

    def _evaluate(self, logged: float, mean: float, ranks: int) -> DetectorOutput:
        if len(self._ratios) < self.window:
            return None
        evidence = {
            "logged_loss": logged,
            "mean_loss_of_ranks": mean,
        }
        for factor, meaning in self._candidate_factors(float(ranks)).items():
            if all(abs(ratio / factor - 1) <= self.tolerance for ratio in self._ratios):
                return Finding(
                    f"The logged loss is {factor:.3g} times the mean loss of the ranks: {meaning}.",
                    evidence,
                )
        if len(self._matches_rank0) == self.window and all(self._matches_rank0):
            return Finding(
                "The logged loss is that of rank 0, not the mean of the ranks.", evidence
            )
        return CLEAR

    def _candidate_factors(self, ranks: float) -> dict[float, str]:
        """Factors of a missing or an extra division, with their meaning."""
        micro_batches, both = self._accumulation_steps, self._accumulation_steps * ranks
        meanings = {both: "the number of micro-batches of all ranks"}
        if ranks == micro_batches:
            meanings[ranks] = "the number of ranks, which is that of micro-batches per step"
        else:
            meanings[ranks] = "the number of ranks"
            meanings[micro_batches] = "the number of micro-batches per step"
        factors = {factor: text for factor, text in meanings.items() if factor >= 2.0}
        return factors | {1.0 / factor: f"1 / {text}" for factor, text in factors.items()}
