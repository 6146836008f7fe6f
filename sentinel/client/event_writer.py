"""Writes events (START, STOP, SAVE, EVAL, PHASE, SAMPLE, metadata) into a rank's ring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.client.capture.captured_values import CapturedValues
from sentinel.client.capture.text_sampling import GeneratedBatch, select_samples
from sentinel.client.log_schema import LogSchemaCache
from sentinel.model.record import Event
from sentinel.transport.record_codec import StepStamp
from sentinel.transport.ring import RingWriter

_BEGINNING_EVENTS = (Event.STAGE, Event.TRAINING)
"""Events that separate the last step from the coming one."""
_MEASURED_EVENTS = (Event.STEP, Event.EVAL)
"""Events whose values may be on a device."""


class EventWriter:
    """Writes the events of one rank. The caller holds the try-lock of the recorder."""

    def __init__(self, ring: RingWriter, captured: CapturedValues, schemas: LogSchemaCache) -> None:
        self._ring, self._captured, self._schemas = ring, captured, schemas
        self._clock, self._encoder = captured.clock, captured.encoder

    def write(self, event: Event, step: Any, attributes: Mapping[str, Any], now: float) -> None:
        """Write an event; numbers among `attributes` become values, texts stay attributes."""
        if self._clock.in_progress or event in _BEGINNING_EVENTS:
            # No further log can belong to the last step.
            self._captured.flush()
        if event in _BEGINNING_EVENTS:
            self._captured.flush_arrived()
        stamp, given = self._stamp(step, now)
        values, tensors, texts = self._schemas.split_attributes(attributes)
        if given is not None:
            values["global_step"] = float(given)
        self._encoder.write_event(event, stamp, values, texts)
        if event in _MEASURED_EVENTS:
            # Values that are still being computed follow in a later record.
            self._captured.device_copies.start_copies(tensors, stamp, event)
        else:
            self._ring.count_drop("type", len(tensors))

    def write_samples(self, batch: GeneratedBatch, step: Any, max_samples: int, now: float) -> None:
        """Write one SAMPLE event for each text selected from the batch."""
        stamp, _ = self._stamp(step, now)
        for values, attributes in select_samples(batch, max_samples, self._ring):
            self._encoder.write_event(Event.SAMPLE, stamp, values, attributes)

    def write_layers(self, stamp: StepStamp, attributes: Mapping[str, str]) -> None:
        """Write a LAYERS event of an earlier step."""
        self._encoder.write_event(Event.LAYERS, stamp, {}, attributes)

    def _stamp(self, step: Any, now: float) -> tuple[StepStamp, int | None]:
        """The stamp of an event, and the step number that the trainer gave for it, if any."""
        given = None if step is None else self._schemas.read_step(step)
        step_number = self._clock.step if given is None else given
        return StepStamp(step_number, self._clock.step_index, now), given
