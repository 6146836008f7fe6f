"""Accumulates the evidence, in nats, that a standardised series has shifted upwards.

Formula
    g[d]     = max(0, g[d] + d * z - d^2 / 2) for shifts d of 0.5, 1 and 2 sigmas, z clipped
    evidence = ln mean over d of exp(g[d])

Each g is Page's CUSUM of the log-likelihood ratio of a shift by d against none; small shifts detect
a slow departure while it is still small. The clipping limits what one value contributes, so that no
single value can raise an alarm.

Source: Page, "Continuous inspection schemes", Biometrika 1954; mixtures of such sums as e-detectors
in Shin, Ramdas & Rinaldo 2022 (arXiv:2203.03532). Clipped so, exp(d * z - d^2 / 2) has a mean of at
most 1 under Student noise of 4 degrees of freedom, if level and sigma are right and the noise is
independent. They are estimated, so bounds on the evidence are calibrated, not guaranteed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, log

SHIFTS = (0.5, 1.0, 2.0)
"""Sizes of the shift, in sigmas."""

LOWEST_Z, HIGHEST_Z = -2.5, 2.2
"""Range that a value is clipped to, in sigmas."""

MAX_SUM_NATS = 20.0
"""Maximum of one sum: an incident ends soon after the series is back."""

NO_EVIDENCE_Z = SHIFTS[0] / 2
"""At or below this, a value is no evidence for any shift."""


@dataclass(slots=True)
class EvidenceCusum:
    """Mixture CUSUM; `evidence` in nats, 0 while the series is where it is expected.

    `onset_range` are the steps between which the shift began: the sums of the sizes of shift date
    it differently.
    """

    max_sum: float = MAX_SUM_NATS
    evidence: float = 0.0
    _sums: list[float] = field(default_factory=lambda: [0.0] * len(SHIFTS))
    _starts: list[int] = field(default_factory=lambda: [0] * len(SHIFTS))

    @property
    def onset_range(self) -> tuple[int, int]:
        """First and last step at which a sum that is above 0 last left 0; (0, 0) without one."""
        starts = [start for start, total in zip(self._starts, self._sums, strict=True) if total]
        return (min(starts), max(starts)) if starts else (0, 0)

    def update(self, z: float, step: int) -> float:
        """Add a value in sigmas above what matters; returns the evidence."""
        if z <= NO_EVIDENCE_Z and not self.evidence:
            return 0.0
        z = min(max(z, LOWEST_Z), HIGHEST_Z)
        sums = self._sums
        for at, shift in enumerate(SHIFTS):
            before = sums[at]
            total = before + shift * z - shift * shift / 2
            if total <= 0.0:
                sums[at] = 0.0
                continue
            if not before:
                self._starts[at] = step
            sums[at] = min(total, self.max_sum)
        self.evidence = log(sum(map(exp, sums)) / len(sums)) if any(sums) else 0.0
        return self.evidence

    def reset(self) -> None:
        """Forget all evidence."""
        self.evidence = 0.0
        self._sums = [0.0] * len(SHIFTS)

    def z_to_reach(self, bound: float, count: int) -> float:
        """The z that, held by the next `count` values, brings a sum to `bound`; at most HIGHEST_Z.

        A sum that reaches ln(number of sums) above the bound suffices, whatever the others.
        """
        needed = bound + log(len(SHIFTS))
        z = min(
            ((needed - total) / count + shift * shift / 2) / shift
            for shift, total in zip(SHIFTS, self._sums, strict=True)
        )
        return min(max(z, 0.0), HIGHEST_Z)
