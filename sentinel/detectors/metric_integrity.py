"""Metric integrity: the loss that is logged is not the loss that is trained on.

Formula
    ratio    = `logged_loss` / mean of `loss` over the steps since the last one was logged
    summed   = the ratio is the declared gradient_accumulation_steps, the number of ranks, or both
               multiplied, or 1 over that, in each of the last `window`, to `tolerance`
    alone    = it is rank 0's loss, to `exact`, and not the mean of the ranks, in each of the last
               `window` logged steps in which rank 0 had the highest or the lowest of them
    Finding  = summed or alone

Units
    `tolerance`, `exact`: shares of 1. `window`: logged losses.

Source
    Sums in place of means under accumulation (VeOmni#1130, nanochat#52, trl#2456), and the metrics
    of rank 0 alone (trl#2468): a number that people decide by, and not what they think it is.
    Training itself may well be right, so nobody is woken.

Defaults
    `window` 16 and `tolerance` 0.05: by chance a ratio is not near one of three numbers sixteen
    times. `exact` 1e-3 is how far losses are rounded. Losses about 0, as GRPO's, are not judged.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Event, Record, Spread

MIN_LOSS = 1e-2
"""A loss nearer to 0 is of an objective that is 0 to the first order, or is rounded away."""

MIN_RANK0_DISTANCE = 20.0
"""Times `exact` that rank 0 must be from the mean to be told from it."""


@dataclass
class MetricIntegrity:
    """Holds `logged_loss` against the `loss` of every rank."""

    tolerance: float = 0.05
    exact: float = 1e-3
    window: int = 16

    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "logged_loss"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Go by `loss`, which is measured on every rank. Divide what is logged by the micro-batches "
        "of a step, reduce it over the ranks before it is logged, and see whether a newer version "
        "of the trainer does so."
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
        """Judge one logged loss; add up what was trained on since the last."""
        if record.event is Event.START:
            self._reset()
        if record.event in (Event.START, Event.METADATA):
            declared = record.values.get("gradient_accumulation_steps", self._accumulation_steps)
            self._accumulation_steps = declared if 1.0 <= declared < 1e6 else 1.0
        loss, logged = record.values.get("loss"), record.values.get("logged_loss")
        if record.event is not Event.STEP:
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
        """Whether this is rank 0's alone, of a step in which that can be told."""
        ends = {spread.max_rank: spread.max, spread.min_rank: spread.min}
        own = ends.get(0)
        near = self.exact * abs(spread.mean)
        if own is not None and abs(own - spread.mean) > MIN_RANK0_DISTANCE * near:
            self._matches_rank0.append(abs(logged - own) <= near)

    def _evaluate(self, logged: float, mean: float, ranks: int) -> DetectorOutput:
        if len(self._ratios) < self.window:
            return None
        evidence = {"logged_loss": logged, "loss": mean, "ratio": logged / mean}
        for factor, what in self._candidate_factors(float(ranks)).items():
            if all(abs(ratio / factor - 1) <= self.tolerance for ratio in self._ratios):
                return Finding(
                    f"The logged loss is {factor:.3g} times the loss that is trained on: {what}.",
                    evidence,
                )
        if len(self._matches_rank0) == self.window and all(self._matches_rank0):
            return Finding("The logged loss is that of rank 0 alone.", evidence)
        return Clear()

    def _candidate_factors(self, ranks: float) -> dict[float, str]:
        """What a sum in place of a mean multiplies by, or a division too many divides by."""
        micro, both = self._accumulation_steps, self._accumulation_steps * ranks
        known = {
            both: "the micro-batches of all ranks",
            ranks: "the number of ranks",
            micro: "the number of micro-batches of a step",
        }
        large = {factor: what for factor, what in known.items() if factor >= 2.0}
        return large | {1.0 / factor: f"1 over {what}" for factor, what in large.items()}
