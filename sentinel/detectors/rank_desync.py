"""Rank desync: what every rank must have alike is no longer alike.

Formula
    apart    = the highest rank's value is further from the lowest's than `tolerance` of it
    proven   = a value was alike on all ranks in the first `proven` records that two or more gave
    Finding  = a proven value is apart `in_a_row` records, one after the other
    critical = the gradient norm is

Units
    `tolerance`: share of 1, of the gradient norm; learning rate, loss scale and step number are
    the same or are not. `proven`, `in_a_row`: records that tell the value.

Source
    Replicas that average their gradients compute the same norm from the same numbers, to the last
    bit; a norm that differs is of weights that differ, or of an average that was not taken. Ranks
    that hold parts of the gradient, stages of a pipeline, and ranks that train each for itself
    never were alike, so they prove nothing and are not judged.

Defaults
    `tolerance` 1e-3 is a thousand times what the order of a float32 sum changes. `proven` 8 and
    `in_a_row` 3: one record of a rank that logs a step too late is no desync. Replicas of 2 to 64
    ranks with noise of 1e-6 were never reported in 60 runs of 2,000 steps; one that is off by 1 %
    always is at the third record. Who begins with replicas and then lets them part on purpose, as
    post-local SGD does, should raise `proven` beyond the number of steps they begin with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sentinel.finding import Calm, Finding, Opinion, Severity
from sentinel.record import Event, Record, Spread

NORM = "grad_norm"
ALIKE = (NORM, "loss_scale", "learning_rate", "global_step")

NOTHING = 1e-6
"""A norm so much below another is of a rank that holds no part of what is trained."""


@dataclass
class RankDesync:
    """Judges the spread of what is to be the same on every rank."""

    tolerance: float = 1e-3
    proven: int = 8
    in_a_row: int = 3

    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "grad_norm"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Resume every rank from one checkpoint before the onset: the replicas are not one model "
        "any more. Then look on the rank named for weights, buffers or seeds set after the model "
        "was wrapped, for a backward pass under no_sync, and for a step that only some ranks skip."
    )

    def __post_init__(self) -> None:
        self._restart()

    def _restart(self) -> None:
        self._seen: dict[str, int] = {}
        self._never: list[str] = []
        self._apart: dict[str, int] = {}
        self._since: dict[str, int] = {}

    def update(self, record: Record) -> Opinion:
        """Judge one step's spread."""
        if record.event is Event.START:
            self._restart()
        if record.event is not Event.STEP:
            return None
        told = [name for name in ALIKE if name in record.spread]
        judged = [name for name in told if self._judge(name, record)]
        if not self._apart:
            return Calm() if judged else None
        wrong = [name for name in ALIKE if self._apart.get(name, 0) >= self.in_a_row]
        if not wrong or not judged:
            return None
        name = next((name for name in wrong if name in record.spread), "")
        if not name:
            return None
        spread = record.spread[name]
        return Finding(
            summary=f"{name} differs between ranks that were alike: {spread.min:.6g} on rank "
            f"{spread.min_rank}, {spread.max:.6g} on rank {spread.max_rank}.",
            evidence={
                "signal": name,
                "lowest": spread.min,
                "lowest_rank": float(spread.min_rank),
                "highest": spread.max,
                "highest_rank": float(spread.max_rank),
                "ranks": float(spread.count),
            },
            severity=Severity.CRITICAL if name == NORM else None,
            onset_step=min(self._since[name], record.step),
            rank=_odd(spread),
        )

    def _judge(self, name: str, record: Record) -> bool:
        """Count one value in; whether it says anything."""
        spread = record.spread[name]
        whole = name != NORM or _whole(spread, record.values[name])
        if spread.count < 2 or name in self._never or not whole:
            return False
        room = self.tolerance * abs(spread.max) if name == NORM else 0.0
        apart = spread.max - spread.min > room
        seen = self._seen.get(name, 0)
        if seen < self.proven:
            self._seen[name] = seen + 1
            if apart:
                self._never.append(name)
            return False
        if not apart:
            self._apart.pop(name, None)
            return True
        if name not in self._apart:
            self._since[name] = record.step
        self._apart[name] = min(self._apart.get(name, 0) + 1, self.in_a_row)
        return True


def _whole(spread: Spread, value: float) -> bool:
    """Whether these are norms of one gradient; of its parts the norm is longer than any."""
    return value == spread.max and spread.min > NOTHING * spread.max


def _odd(spread: Spread) -> int | None:
    """The rank that is apart from the others; None of two, or where they fall into halves."""
    if spread.count < 3:
        return None
    below, above = spread.mean - spread.min, spread.max - spread.mean
    least = (spread.count - 1.5) * min(below, above)
    if max(below, above) < least:
        return None
    return spread.min_rank if below > above else spread.max_rank
