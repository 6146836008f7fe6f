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

from sentinel.client.capture.captured_values import Captured
from sentinel.client.capture.device_copy import Stash, cuda_lane
from sentinel.client.capture.text_sampling import AT_ONCE, Batch, picked
from sentinel.client.control.commands import Errands
from sentinel.client.guard import Guard
from sentinel.client.record_schema import FAR, PLAIN, Plan, Planner
from sentinel.client.step_clock import StepClock
from sentinel.client.try_lock import Gate
from sentinel.model.record import Event
from sentinel.transport.command_page import NUMBER
from sentinel.transport.record_codec import VALUES, Moment, Packer
from sentinel.transport.ring import RingWriter

_NUMBERED = ("global_step",)
_MEASURED = (Event.STEP, Event.EVAL)
LOOK_EVERY = 0.5
"""Seconds."""


class Recorder:
    """One per process and attempt. Any method may be called from anywhere, and never raises.

    `tick` is called at steps, at most every `LOOK_EVERY` seconds.
    """

    def __init__(self, ring: RingWriter, guard: Guard, tick: Callable[[], None]) -> None:
        self.ring = ring
        self.gate = Gate(ring, guard)
        self.clock = StepClock()
        self.errands = Errands()
        self._tick = tick
        self._packer = Packer(ring.write, again_after=ring.capacity // 4)
        self.stash = Stash(ring.drop, cuda_lane)
        self._captured = Captured(self.clock, self._packer, self.stash)
        self._planner = Planner(self._packer, ring.drop)
        self._plan: Plan | None = None
        self._looks_at = 0.0
        self._epoch = wall_time() - perf_counter()
        """What makes `perf_counter` the time of day; asking for both each time costs more."""

    def log(self, values: Mapping[str, Any], step: Any = None, weight: Any = None) -> None:
        """Record values of the current step, or of the step given."""
        # As `gate.run` does it, written out: a call less is worth having here.
        gate = self.gate
        if gate.guard.off:
            return
        began = perf_counter()
        now = began + self._epoch
        try:
            gate.token.pop()
        except IndexError:
            gate.leave_aside(self._log, (values, step, weight, now))
            return
        try:
            if weight is not None or not self._again(values, step, now):
                self._log(values, step, weight, now)
            if gate.aside:
                gate.catch_up()
            self.ring.spent += perf_counter() - began
        except Exception as error:
            gate.guard.caught(error)
        finally:
            gate.token.append(None)

    def hear(self, values: Mapping[str, Any], step: Any = None) -> None:
        """Record what a framework logs of a step; empty where it only counts one.

        A name that our taps have for themselves is told apart as `logged_…`: frameworks filter,
        average and round.
        """
        self.gate.run(self._hear, values, step, wall_time())

    def stepped(self, values: dict[str, float], tensors: dict[str, Any]) -> None:
        """An optimizer step was taken, and this was captured; `tensors` are on a device."""
        self.gate.run(self._stepped, values, tensors, wall_time())

    def begins(self) -> None:
        """A backward pass begins: its step is under way, even if it never comes to its end."""
        clock = self.clock
        clock.in_progress = True
        self.ring.begin(clock.beat + 1)

    def moved(self) -> None:
        """Another optimizer stepped than the one that is counted: a sign of life."""
        clock = self.clock
        clock.in_progress = False
        self.gate.run(self.ring.note, clock.step, clock.beat, wall_time())

    def say(self, event: Event, step: Any, facts: Mapping[str, Any]) -> None:
        """Record an event; numbers among `facts` become values, texts stay facts.

        Of an evaluation they may be on a device.
        """
        self.gate.run(self._say, event, step, facts, wall_time())

    def sample(self, batch: Batch, step: Any = None, most: int = AT_ONCE) -> None:
        """Record at most `most` of the texts that the model made."""
        self.gate.run(self._sample, batch, step, most, wall_time())

    def close(self, facts: Mapping[str, Any]) -> None:
        """Send what is left, then a STOP with these facts, and nothing more."""
        self.gate.close(lambda: self._close(facts))

    def abandon(self) -> None:
        """In a forked child: let go of memory that is the parent's alone."""
        self.ring.abandon()

    def _again(self, values: Any, step: Any, now: float) -> bool:
        """Send the log of a new step that is like the last one but for its numbers, if it is one.

        Nothing is changed before that is certain, and nobody's code is run to find out. Anything
        else is for `_log`, which this is a shorter way through.
        """
        plan, clock, pending = self._plan, self.clock, self._captured.pending
        if plan is None or type(values) is not dict or type(step) is not int or clock.in_progress:
            return False
        if pending is not None:
            held, extra = pending.numbered, (*pending.values, step)
        elif clock.optimizer_steps or step == clock.given:
            return False
        else:
            held, extra = _NUMBERED, (step,)
        if len(values) != plan.size or held != plan.held or now > self._looks_at:
            return False
        packer, ring, schema = self._packer, self.ring, plan.schema
        try:
            numbers = plan.pick(values)
        except KeyError:
            return False
        if list(map(type, numbers)) != plan.floats or packer.sent > schema.again_at:
            return False
        beat = clock.beat
        if pending is None:
            # As `next_beat` has it, without the call.
            beat += clock.spoken
            beat = step if step > beat else beat  # noqa: FURB136 - a call is what is saved
            ring.step, ring.beat, ring.time = step, beat, now
        head = plan.head(VALUES, schema.number, step, beat, now, *extra)
        payload = head + plan.body(*numbers)
        self._captured.pending = None
        clock.step = clock.given = step
        clock.beat, clock.spoken = beat, True
        packer.sent += len(payload)
        ring.write(payload)
        return True

    def _hear(self, values: Mapping[str, Any], step: Any, now: float) -> None:
        self._log({self._captured.apart(name): values[name] for name in values}, step, None, now)

    def _log(self, values: Any, step: Any, weight: Any, now: float) -> None:
        plain = type(step) is int and -FAR < step < FAR
        given = step if step is None or plain else self._planner.whole(step)
        if self.clock.in_progress:
            self._captured.flush()
        moment = self._place(given, now)
        held, extra = self._captured.take(moment)
        if given is not None:
            held, extra = (*held, "global_step"), (*extra, float(given))
        if weight is not None:
            held, extra = (*held, "weight"), (*extra, self._planner.weight(weight))
        plan = self._planner.likely(values, held) if type(values) is dict else None
        if plan is None or not self._sent(plan, values, extra, moment):
            self._log_slowly(values, held, extra, moment)
        if self.stash.lanes:
            self._captured.fetch()

    def _sent(self, plan: Plan, values: Any, extra: tuple[float, ...], moment: Moment) -> bool:
        """Whether the log was one that its plan could send as it stands."""
        if tuple(values) != plan.names or not PLAIN.issuperset(map(type, values.values())):
            return False
        if not all(isfinite(extra[at]) for at in plan.doubled):
            return False
        try:
            self._packer.values(plan.schema, moment, (*extra, *values.values()))
        except StructError:
            # An integer beyond a float.
            return False
        self._plan = plan
        return True

    def _log_slowly(
        self, values: Any, held: tuple[str, ...], extra: tuple[float, ...], moment: Moment
    ) -> None:
        """Read a log for which there is no plan yet, or that holds more than plain numbers."""
        numbers: dict[str, float] = {}
        if issubclass(type(values), dict):
            numbers, tensors = self._planner.sort(dict.items(values))
            self.stash.put(tensors, moment)
        else:
            self.ring.drop("type")
        plan = self._planner.plan(numbers, held)
        for at in plan.doubled:
            # What the framework shows may be filtered: a raw value that is not finite stands.
            if not isfinite(extra[at]):
                numbers[held[at]] = extra[at]
        self._packer.values(plan.schema, moment, (*extra, *numbers.values()))

    def _stepped(self, values: dict[str, float], tensors: dict[str, Any], now: float) -> None:
        self._captured.flush()
        clock = self.clock
        clock.stepped()
        self.ring.note(clock.step, clock.beat, now)
        self._captured.hold(values, tensors, now)
        self._captured.fetch()
        self._look(now)

    def _say(self, event: Event, step: Any, facts: Mapping[str, Any], now: float) -> None:
        if self.clock.in_progress:
            # No log of the last step will come any more.
            self._captured.flush()
        given = None if step is None else self._planner.whole(step)
        values, tensors, texts = self._planner.told(facts)
        if given is not None:
            values["global_step"] = float(given)
        moment = Moment(self.clock.step if given is None else given, self.clock.beat, now)
        self._packer.text(event, moment, values, texts)
        if event in _MEASURED:
            # What is still being computed comes after, when it is there.
            self.stash.put(tensors, moment, event)
        else:
            self.ring.drop("type", len(tensors))

    def _sample(self, batch: Batch, step: Any, most: int, now: float) -> None:
        given = None if step is None else self._planner.whole(step)
        moment = Moment(self.clock.step if given is None else given, self.clock.beat, now)
        for values, facts in picked(batch, most, self.ring):
            self._packer.text(Event.SAMPLE, moment, values, facts)

    def _close(self, facts: Mapping[str, Any]) -> None:
        self._captured.flush()
        self._captured.fetch()
        self.ring.drop("pending", self.stash.waiting())
        self._say(Event.STOP, None, facts, wall_time())

    def _place(self, given: int | None, now: float) -> Moment:
        clock = self.clock
        step, beat = clock.place(given)
        if not clock.optimizer_steps:
            self.ring.note(step, beat, now)
            self._look(now)
        return Moment(step, beat, now)

    def _look(self, now: float) -> None:
        self._epoch = wall_time() - perf_counter()
        if now > self._looks_at or self._looks_at > now + 2 * LOOK_EVERY:
            self._looks_at = now + LOOK_EVERY
            self._tick()
        errands = self.errands
        # Where optimizers step, it is looked at as soon as one did, whoever is in here.
        if not self.clock.optimizer_steps and errands.words[NUMBER] != errands.settled:
            self._run_errands(errands)

    def _run_errands(self, errands: Errands) -> None:
        clock = self.clock
        ahead = None if clock.given is None else clock.beat - clock.given
        errands.look(clock.step, clock.beat, ahead)
        # Until it is settled every log is looked at, none takes the short way.
        self._looks_at = 0.0
        if not errands.led:
            began = perf_counter()
            errands.carry_out(clock.step)
            self.ring.spent -= perf_counter() - began
