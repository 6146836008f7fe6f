"""Unequal start: before the first update a policy is not what it starts from.

Formula
    Finding  = the loss of the first backward pass is a logarithm of a sigmoid of scores, from which
               those of a reference are subtracted, another model has the shapes of the trained
               one, and the loss differs by over 2 % from ln 2, from each multiple and from each
               part of it; or
               such a loss is ln 2 to 6 digits at first, and three times in a row when the product
               of the learning rate and the number of updates is at least 1e-4; or
               the model is trained with active dropout, and at step 1 the divergence from the
               reference exceeds `kl` beside a reward, or the mean probability ratio differs from 1
               by over `ratio`

Units
    `kl`: nats, of a token or a sequence. `ratio`: plain number.

Source
    NVIDIA/NeMo-Aligner issue 227: at the first step of DPO policy and reference give different
    probabilities. huggingface/trl issues 454 and 744: dropout makes the ratio of PPO another one
    than 1 before the first update, and the divergence from an equal reference another than 0.

Defaults
    `kl` 0.001 and `ratio` 0.001. Without dropout both values are 0 and 1 but for rounding; a policy
    that was trained before has other ones on purpose, and so have those of a later step. A resumed
    training is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sentinel.detectors._training_check import Problem, ReportedCheck
from sentinel.model.finding import DetectorOutput, Finding
from sentinel.model.record import CHECK, METADATA, STEP, Event, Record
from sentinel.signals.run_metadata import ACTIVE_DROPOUT_KEY

_DROPOUT = (
    "Set the dropout of the policy to 0 (with TRL `disable_dropout=True`), or compute the "
    "probabilities before the update in evaluation mode as well."
)


@dataclass
class UnequalStart(ReportedCheck):
    """Evaluates the check `first_loss`, and the first values of `kl_ref` and the ratio."""

    kl: float = 1e-3
    ratio: float = 1e-3

    check = "first_loss"
    unreported = "The check needs the first loss of DPO, and a reference model in the process."
    events: ClassVar[frozenset[Event]] = frozenset({CHECK, METADATA, STEP})
    signal = "loss"
    remedy = _DROPOUT
    problems: ClassVar[Mapping[str, Problem]] = {
        "policy_differs": Problem(
            "The first loss of the preferences is {loss:.4g} and not ln 2 = 0.6931: before the "
            "first update the policy and its reference give different probabilities.",
            "Load the same weights into the policy and the reference, in the same precision, and "
            "compute both with the same tokens, masks and mode. Set dropout to 0.",
        ),
        "reference_follows": Problem(
            "The loss of the preferences is still ln 2 = 0.6931 after {updates:.0f} updates: the "
            "reference gives the probabilities of the trained policy, as if it were trained too.",
            "Make the reference a copy with weights of its own, by `copy.deepcopy(policy)` before "
            "the training or by loading it again; `copy.copy` and an assignment share the weights. "
            "Of a model with adapters, compute the reference with the adapters switched off. If "
            "the weights are separate, look whether the chosen and the rejected answers differ.",
        ),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self._dropout = ""
        self._first: dict[str, float] = {}
        """The values of step 1 that show dropout."""

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate a report, values of the first step, or metadata."""
        if record.event is CHECK:
            return super().update(record)
        if record.event is METADATA:
            self._dropout = record.attributes.get(ACTIVE_DROPOUT_KEY, self._dropout)
        elif record.step == 1:
            self._add(record.values)
        if not self._dropout or not self._first:
            return None
        evidence: dict[str, float | str] = {"active_dropout": self._dropout, **self._first}
        kl = self._first.get("kl_to_reference")
        what = (
            f"the divergence from the reference is {kl:.3g} and not 0"
            if kl is not None
            else f"the mean probability ratio is {self._first['probability_ratio']:.4g} and not 1"
        )
        self._first = {}
        return Finding(
            summary=f"Before the first update {what}: the policy computes with active dropout, "
            f"{self._dropout}.",
            evidence=evidence,
            onset_step=0,
        )

    def _add(self, values: Mapping[str, float]) -> None:
        # Beside a reward, plain names are those of a policy: students have a divergence as well.
        is_policy = "reward" in values
        plain = values.get("ratio", 1.0) if is_policy else 1.0
        kl = values.get("kl_ref", 0.0) if is_policy else 0.0
        ratio = values.get("importance_ratio_mean", plain)
        if abs(kl) > self.kl:
            self._first["kl_to_reference"] = kl
        if abs(ratio - 1.0) > self.ratio:
            self._first["probability_ratio"] = ratio
