"""Evidence, in nats, that a value comes from a shifted series, bounded for each single value.

The evidence of independent signals and of successive values can be added. It is calibrated by
simulation; with autocorrelated noise it is no bound of a false alarm rate.

Source: mixtures of simple shifts as in Robbins, Annals of Mathematical Statistics 1970.
"""

from __future__ import annotations

from math import exp, log

SHIFTS = (0.5, 1.0, 2.0)
"""Shifts of the mixture, in standard deviations."""

MIN_EVIDENCE, MAX_EVIDENCE = -2.5, 2.2
"""Bounds of the evidence of one value, so that no single value decides."""

MAX_EXCESS = 3.0
"""Standard deviations from which the evidence is at its upper bound in any case."""


def shift_evidence(excess: float) -> float:
    """Log likelihood ratio of a value that exceeds its level and margin by `excess` sigmas.

    >>> [round(shift_evidence(x), 1) for x in (-5.0, 0.0, 1.0, 4.0)]
    [-2.5, -0.6, 0.3, 2.2]
    """
    if excess >= MAX_EXCESS:
        return MAX_EVIDENCE
    ratio = sum([exp(shift * (excess - shift / 2)) for shift in SHIFTS]) / len(SHIFTS)
    return max(MIN_EVIDENCE, min(MAX_EVIDENCE, log(ratio)))
