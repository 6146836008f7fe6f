"""Recorder: what a rank says, put into its ring. The only code of ours on the path of `log()`.

Values captured at an optimizer step wait for the log that speaks of the same step, so that both
leave as one record under the trainer's own number; the next optimizer step, or the end, sends them
off alone. What is said between a backward pass and its optimizer step is of the step in progress.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from struct import error as StructError  # noqa: N812 - it is a class
from time import perf_counter
from time import time as wall_time
from typing import Any

from sentinel.client.capture.captured_values import CapturedValues
from sentinel.client.capture.device_copy import DeviceCopies, cuda_queue
from sentinel.client.capture.text_sampling import (
    DEFAULT_SAMPLES_PER_CALL,
    GeneratedBatch,
    select_samples,
)
from sentinel.client.control.command_executor import CommandExecutor
from sentinel.client.guard import ErrorGuard
from sentinel.client.log_schema import MAX_STEP_NUMBER, PLAIN_TYPES, LogSchema, LogSchemaCache
from sentinel.client.step_clock import StepClock
from sentinel.client.try_lock import TryLock
from sentinel.model.record import Event
from sentinel.transport.command_page import NUMBER_WORD
from sentinel.transport.record_codec import VALUES_KIND, RecordEncoder, StepStamp
from sentinel.transport.ring import RingWriter

_STEP_NUMBER_NAMES = ("global_step",)
_MEASURED_EVENTS = (Event.STEP, Event.EVAL)
POLL_INTERVAL_SECONDS = 0.5
"""Seconds."""


class Recorder:
    """One per process and attempt. Any method may be called from anywhere, and never raises.

    `tick` is called at steps, at most every `LOOK_EVERY` seconds.
    """

    def __init__(self, ring: RingWriter, guard: ErrorGuard, on_poll: Callable[[], None]) -> None:
        self.ring = ring
        self.try_lock = TryLock(ring, guard)
        self.clock = StepClock()
        self.commands = CommandExecutor()
        self._on_poll = on_poll
        self._encoder = RecordEncoder(ring.write, resend_after_bytes=ring.capacity // 4)
        self.device_copies = DeviceCopies(ring.count_drop, cuda_queue)
        self._captured = CapturedValues(self.clock, self._encoder, self.device_copies)
        self._schema_cache = LogSchemaCache(self._encoder, ring.count_drop)
        self._last_schema: LogSchema | None = None
        self._next_poll_at = 0.0
        self._clock_offset = wall_time() - perf_counter()
        """What makes `perf_counter` the time of day; asking for both each time costs more."""

    def log(self, values: Mapping[str, Any], step: Any = None, weight: Any = None) -> None:
        """Record values of the current step, or of the step given."""
        # As `gate.run` does it, written out: a call less is worth having here.
        gate = self.try_lock
        if gate.guard.disabled:
            return
        began = perf_counter()
        now = began + self._clock_offset
        try:
            gate.token.pop()
        except IndexError:
            gate.defer(self._log, (values, step, weight, now))
            return
        try:
            if weight is not None or not self._log_fast(values, step, now):
                self._log(values, step, weight, now)
            if gate.deferred:
                gate.run_deferred()
            self.ring.overhead_seconds += perf_counter() - began
        except Exception as error:
            gate.guard.handle_error(error)
        finally:
            gate.token.append(None)

    def log_from_framework(self, values: Mapping[str, Any], step: Any = None) -> None:
        """Record what a framework logs of a step; empty where it only counts one.

        A name that our taps have for themselves is told apart as `logged_…`: frameworks filter,
        average and round.
        """
        self.try_lock.run(self._log_from_framework, values, step, wall_time())

    def record_step(self, values: dict[str, float], tensors: dict[str, Any]) -> None:
        """An optimizer step was taken, and this was captured; `tensors` are on a device."""
        self.try_lock.run(self._record_step, values, tensors, wall_time())

    def begin_backward(self) -> None:
        """A backward pass begins: its step is under way, even if it never comes to its end."""
        clock = self.clock
        clock.in_progress = True
        self.ring.begin_backward(clock.step_index + 1)

    def record_uncounted_step(self) -> None:
        """Another optimizer stepped than the one that is counted: a sign of life."""
        clock = self.clock
        clock.in_progress = False
        self.try_lock.run(self.ring.publish_step, clock.step, clock.step_index, wall_time())

    def record_event(self, event: Event, step: Any, facts: Mapping[str, Any]) -> None:
        """Record an event; numbers among `facts` become values, texts stay facts.

        Of an evaluation they may be on a device.
        """
        self.try_lock.run(self._record_event, event, step, facts, wall_time())

    def record_samples(
        self, batch: GeneratedBatch, step: Any = None, max_samples: int = DEFAULT_SAMPLES_PER_CALL
    ) -> None:
        """Record at most `most` of the texts that the model made."""
        self.try_lock.run(self._record_samples, batch, step, max_samples, wall_time())

    def close(self, facts: Mapping[str, Any]) -> None:
        """Send what is left, then a STOP with these facts, and nothing more."""
        self.try_lock.close(lambda: self._close(facts))

    def abandon(self) -> None:
        """In a forked child: let go of memory that is the parent's alone."""
        self.ring.abandon()

    def _log_fast(self, values: Any, step: Any, now: float) -> bool:
        """Send the log of a new step that is like the last one but for its numbers, if it is one.

        Nothing is changed before that is certain, and nobody's code is run to find out. Anything
        else is for `_log`, which this is a shorter way through.
        """
        plan, clock, pending = self._last_schema, self.clock, self._captured.pending
        if plan is None or type(values) is not dict or type(step) is not int or clock.in_progress:
            return False
        if pending is not None:
            held, extra = pending.names_with_step, (*pending.values, step)
        elif clock.optimizer_steps or step == clock.last_given_step:
            return False
        else:
            held, extra = _STEP_NUMBER_NAMES, (step,)
        if len(values) != plan.fast_path_size or held != plan.own_names or now > self._next_poll_at:
            return False
        packer, ring, schema = self._encoder, self.ring, plan.name_schema
        try:
            numbers = plan.get_values(values)
        except KeyError:
            return False
        if (
            list(map(type, numbers)) != plan.float_types
            or packer.bytes_sent > schema.resend_at_bytes
        ):
            return False
        beat = clock.step_index
        if pending is None:
            # As `next_beat` has it, without the call.
            beat += clock.has_logged
            beat = step if step > beat else beat  # noqa: FURB136 - a call is what is saved
            ring.step, ring.step_index, ring.time = step, beat, now
        head = plan.pack_own(VALUES_KIND, schema.number, step, beat, now, *extra)
        payload = head + plan.pack_logged(*numbers)
        self._captured.pending = None
        clock.step = clock.last_given_step = step
        clock.step_index, clock.has_logged = beat, True
        packer.bytes_sent += len(payload)
        ring.write(payload)
        return True

    def _log_from_framework(self, values: Mapping[str, Any], step: Any, now: float) -> None:
        self._log(
            {self._captured.disambiguate(name): values[name] for name in values}, step, None, now
        )

    def _log(self, values: Any, step: Any, weight: Any, now: float) -> None:
        plain = type(step) is int and -MAX_STEP_NUMBER < step < MAX_STEP_NUMBER
        given = step if step is None or plain else self._schema_cache.read_step(step)
        if self.clock.in_progress:
            self._captured.flush()
        moment = self._stamp(given, now)
        held, extra = self._captured.pop(moment)
        if given is not None:
            held, extra = (*held, "global_step"), (*extra, float(given))
        if weight is not None:
            held, extra = (*held, "weight"), (*extra, self._schema_cache.read_weight(weight))
        plan = self._schema_cache.find_cached(values, held) if type(values) is dict else None
        if plan is None or not self._send_with_schema(plan, values, extra, moment):
            self._log_slowly(values, held, extra, moment)
        if self.device_copies.queues:
            self._captured.flush_arrived()

    def _send_with_schema(
        self, schema: LogSchema, values: Any, extra: tuple[float, ...], moment: StepStamp
    ) -> bool:
        """Whether the log was one that its plan could send as it stands."""
        if tuple(values) != schema.logged_names or not PLAIN_TYPES.issuperset(
            map(type, values.values())
        ):
            return False
        if not all(isfinite(extra[at]) for at in schema.duplicate_positions):
            return False
        try:
            self._encoder.write_values(schema.name_schema, moment, (*extra, *values.values()))
        except StructError:
            # An integer beyond a float.
            return False
        self._last_schema = schema
        return True

    def _log_slowly(
        self, values: Any, own_names: tuple[str, ...], extra: tuple[float, ...], moment: StepStamp
    ) -> None:
        """Read a log for which there is no plan yet, or that holds more than plain numbers."""
        numbers: dict[str, float] = {}
        if issubclass(type(values), dict):
            numbers, tensors = self._schema_cache.split_by_device(dict.items(values))
            self.device_copies.start_copies(tensors, moment)
        else:
            self.ring.count_drop("type")
        plan = self._schema_cache.get_or_create(numbers, own_names)
        for at in plan.duplicate_positions:
            # What the framework shows may be filtered: a raw value that is not finite stands.
            if not isfinite(extra[at]):
                numbers[own_names[at]] = extra[at]
        self._encoder.write_values(plan.name_schema, moment, (*extra, *numbers.values()))

    def _record_step(self, values: dict[str, float], tensors: dict[str, Any], now: float) -> None:
        self._captured.flush()
        clock = self.clock
        clock.advance()
        self.ring.publish_step(clock.step, clock.step_index, now)
        self._captured.store(values, tensors, now)
        self._captured.flush_arrived()
        self._poll(now)

    def _record_event(self, event: Event, step: Any, facts: Mapping[str, Any], now: float) -> None:
        if self.clock.in_progress:
            # No log of the last step will come any more.
            self._captured.flush()
        given = None if step is None else self._schema_cache.read_step(step)
        values, tensors, texts = self._schema_cache.split_metadata(facts)
        if given is not None:
            values["global_step"] = float(given)
        moment = StepStamp(self.clock.step if given is None else given, self.clock.step_index, now)
        self._encoder.write_event(event, moment, values, texts)
        if event in _MEASURED_EVENTS:
            # What is still being computed comes after, when it is there.
            self.device_copies.start_copies(tensors, moment, event)
        else:
            self.ring.count_drop("type", len(tensors))

    def _record_samples(
        self, batch: GeneratedBatch, step: Any, max_samples: int, now: float
    ) -> None:
        given = None if step is None else self._schema_cache.read_step(step)
        moment = StepStamp(self.clock.step if given is None else given, self.clock.step_index, now)
        for values, facts in select_samples(batch, max_samples, self.ring):
            self._encoder.write_event(Event.SAMPLE, moment, values, facts)

    def _close(self, facts: Mapping[str, Any]) -> None:
        self._captured.flush()
        self._captured.flush_arrived()
        self.ring.count_drop("pending", self.device_copies.pending_count())
        self._record_event(Event.STOP, None, facts, wall_time())

    def _stamp(self, given: int | None, now: float) -> StepStamp:
        clock = self.clock
        step, beat = clock.resolve(given)
        if not clock.optimizer_steps:
            self.ring.publish_step(step, beat, now)
            self._poll(now)
        return StepStamp(step, beat, now)

    def _poll(self, now: float) -> None:
        self._clock_offset = wall_time() - perf_counter()
        if now > self._next_poll_at or self._next_poll_at > now + 2 * POLL_INTERVAL_SECONDS:
            self._next_poll_at = now + POLL_INTERVAL_SECONDS
            self._on_poll()
        errands = self.commands
        # Where optimizers step, it is looked at as soon as one did, whoever is in here.
        if not self.clock.optimizer_steps and errands.words[NUMBER_WORD] != errands.settled_number:
            self._run_commands(errands)

    def _run_commands(self, commands: CommandExecutor) -> None:
        clock = self.clock
        ahead = None if clock.last_given_step is None else clock.step_index - clock.last_given_step
        commands.poll(clock.step, clock.step_index, ahead)
        # Until it is settled every log is looked at, none takes the short way.
        self._next_poll_at = 0.0
        if not commands.framework_handles:
            began = perf_counter()
            commands.run_callback(clock.step)
            self.ring.overhead_seconds -= perf_counter() - began
