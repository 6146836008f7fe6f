"""Writes the values of one `log()` call into a rank's ring as one record.

Values captured at an optimizer step wait for the log of the same step, so that both become one
record under the trainer's step number. The next optimizer step, or the end, sends them alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from struct import error as StructError  # noqa: N812 - it is a class
from typing import Any

from sentinel.client.capture.captured_values import CapturedValues
from sentinel.client.log_schema import (
    MAX_STEP_NUMBER,
    PLAIN_SIZES,
    LogSchema,
    LogSchemaCache,
    has_plain_keys,
)
from sentinel.client.step_poller import StepPoller
from sentinel.transport.record_codec import VALUES_KIND, StepStamp
from sentinel.transport.ring import RingWriter

_MIN_STEP_NUMBER = -MAX_STEP_NUMBER
_STEP_NUMBER_NAMES = ("global_step",)
_STEP_COUNT_NAMES = ("optimizer_steps", "global_step")


class LogWriter:
    """Writes the logs of one rank. The caller holds the try-lock of the recorder."""

    def __init__(
        self,
        ring: RingWriter,
        captured: CapturedValues,
        schemas: LogSchemaCache,
        poller: StepPoller,
    ) -> None:
        self._ring, self._captured, self._schemas, self._poller = ring, captured, schemas, poller
        self._clock, self._encoder = captured.clock, captured.encoder
        self._device_copies = captured.device_copies
        self._last_schema: LogSchema | None = None

    # In parts, it would cost as many more calls.
    def write_fast(self, values: Any, step: Any, now: float) -> bool:  # noqa: C901, PLR0912
        """Write the log if its schema is known and its values are on the host; else False.

        A shortcut through `write` for the usual cases. It changes nothing before it is certain to
        succeed, and calls no method of the values.
        """
        clock, captured, last_schema = self._clock, self._captured, self._last_schema
        if (
            type(values) is not dict
            or (values.__sizeof__() not in PLAIN_SIZES and not has_plain_keys(values))
            or type(step) is not int
            or not _MIN_STEP_NUMBER < step < MAX_STEP_NUMBER
            or last_schema is None
            or clock.in_progress
            or now > self._poller.next_poll_at
        ):
            return False
        # What `_stamp` and `CapturedValues.pop` do for such a step, inlined.
        pending, ring, step_index = captured.pending, self._ring, clock.step_index
        if pending is not None:
            own_names, own_values = pending.names_with_step, (*pending.values, step)
        elif clock.optimizer_steps:
            own_names, own_values = _STEP_COUNT_NAMES, (clock.optimizer_steps, step)
        else:
            own_names, own_values = _STEP_NUMBER_NAMES, (step,)
            if step != clock.last_given_step:
                step_index = step if step > step_index else step_index + 1
        schema = last_schema.successor
        try:
            is_next = own_names == schema.own_names and len(values) == schema.logged_count
            numbers = schema.get_values(values) if is_next else None
        except KeyError:
            numbers = None
        if numbers is None:
            found = self._schemas.find_cached(values, own_names)
            if found is None:
                return False
            schema = last_schema.successor = found
            numbers = schema.get_values(values)
        types = [*map(type, numbers)]
        if types != schema.types:
            numbers = schema.packable(numbers, types)
        encoder, name_schema = self._encoder, schema.name_schema
        if (
            numbers is None
            or encoder.bytes_sent > name_schema.resend_at_bytes
            or (schema.duplicate_positions and not schema.is_replaceable(own_values))
        ):
            return False
        try:
            # Unpacked into one tuple, the values would go through a list.
            payload = name_schema.pack(
                *(VALUES_KIND, name_schema.number, step, step_index, now) + own_values + numbers  # noqa: RUF005
            )
        except StructError:
            # An integer beyond the range of a float.
            return False
        if own_names is _STEP_NUMBER_NAMES:
            ring.step, ring.step_index, ring.time = step, step_index, now
        captured.pending, self._last_schema = None, schema
        clock.step = clock.last_given_step = step
        clock.step_index = step_index
        encoder.bytes_sent += len(payload)
        ring.write(payload)
        if schema.rejected_count:
            ring.count_drop("type", schema.rejected_count)
        return True

    def write(self, values: Any, step: Any, weight: Any, now: float) -> None:
        """Write any log, together with the values captured at its step."""
        is_plain = type(step) is int and _MIN_STEP_NUMBER < step < MAX_STEP_NUMBER
        given = step if step is None or is_plain else self._schemas.read_step(step)
        if self._clock.in_progress:
            self._captured.flush()
        stamp = self._stamp(given, now)
        own_names, own_values = self._captured.pop(stamp)
        if given is not None:
            own_names, own_values = (*own_names, "global_step"), (*own_values, float(given))
        if weight is not None:
            own_names = (*own_names, "weight")
            own_values = (*own_values, self._schemas.read_weight(weight))
        is_cacheable = type(values) is dict and has_plain_keys(values)
        finders = (self._schemas.find_cached, self._schemas.find_rejecting) if is_cacheable else ()
        if not any(
            (schema := find(values, own_names)) is not None
            and self._write_plain(schema, values, own_values, stamp)
            for find in finders
        ):
            self._write_mixed(values, own_names, own_values, stamp)
        if self._device_copies.queues:
            self._captured.flush_arrived()

    def write_from_framework(self, values: Mapping[str, Any], step: Any, now: float) -> None:
        """Write a log of a framework, with names of captured values renamed."""
        renamed = {}
        for name, value in values.items():
            if type(name) is str:
                renamed[self._captured.disambiguate(name)] = value
            else:
                self._ring.count_drop("key")
        self.write(renamed, step, None, now)

    def _write_plain(
        self, schema: LogSchema, values: Any, own_values: tuple[float, ...], stamp: StepStamp
    ) -> bool:
        """Write a log of host values with its cached schema; False if it does not fit that."""
        numbers = schema.get_values(values)
        packable = schema.packable(numbers, [*map(type, numbers)])
        if packable is None or not schema.is_replaceable(own_values):
            return False
        try:
            self._encoder.write_values(schema.name_schema, stamp, (*own_values, *packable))
        except StructError:
            # An integer beyond the range of a float.
            return False
        if schema.rejected_count:
            self._ring.count_drop("type", schema.rejected_count)
        if self._last_schema is not None:
            self._last_schema.successor = schema
        self._last_schema = schema
        return True

    def _write_mixed(
        self,
        values: Any,
        own_names: tuple[str, ...],
        own_values: tuple[float, ...],
        stamp: StepStamp,
    ) -> None:
        """Write a log that has no schema yet, or that holds more than plain numbers."""
        numbers: dict[str, float] = {}
        if issubclass(type(values), dict):
            numbers, tensors = self._schemas.split_by_device(dict.items(values))
            self._device_copies.start_copies(tensors, stamp)
        else:
            self._ring.count_drop("type")
        schema = self._schemas.get_or_create(numbers, own_names)
        if not schema.is_replaceable(own_values):
            for at in schema.duplicate_positions:
                if not isfinite(own_values[at]):
                    numbers[own_names[at]] = own_values[at]
        self._encoder.write_values(
            schema.name_schema, stamp, (*own_values, *schema.get_values(numbers))
        )
        if type(values) is dict and len(numbers) < len(values) and has_plain_keys(values):
            self._schemas.cache_rejecting(schema, values)

    def _stamp(self, given: int | None, now: float) -> StepStamp:
        clock = self._clock
        step, step_index = clock.resolve(given)
        if not clock.optimizer_steps:
            self._ring.publish_step(step, step_index, now)
            self._poller.poll(now)
        return StepStamp(step, step_index, now)
