"""Captured: what the taps found at the last optimizer step, until a log takes it along."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sentinel.client.capture.device_copy import CopyRow, DeviceCopies
from sentinel.client.step_clock import StepClock
from sentinel.model.record import Event
from sentinel.signals.catalogue import canonical_name
from sentinel.transport.record_codec import RecordEncoder, StepStamp

_STEP_COUNT_NAMES = ("optimizer_steps",)


@dataclass(slots=True)
class PendingCapture:
    """Names and values of the last optimizer step; `rows` are values still on a device."""

    names: tuple[str, ...]
    values: tuple[float, ...]
    rows: list[CopyRow]
    time: float
    names_with_step: tuple[str, ...]
    """The names, once the trainer's number goes with them; empty while a device has values."""


@dataclass(slots=True)
class CapturedValues:
    """Holds one step's captured values, and those of earlier steps that a device still has."""

    clock: StepClock
    encoder: RecordEncoder
    device_copies: DeviceCopies
    pending: PendingCapture | None = None
    captured_names: set[str] = field(default_factory=set)
    """Whatever was captured in this attempt."""

    def disambiguate(self, name: str) -> str:
        """What a framework's value of that name is called beside our own."""
        known = canonical_name(name) if type(name) is str else name
        return f"logged_{known}" if known in self.captured_names else name

    def store(self, values: dict[str, float], tensors: dict[str, Any], now: float) -> None:
        """Keep what was found at the step just counted."""
        # A first step has no duration yet; what its framework calls so is not ours even then.
        self.captured_names.update(values, tensors, ("step_time",))
        held = (*values, *_STEP_COUNT_NAMES)
        numbers = (*values.values(), float(self.clock.optimizer_steps))
        rows = self.device_copies.start_copies(tensors)
        numbered = () if rows else (*held, "global_step")
        self.pending = PendingCapture(held, numbers, rows, now, numbered)

    def pop(self, stamp: StepStamp) -> tuple[tuple[str, ...], tuple[float, ...]]:
        """Names and values to go with a log: what was captured, or at least the count."""
        pending, self.pending = self.pending, None
        if pending is not None:
            for row in pending.rows:
                row.stamp = stamp
            return pending.names, pending.values
        steps = self.clock.optimizer_steps
        if not steps:
            return (), ()
        return _STEP_COUNT_NAMES, (float(steps + stamp.step_index - self.clock.step_index),)

    def flush(self) -> None:
        """Send it off alone, under the number its step has by itself."""
        if self.pending is not None:
            moment = StepStamp(self.clock.step, self.clock.step_index, self.pending.time)
            names, values = self.pop(moment)
            self.encoder.write_values(self.encoder.schema_for(names), moment, values)

    def flush_arrived(self) -> None:
        """Send what has arrived from a device since."""
        for event, moment, names, values in self.device_copies.pop_arrived():
            if event is Event.STEP:
                self.encoder.write_values(self.encoder.schema_for(names), moment, values)
            else:
                self.encoder.write_event(event, moment, dict(zip(names, values, strict=True)))
