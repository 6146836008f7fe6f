"""The recorder of one rank: writes what the training process reports into the rank's ring.

`Recorder` is the only part of sentinel on the path of `log()`. Its public methods are guarded and
thread-safe; the writers behind them run under its try-lock. A value logged between a backward pass
and its optimizer step belongs to the step in progress.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from time import time as wall_time
from typing import Any

from sentinel.client.capture.activity import EVALUATION, ActivityPublisher
from sentinel.client.capture.captured_values import CapturedValues
from sentinel.client.capture.device_copy import DeviceCopies, cuda_queue
from sentinel.client.capture.text_sampling import DEFAULT_SAMPLES_PER_CALL, GeneratedBatch
from sentinel.client.control.command_executor import CommandExecutor
from sentinel.client.event_writer import EventWriter
from sentinel.client.guard import ErrorGuard
from sentinel.client.log_schema import LogSchemaCache
from sentinel.client.log_writer import LogWriter
from sentinel.client.step_clock import StepClock
from sentinel.client.step_poller import StepPoller
from sentinel.client.try_lock import CALL, TryLock
from sentinel.model.record import STAGE_KEY, STATE_LOADED_KEY, TRAINING_KEY, Event
from sentinel.transport.record_codec import RecordEncoder, StepStamp, names_interval
from sentinel.transport.ring import RingWriter


class Recorder:
    """One per process and attempt. Every method may be called from any thread and never raises.

    `on_poll` is called at steps, at most every `POLL_INTERVAL_SECONDS`; `on_step`, if given, at
    every step, with its index.
    """

    def __init__(
        self,
        ring: RingWriter,
        guard: ErrorGuard,
        on_poll: Callable[[], None],
        on_step: Callable[[int], None] | None = None,
    ) -> None:
        self.ring = ring
        self.try_lock = TryLock(ring, guard)
        self.clock = StepClock()
        self.activity = ActivityPublisher(ring)
        self.commands = CommandExecutor(self, guard)
        self.device_copies = DeviceCopies(ring.count_drop, cuda_queue)
        self.poller = StepPoller(ring, self.clock, self.commands, on_poll, on_step)
        encoder = RecordEncoder(ring.write, resend_after_bytes=names_interval(ring.capacity))
        self._captured = CapturedValues(self.clock, encoder, self.device_copies)
        schemas = LogSchemaCache(encoder, ring.count_drop)
        self._log_writer = LogWriter(ring, self._captured, schemas, self.poller)
        self._event_writer = EventWriter(ring, self._captured, schemas)
        self._declared_index = -1
        self._training_count, self._stage_count = 1, 0

    def log(self, values: Mapping[str, Any], step: Any = None, weight: Any = None) -> None:
        """Record values of the current step, or of the step given."""
        # The body of `TryLock.run`, inlined: one call less per log.
        lock = self.try_lock
        if lock.guard.disabled:
            return
        began = perf_counter()
        writer, holder = self._log_writer, lock.holder
        now = began + self.poller.clock_offset
        try:
            if holder.setdefault(CALL, began) is not began:
                lock.defer(writer.write, (values, step, weight, now))
                return
            if lock.deferred and not lock.run_deferred():
                lock.defer(writer.write, (values, step, weight, now))
            else:
                if weight is not None or not writer.write_fast(values, step, now):
                    writer.write(values, step, weight, now)
                if lock.deferred:
                    lock.run_deferred()
                self.ring.overhead_seconds += perf_counter() - began
            del holder[CALL]
        except BaseException as error:
            if CALL in holder and holder[CALL] is began:
                del holder[CALL]
            if not isinstance(error, Exception):
                raise
            lock.guard.handle_error(error)

    def log_from_framework(self, values: Mapping[str, Any], step: Any = None) -> None:
        """Record what a framework logs for a step; `values` is empty if it only counts one.

        A name that sentinel captures itself is recorded as `logged_<name>`: frameworks filter,
        average and round their values.
        """
        self.try_lock.run(self._log_writer.write_from_framework, values, step, wall_time())

    def record_step(self, values: dict[str, float], tensors: dict[str, Any]) -> None:
        """Record an optimizer step and the values captured at it; `tensors` are on a device."""
        self.try_lock.run(self._record_step, values, tensors, wall_time())

    def begin_backward(self) -> None:
        """Publish that a backward pass begins, so that an incomplete step is visible too."""
        clock = self.clock
        clock.in_progress = True
        if self.activity.current:
            self.activity.end(EVALUATION)
        self.ring.begin_backward(clock.step_index + 1)

    def record_uncounted_step(self) -> None:
        """Publish progress when an optimizer other than the counted one steps."""
        clock = self.clock
        clock.in_progress = False
        self.try_lock.run(self.ring.publish_step, clock.step, clock.step_index, wall_time())

    def record_event(self, event: Event, step: Any, attributes: Mapping[str, Any]) -> None:
        """Record an event; numbers among `attributes` become values, texts stay attributes.

        Values of an evaluation may be on a device.
        """
        self.try_lock.run(self._event_writer.write, event, step, attributes, wall_time())

    def record_resume(self, *, is_declared: bool = False) -> None:
        """Record that the state of the training was loaded, or declared, at the current step."""
        if is_declared:
            self._declared_index = self.clock.step_index
        self.record_event(Event.METADATA, None, {STATE_LOADED_KEY: self.clock.step})

    @property
    def is_resume_declared(self) -> bool:
        """Whether a resume was declared since the last step."""
        return self._declared_index == self.clock.step_index

    def record_training(self) -> None:
        """Record that the coming step is the first one of another training."""
        self._training_count += 1
        self.record_event(Event.TRAINING, None, {TRAINING_KEY: self._training_count})

    def record_stage(self, attributes: Mapping[str, Any]) -> None:
        """Record that the coming step is the first one of another stage of the training."""
        self._stage_count += 1
        self.record_event(Event.STAGE, None, {**attributes, STAGE_KEY: self._stage_count})

    def record_phase(self, name: str, edge: str) -> None:
        """Record that a phase begins or ends: `edge` is "begin" or "end"."""
        self.record_event(Event.PHASE, None, {"name": name, "edge": edge})

    def record_samples(
        self, batch: GeneratedBatch, step: Any = None, max_samples: int = DEFAULT_SAMPLES_PER_CALL
    ) -> None:
        """Record at most `max_samples` of the texts that the model generated."""
        self.try_lock.run(self._event_writer.write_samples, batch, step, max_samples, wall_time())

    def record_layers(self, stamp: StepStamp, attributes: Mapping[str, str]) -> None:
        """Record the sums over the layers that were measured at that step."""
        self.try_lock.run(self._event_writer.write_layers, stamp, attributes)

    def close(self, attributes: Mapping[str, Any]) -> None:
        """Write what is pending, then a STOP with these attributes, and nothing after it."""
        self.try_lock.close(lambda: self._close(attributes))

    def abandon(self) -> None:
        """Release the ring in a forked child: its memory belongs to the parent."""
        self.ring.abandon()

    def _record_step(self, values: dict[str, float], tensors: dict[str, Any], now: float) -> None:
        self._captured.flush()
        clock = self.clock
        clock.advance()
        self.ring.publish_step(clock.step, clock.step_index, now)
        self._captured.store(values, tensors, now)
        if self.device_copies.queues:
            self._captured.flush_arrived()
        self.poller.poll(now)

    def _close(self, attributes: Mapping[str, Any]) -> None:
        self._captured.flush()
        self._captured.flush_arrived()
        self.ring.count_drop("pending", self.device_copies.pending_count())
        self._event_writer.write(Event.STOP, None, attributes, wall_time())
