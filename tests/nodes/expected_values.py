"""Truth: what each rank says at each step, and what the whole run must therefore be told to be.

All numbers have few bits, so that sums of them are exact and a mean is rounded once.
"""

from fractions import Fraction
from math import hypot, sqrt
from operator import mul

_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")


def number_of(environ):
    """The rank that a launcher numbered."""
    return int(next(environ[name] for name in _RANKS if name in environ))


def loss(rank, step):
    """Different on every rank, in an order that changes with the step."""
    return 2.0 + ((5 * rank + 3 * step) % 16) / 64 - step / 1024


def weight(rank, step):
    """Samples of that rank's batch."""
    return 4.0 + (rank + step) % 3


def mean(ranks, step, *, weighted=True):
    """Mean of the losses, each for as many samples as it is of, or each for one."""
    weights = [Fraction(weight(rank, step) if weighted else 1) for rank in ranks]
    losses = [Fraction(loss(rank, step)) for rank in ranks]
    return float(sum(map(mul, losses, weights)) / sum(weights))


def spread(ranks, step):
    """Count, lowest, highest, who that is, and the standard deviation, over these ranks."""
    said = {rank: loss(rank, step) for rank in ranks}
    middle = float(sum(map(Fraction, said.values())) / len(said))
    std = hypot(*[value - middle for value in said.values()]) / sqrt(len(said))
    least, most = min(said.values()), max(said.values())
    lowest = next(rank for rank in ranks if said[rank] == least)
    highest = next(rank for rank in ranks if said[rank] == most)
    return {
        "count": len(said), "min": least, "max": most, "std": std,
        "min_rank": lowest, "max_rank": highest,
    }  # fmt: skip
