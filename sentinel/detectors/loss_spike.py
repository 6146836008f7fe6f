"""Loss spike: the loss jumps out of its band, and as a rule comes back.

Formula
    jump     = ln(loss) less the median of the last 64 values
    Finding  = of the last 3 values, 2 jump by over ln `loud` and over `sigmas` times the spread
    info     = 2 of 3 jump by over ln `together` and over `sigmas` times the spread, or one alone by
               over ln `alone` and over `alone_sigmas` times it
    Values that jump enter the 64 clipped to 4 spreads. A value that repeats the one before, as
    doubled rows do, is left out. A run with a reward is not judged.

Units
    `loud`, `together`, `alone`: plain factors of the loss. `sigmas`, `alone_sigmas`: standard
    deviations of ln(loss).

Source
    PaLM restarted some 100 steps before a spike and skipped 200 to 500 batches; the same data did
    no harm from another checkpoint. A single bad batch is no instability.

Defaults
    On 200 healthy synthetic runs (247,000 points) and 77 public logs with a loss they give no false
    warning. Losses that jump by less than `loud` come back by themselves in real logs, some noise
    has three of them in a row, and `together` and `alone` only note them. A jump to 4 times the
    loss that decays in 30 steps is found in 99 of 100 runs. A spread of `sigmas` 6 and
    `alone_sigmas` 10 is beyond the tails of common losses.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import exp, inf, log
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.stats.rolling_quantiles import RollingQuantiles

WINDOW = 64
"""Values that make the band."""

WARMUP_VALUES = 24
"""Values it takes before anything is judged."""

CLIP_SIGMAS = 4.0
"""Spreads that a value may be off when it enters the band."""


@dataclass
class LossSpike:
    """Judges `loss` against the band of its last values."""

    loud: float = 2.0
    together: float = 1.28
    sigmas: float = 6.0
    alone: float = 1.65
    alone_sigmas: float = 10.0

    needs: ClassVar[frozenset[str]] = frozenset({"loss"})
    signal: ClassVar[str] = "loss"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Wait whether it comes back. If it does not, go back to a checkpoint some 100 steps before "
        "the onset and skip the batches of the spike; against more of them clip harder "
        "(max_grad_norm), lower the learning rate, and look at the data of the onset."
    )

    def __post_init__(self) -> None:
        self._band = RollingQuantiles(WINDOW)
        self._jumps: deque[tuple[int, float]] = deque(maxlen=3)
        self._last_loss = -inf
        self._has_reward = False

    def update(self, record: Record) -> DetectorOutput:
        """Judge one loss."""
        loss = record.values["loss"]
        self._has_reward |= "reward" in record.values
        if self._has_reward or not 0.0 < loss < inf or loss == self._last_loss:
            return None
        self._last_loss, size = loss, log(loss)
        if len(self._band) < WARMUP_VALUES:
            self._band.add(size)
            return None
        usual = self._band.median
        jump = size - usual
        if jump <= 0.0:
            self._band.add(size)
            self._jumps.append((record.step, 0.0))
            return Clear()
        sigma = max(self._band.sigma, 1e-3)
        self._band.add(min(size, usual + CLIP_SIGMAS * sigma))
        self._jumps.append((record.step, jump if jump > self.sigmas * sigma else 0.0))
        severity = None if self._is_repeated_jump(self.loud) else Severity.INFO
        alone = jump > max(log(self.alone), self.alone_sigmas * sigma)
        if severity and not alone and not self._is_repeated_jump(self.together):
            return Clear()
        return Finding(
            summary=f"Loss jumped to {loss:.4g} where {exp(usual):.4g} is usual.",
            evidence={"loss": loss, "usual": exp(usual), "spread_of_ln": sigma},
            severity=severity,
            onset_step=next(step for step, size in self._jumps if size),
        )

    def _is_repeated_jump(self, factor: float) -> bool:
        """Whether this value and one of the two before it jumped so far."""
        far = [jump > log(factor) for _, jump in self._jumps]
        return far[-1] and sum(far) >= 2
