"""Loss zero: the loss is exactly 0, and stays so; nothing is left to learn, or nothing was told.

Formula
    Finding  = `in_a_row` losses one after the other are exactly 0
    info     = the gradient norm beside one of them was over `alive`, or the loss had been
               falling to where its log rounds it away: the last loss before was under `rounded`
    A run with a reward, or of an algorithm of policy gradients, is not judged: its loss is zero to
    first order. Nor is a loss beside a gradient norm that is not finite: that is a masked NaN.

Units
    `in_a_row`: logged losses. `alive`: as the gradient norm. `rounded`: as the loss.

Source
    Labels that are all masked (-100 for every token), an empty batch, or a loss term that was
    never connected give a mean over nothing, which many losses make 0.

Defaults
    On 105 public logs they find the two whose supervised loss was 0 by mistake, and nothing else.
    `in_a_row` 16 lets batches that happen to have no label pass. `rounded` 1e-3 is ten times what a
    log of four decimals can show, and `alive` what no dead gradient reaches.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record

POLICY_GRADIENT_ALGORITHMS = frozenset({"grpo", "rloo", "ppo", "online_dpo", "reinforce"})


@dataclass
class LossZero:
    """Judges `loss`."""

    in_a_row: int = 16
    alive: float = 1e-3
    rounded: float = 1e-3

    needs: ClassVar[frozenset[str]] = frozenset({"loss"})
    signal: ClassVar[str] = "loss"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Look at one batch as the model gets it: whether any label is not -100 (the chat template, "
        "the response mask, truncation before the answer), and whether every term of the loss is "
        "connected. If the model has learnt the data by heart, stop the run."
    )

    def __post_init__(self) -> None:
        self._has_reward = False
        self._zero_count = 0
        self._onset_step = 0
        self._loss_before = inf
        self._highest_norm = 0.0

    def update(self, record: Record) -> DetectorOutput:
        """Judge one loss."""
        loss, norm = record.values["loss"], record.values.get("grad_norm", 0.0)
        self._has_reward |= "reward" in record.values
        self._has_reward |= record.attributes.get("algorithm") in POLICY_GRADIENT_ALGORITHMS
        if self._has_reward or not isfinite(loss) or not isfinite(norm):
            return None
        if loss != 0.0:
            self._zero_count, self._highest_norm, self._loss_before = 0, 0.0, abs(loss)
            return Clear()
        if self._zero_count == 0:
            self._onset_step = record.step
        self._zero_count += 1
        self._highest_norm = max(self._highest_norm, norm)
        if self._zero_count < self.in_a_row:
            return None
        learnt = self._highest_norm > self.alive or self._loss_before < self.rounded
        return Finding(
            summary=f"Loss has been exactly 0 for {self._zero_count} logged values.",
            evidence={
                "zeros": float(self._zero_count),
                "grad_norm": self._highest_norm,
                "loss_before": "none" if self._loss_before == inf else self._loss_before,
            },
            severity=Severity.INFO if learnt else None,
            onset_step=self._onset_step,
        )
