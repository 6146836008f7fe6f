"""Values captured at the last optimizer step, held until a log of that step is written."""

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
    """The names with "global_step" appended; empty while values are still on a device."""


@dataclass(slots=True)
class CapturedValues:
    """Holds the captured values of one step, and values of earlier steps still on a device."""

    clock: StepClock
    encoder: RecordEncoder
    device_copies: DeviceCopies
    pending: PendingCapture | None = None
    captured_names: set[str] = field(default_factory=set)
    """Names captured in this attempt."""

    def disambiguate(self, name: str) -> str:
        """The name to record a framework's value under: `logged_<name>` if we capture the same."""
        known = canonical_name(name)
        return f"logged_{known}" if known in self.captured_names else name

    def store(self, values: dict[str, float], tensors: dict[str, Any], now: float) -> None:
        """Hold the values captured at the step just counted."""
        # The first step has no step_time yet, but a framework's step_time is renamed already.
        self.captured_names.update(values, tensors, ("step_time",))
        names = (*values, *_STEP_COUNT_NAMES)
        numbers = (*values.values(), float(self.clock.optimizer_steps))
        rows = self.device_copies.start_copies(tensors) if tensors else []
        names_with_step = () if rows else (*names, "global_step")
        self.pending = PendingCapture(names, numbers, rows, now, names_with_step)

    def pop(self, stamp: StepStamp) -> tuple[tuple[str, ...], tuple[float, ...]]:
        """Names and values to write with a log: the captured ones, or only the step count."""
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
        """Write the held values as a record of their own, under the current step number."""
        if self.pending is not None:
            stamp = StepStamp(self.clock.step, self.clock.step_index, self.pending.time)
            names, values = self.pop(stamp)
            self.encoder.write_values(self.encoder.schema_for(names), stamp, values)

    def flush_arrived(self) -> None:
        """Write the values that have arrived from devices."""
        for event, stamp, names, values in self.device_copies.pop_arrived():
            if event is Event.STEP:
                self.encoder.write_values(self.encoder.schema_for(names), stamp, values)
            else:
                self.encoder.write_event(event, stamp, dict(zip(names, values, strict=True)))
