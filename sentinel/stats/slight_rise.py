"""Whether a loss has risen slightly, next to what it had fallen before.

A loss close to 0 is that of a few samples, so that the data of one batch alone make it many times
as high; nearly all that was learned is still there.
"""

from __future__ import annotations

from math import exp

SLIGHT_SHARE, SLIGHT_LOG_SHARE = 0.02, 1 / 3
"""Shares of its fall, and of that of its logarithm, below which the rise of a loss is slight."""


def is_slight_rise(level: float, usual: float, start: float) -> bool:
    """Whether a loss that fell from `start` to `usual` rose slightly to `level`, all as logarithms.

    >>> from math import log
    >>> is_slight_rise(log(0.04), log(0.006), log(4.0))
    True
    >>> is_slight_rise(log(0.9), log(0.6), log(4.0)), is_slight_rise(log(0.04), log(1e-4), log(4.0))
    (False, False)
    """
    is_slight = exp(level) - exp(usual) < SLIGHT_SHARE * (exp(start) - exp(usual))
    return is_slight and level - usual < SLIGHT_LOG_SHARE * (start - usual)
