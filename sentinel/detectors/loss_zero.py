"""Loss of zero: the loss stays at exactly 0, so nothing is learned.

Formula
    Finding  = `in_a_row` consecutive losses are exactly 0
    info     = a gradient norm logged with them exceeded `alive`, or the loss had fallen to where
               its log rounds it to 0: the last loss before was below `rounded`
    A run with a reward, or with a policy-gradient algorithm, is not evaluated: its loss is zero to
    first order. Nor is a loss logged with a non-finite gradient norm, which is a masked NaN.

Units
    `in_a_row`: logged losses. `alive`: as the gradient norm. `rounded`: as the loss.

Source
    If all labels are masked (-100 for every token), a batch is empty, or a loss term was never
    connected, the mean is over nothing, which many losses return as 0.

Defaults
    On 105 public logs they find the two whose supervised loss was 0 by mistake, and nothing else.
    `in_a_row` 16 ignores single batches without labels. `rounded` 1e-3 is ten times the resolution
    of a log with four decimals, and no dead gradient reaches `alive`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Scope, Severity
from sentinel.model.record import Record
from sentinel.signals.loss_kind import is_policy_gradient


@dataclass
class LossZero(DetectorDefaults):
    """Evaluates `loss`."""

    in_a_row: int = 16
    alive: float = 1e-3
    rounded: float = 1e-3

    needs = frozenset({"loss"})
    signal = "loss"
    scope = Scope.TRAINING
    remedy = (
        "Inspect one batch as the model receives it: some labels must differ from -100 (check "
        "chat template, response mask and truncation). Check that every term of the loss is "
        "connected to the parameters. If the model has memorised the data, stop the run."
    )

    def __post_init__(self) -> None:
        self._is_policy_gradient = False
        self._zero_count = 0
        self._onset_step = 0
        self._loss_before = inf
        self._highest_norm = 0.0

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one loss."""
        loss, norm = record.values["loss"], record.values.get("grad_norm", 0.0)
        self._is_policy_gradient |= is_policy_gradient(record)
        if self._is_policy_gradient or not isfinite(loss) or not isfinite(norm):
            return None
        if loss != 0.0:
            self._zero_count, self._highest_norm, self._loss_before = 0, 0.0, abs(loss)
            return CLEAR
        if self._zero_count == 0:
            self._onset_step = record.step
        self._zero_count += 1
        self._highest_norm = max(self._highest_norm, norm)
        if self._zero_count < self.in_a_row:
            return None
        is_learnt = self._highest_norm > self.alive or self._loss_before < self.rounded
        return Finding(
            summary=f"Loss has been exactly 0 for {self._zero_count} logged values.",
            evidence={
                "zero_losses_in_a_row": float(self._zero_count),
                "highest_grad_norm": self._highest_norm,
                "last_nonzero_loss": "none" if self._loss_before == inf else self._loss_before,
            },
            severity=Severity.INFO if is_learnt else None,
            onset_step=self._onset_step,
        )
