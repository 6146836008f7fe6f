"""High sharpness: the curvature of the loss is far beyond what the learning rate is stable at.

Formula
    ratio    = largest eigenvalue of the Hessian divided by the highest at which the optimizer is
               stable on a quadratic: 2 / learning rate for gradient descent
    Finding  = the last `in_a_row` ratios are all above `limit`, and do not fall: the mean of the
               later half of them is at least half of that of the earlier half

Units
    `limit`: plain factor. `in_a_row`: measurements.

Source
    Cohen et al. 2021 (arXiv:2103.00065) and 2022 (arXiv:2207.14484) on the edge of stability: with
    full batches the ratio rises to 1 and stays about there, which is healthy. Lewkowycz et al. 2020
    (arXiv:2003.02218): at a high rate a sharpness beyond the limit falls after a short rise of the
    loss, as in a warm-up (Gilmer et al. 2021, arXiv:2110.04369). Measured on a small batch, the
    ratio is above 1 in healthy trainings (Andreyev and Beneventano 2024, arXiv:2412.20553).

Defaults
    A tanh network that learns at a rate of 2 and oscillates at 4 (batches of 32 of 512 examples):
    the lowest of 4 ratios in a row is at most 4.1 in 12 trainings at 2, and 12 to 18 in 12 at 4.
    `limit` 6 is between. With all examples at rates of 0.5 to 4 there is no finding in 32
    trainings, and with batches of 32 at rates of up to 2 none in 24; at 4 and 8 all 16 are found,
    after 4 measurements.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf

from sentinel.model.finding import Clear, DetectorDefaults, DetectorOutput, Finding
from sentinel.model.record import Record


@dataclass
class SharpnessHigh(DetectorDefaults):
    """Evaluates `sharpness_ratio`."""

    limit: float = 6.0
    in_a_row: int = 4

    needs = frozenset({"sharpness_ratio"})
    reads = frozenset({"sharpness", "preconditioned_sharpness"})
    signal = "sharpness_ratio"
    remedy = (
        "Lower {learning rate} to a third, or lengthen {warm-up}. If the loss has risen, resume "
        "from the last checkpoint before the onset."
    )

    def __post_init__(self) -> None:
        self._recent: deque[tuple[int, float]] = deque(maxlen=self.in_a_row)

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one ratio."""
        ratio = record.values["sharpness_ratio"]
        if not -inf < ratio < inf:
            return None
        self._recent.append((record.step, ratio))
        ratios = [value for _, value in self._recent]
        if len(ratios) < self.in_a_row or min(ratios) <= self.limit:
            return Clear(self.limit)
        half = len(ratios) // 2
        is_falling = sum(ratios[-half:]) < 0.5 * sum(ratios[:half])
        if half and is_falling:
            return Clear(self.limit)
        evidence = {
            "sharpness_ratio": ratio,
            "limit": self.limit,
            "measurements": float(len(ratios)),
        }
        for name in sorted(self.reads):
            sharpness = record.values.get(name, inf)
            if -inf < sharpness < inf:
                evidence[name] = sharpness
        return Finding(
            summary=f"Sharpness is {ratio:.3g} times the highest at which the learning rate is "
            f"stable, and has been above {self.limit:g} times it in {len(ratios)} measurements.",
            evidence=evidence,
            onset_step=self._recent[0][0],
        )
