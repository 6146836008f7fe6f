"""Loss spike: the loss jumps far above its recent values, and usually recovers.

Formula
    jump     = ln(loss) minus the median of the last 64 values
    Finding  = of the last 3 values, 2 jump by over ln `loud` and over `sigmas` standard deviations
    info     = 2 of 3 jump by over ln `together` and over `sigmas` standard deviations, or a single
               one by over ln `alone` and over `alone_sigmas` standard deviations
    Values that jump enter the 64 clipped to 4 standard deviations. A value equal to the one before,
    such as a duplicated row, is ignored. A run with a reward is not evaluated.

Units
    `loud`, `together`, `alone`: plain factors of the loss. `sigmas`, `alone_sigmas`: standard
    deviations of ln(loss).

Source
    PaLM restarted about 100 steps before a spike and skipped 200 to 500 batches; the same data was
    harmless from another checkpoint. A single bad batch is no instability.

Defaults
    On 200 healthy synthetic runs (247,000 points) and 77 public logs with a loss there is no false
    warning. In real logs, losses that jump by less than `loud` recover by themselves, and some
    noise has three of them in a row; `together` and `alone` give info only. A jump to 4 times the
    loss that decays in 30 steps is found in 99 of 100 runs. `sigmas` 6 and `alone_sigmas` 10 are
    beyond the tails of common losses.
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
"""Values in the reference window."""

WARMUP_VALUES = 24
"""Values before the first evaluation."""

CLIP_SIGMAS = 4.0
"""Standard deviations to which a value is clipped before it enters the window."""


@dataclass
class LossSpike:
    """Evaluates `loss` against the median and standard deviation of its last values."""

    loud: float = 2.0
    together: float = 1.28
    sigmas: float = 6.0
    alone: float = 1.65
    alone_sigmas: float = 10.0

    needs: ClassVar[frozenset[str]] = frozenset({"loss"})
    signal: ClassVar[str] = "loss"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Wait whether the loss recovers. If it does not, resume from a checkpoint about 100 steps "
        "before the onset and skip the batches of the spike. If spikes recur, clip gradients more "
        "strongly (max_grad_norm), lower the learning rate, and inspect the data of the onset."
    )

    def __post_init__(self) -> None:
        self._band = RollingQuantiles(WINDOW)
        self._jumps: deque[tuple[int, float]] = deque(maxlen=3)
        self._last_loss = -inf
        self._has_reward = False

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one loss."""
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
        is_large = jump > max(log(self.alone), self.alone_sigmas * sigma)
        if severity and not is_large and not self._is_repeated_jump(self.together):
            return Clear()
        return Finding(
            summary=f"Loss jumped to {loss:.4g}; its recent median is {exp(usual):.4g}.",
            evidence={
                "loss": loss,
                "loss_recent_median": exp(usual),
                "log_loss_standard_deviation": sigma,
            },
            severity=severity,
            onset_step=next(step for step, size in self._jumps if size),
        )

    def _is_repeated_jump(self, factor: float) -> bool:
        """Whether this value and one of the two before it jumped by over `factor`."""
        jumps = [jump > log(factor) for _, jump in self._jumps]
        return jumps[-1] and sum(jumps) >= 2
