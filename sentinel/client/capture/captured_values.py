"""Captured: what the taps found at the last optimizer step, until a log takes it along."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sentinel.client.capture.device_copy import Row, Stash
from sentinel.client.step_clock import StepClock
from sentinel.model.record import Event
from sentinel.signals.catalogue import canonical
from sentinel.transport.record_codec import Moment, Packer

_COUNT = ("optimizer_steps",)


@dataclass(slots=True)
class Pending:
    """Names and values of the last optimizer step; `rows` are values still on a device."""

    held: tuple[str, ...]
    values: tuple[float, ...]
    rows: list[Row]
    time: float
    numbered: tuple[str, ...]
    """The names, once the trainer's number goes with them; empty while a device has values."""


@dataclass(slots=True)
class Captured:
    """Holds one step's captured values, and those of earlier steps that a device still has."""

    clock: StepClock
    packer: Packer
    stash: Stash
    pending: Pending | None = None
    names: set[str] = field(default_factory=set)
    """Whatever was captured in this attempt."""

    def apart(self, name: str) -> str:
        """What a framework's value of that name is called beside our own."""
        known = canonical(name) if type(name) is str else name
        return f"logged_{known}" if known in self.names else name

    def hold(self, values: dict[str, float], tensors: dict[str, Any], now: float) -> None:
        """Keep what was found at the step just counted."""
        # A first step has no duration yet; what its framework calls so is not ours even then.
        self.names.update(values, tensors, ("step_time",))
        held = (*values, *_COUNT)
        numbers = (*values.values(), float(self.clock.optimizer_steps))
        rows = self.stash.put(tensors)
        numbered = () if rows else (*held, "global_step")
        self.pending = Pending(held, numbers, rows, now, numbered)

    def take(self, moment: Moment) -> tuple[tuple[str, ...], tuple[float, ...]]:
        """Names and values to go with a log: what was captured, or at least the count."""
        pending, self.pending = self.pending, None
        if pending is not None:
            for row in pending.rows:
                row.moment = moment
            return pending.held, pending.values
        steps = self.clock.optimizer_steps
        if not steps:
            return (), ()
        return _COUNT, (float(steps + moment.beat - self.clock.beat),)

    def flush(self) -> None:
        """Send it off alone, under the number its step has by itself."""
        if self.pending is not None:
            moment = Moment(self.clock.step, self.clock.beat, self.pending.time)
            names, values = self.take(moment)
            self.packer.values(self.packer.schema(names), moment, values)

    def fetch(self) -> None:
        """Send what has arrived from a device since."""
        for event, moment, names, values in self.stash.harvest():
            if event is Event.STEP:
                self.packer.values(self.packer.schema(names), moment, values)
            else:
                self.packer.text(event, moment, dict(zip(names, values, strict=True)))
