"""The values that each rank logs at each step, and the expected statistics of the run.

All numbers have few bits, so that their sums are exact and a mean is rounded once.
"""

from fractions import Fraction
from math import hypot, sqrt
from operator import mul

_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")


def rank_of(environ):
    """The rank from the environment variables of a launcher."""
    return int(next(environ[name] for name in _RANKS if name in environ))


def loss(rank, step):
    """A loss that differs between ranks, in an order that changes with the step."""
    return 2.0 + ((5 * rank + 3 * step) % 16) / 64 - step / 1024


def weight(rank, step):
    """The batch size of that rank."""
    return 4.0 + (rank + step) % 3


def mean(ranks, step, *, weighted=True):
    """The mean of the losses, weighted by batch size or unweighted."""
    weights = [Fraction(weight(rank, step) if weighted else 1) for rank in ranks]
    losses = [Fraction(loss(rank, step)) for rank in ranks]
    return float(sum(map(mul, losses, weights)) / sum(weights))


def spread(ranks, step):
    """Count, minimum, maximum, their ranks, and the standard deviation over these ranks."""
    losses = {rank: loss(rank, step) for rank in ranks}
    middle = float(sum(map(Fraction, losses.values())) / len(losses))
    std = hypot(*[value - middle for value in losses.values()]) / sqrt(len(losses))
    least, most = min(losses.values()), max(losses.values())
    lowest = next(rank for rank in ranks if losses[rank] == least)
    highest = next(rank for rank in ranks if losses[rank] == most)
    return {
        "count": len(losses), "min": least, "max": most, "std": std,
        "min_rank": lowest, "max_rank": highest,
    }  # fmt: skip
