"""Samples the stacks of this node's ranks while no step completes: where each is, and if it moves.

A rank answers within milliseconds, from a thread of its own. One that does not, because a signal
stopped it or a C function holds the GIL, is read by `py-spy` if that is installed, otherwise by
what the kernel knows. Nothing here waits, and no signal is sent to a trainer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from sentinel.live.py_spy import PySpy
from sentinel.live.rank import LiveRank
from sentinel.live.suspension import suspended_by
from sentinel.model.rank_stack import RankStack, group_stacks, serialize_stacks
from sentinel.transport.stack_channel import StackAnswer, read_answer, send_request

FIRST_SAMPLE_SECONDS = 2.0
"""Time without a step before the first sample, or `USUAL_STEPS` usual steps if they take longer."""
USUAL_STEPS = 2.0
SAMPLE_SPACING = 0.25
"""Time to the next sample, as a share of the time without a step: a long step has few samples."""
MIN_SPACING_SECONDS, MAX_SPACING_SECONDS = 0.5, 5.0
ANSWER_SECONDS = 1.5
"""Time after which a rank that has not answered is looked at from outside."""
BUSY_SHARE = 0.03
"""Share of a CPU that a rank uses at least if it computes, on a machine with 30 times as many busy
processes as CPUs. One that polls for something every 10 ms uses less."""
RUNNABLE_SHARE = 0.8
"""Share of the time in which a rank has a CPU or waits for one, at which it computes although its
position is the same in all samples: a tight loop always gives up the GIL at the same instruction.
"""
MOVEMENT_SAMPLES = 6
"""Samples among which a rank that computes has changed its position."""
STEP_INTERVALS = 32

_DISK_WAIT = "D"
_HOLDERS = {
    "signal": "is suspended by SIGSTOP",
    "debugger": "is held by a debugger",
    "freezer": "is in a frozen control group",
}
_STATES = {
    _DISK_WAIT: "waits for a disk or a file system",
    "R": "computes without returning to Python",
}
_NO_ANSWER = "does not return to Python"


@dataclass
class RankSampler:
    """The samples of one rank while it takes no step."""

    rank: LiveRank
    request_number: int = 0
    requested_at: float = 0.0
    answer: StackAnswer | None = None
    """The answer to the newest request, once it is there."""
    stack: RankStack | None = None
    """The newest stack of this stall."""
    samples: deque[tuple[StackAnswer, float, float, float]] = field(
        default_factory=lambda: deque(maxlen=MOVEMENT_SAMPLES)
    )
    """The newest answers of this stall, each with the CPU seconds and the runnable seconds of the
    process and the time."""
    step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=STEP_INTERVALS))
    last_progress_at: float = 0.0
    py_spy: PySpy | None = None

    @property
    def number(self) -> int:
        """The rank."""
        return self.rank.header.identity.rank

    def poll(self, now: float) -> None:
        """Read an answer, and send the next request when it is due."""
        progress = self.rank.last_progress_at
        # It is less after the clock was set back.
        if progress != self.last_progress_at:
            if 0.0 < self.last_progress_at < progress:
                self.step_seconds.append(progress - self.last_progress_at)
            self.last_progress_at = progress
            self._reset()
        idle = now - progress
        if idle < FIRST_SAMPLE_SECONDS:
            return
        usual = median(self.step_seconds) if self.step_seconds else 0.0
        if idle < USUAL_STEPS * usual:
            return
        if self.is_pending:
            self._collect(now)
        spacing = min(MAX_SPACING_SECONDS, max(MIN_SPACING_SECONDS, SAMPLE_SPACING * idle))
        if not self.is_pending and now - self.requested_at >= spacing:
            self._request(now)

    @property
    def is_pending(self) -> bool:
        """Whether the newest request is not answered, and not given up."""
        return bool(self.requested_at) and self.answer is None

    @property
    def is_computing(self) -> bool:
        """Whether it uses a CPU and its position changes, or it never waits for anything else."""
        if len(self.samples) < 2:
            return False
        _, first_cpu, first_runnable, first_at = self.samples[0]
        _, last_cpu, last_runnable, last_at = self.samples[-1]
        seconds = max(1e-9, last_at - first_at)
        if last_runnable - first_runnable >= RUNNABLE_SHARE * seconds:
            return True
        has_moved = any(answer.has_moved for answer, *_ in self.samples)
        positions = {answer.position for answer, *_ in self.samples}
        is_busy = last_cpu - first_cpu >= BUSY_SHARE * seconds
        return is_busy and (has_moved or len(positions) > 1)

    def close(self) -> None:
        """End a reader that still runs."""
        if self.py_spy is not None:
            self.py_spy.close()
            self.py_spy = None

    def _reset(self) -> None:
        self.requested_at, self.answer, self.stack = 0.0, None, None
        self.samples.clear()
        self.close()

    def _request(self, now: float) -> None:
        self.request_number += 1
        self.requested_at, self.answer = now, None
        with suppress(OSError):
            send_request(self.rank.reader.path, self.request_number)

    def _collect(self, now: float) -> None:
        answer = read_answer(self.rank.reader.path)
        if answer is not None and answer.number == self.request_number:
            process = self.rank.header.process
            # A thread answers while the one that trains waits in the kernel.
            state = _STATES[_DISK_WAIT] if process.state() == _DISK_WAIT else ""
            self.answer, self.stack = answer, RankStack((self.number,), answer.frames, state)
            cpu = process.cpu_seconds()
            self.samples.append((answer, cpu, cpu + process.cpu_wait_seconds(), now))
        elif now - self.requested_at >= ANSWER_SECONDS or suspended_by(self.rank.header.process):
            self._look_from_outside(now)

    def _look_from_outside(self, now: float) -> None:
        """Use what the kernel knows until `py-spy` has read the stack, once per stall."""
        process = self.rank.header.process
        if self.py_spy is None:
            self.py_spy = PySpy(process.pid, now)
        frames = self.py_spy.poll(now)
        held = _HOLDERS.get(suspended_by(process))
        state = held or _STATES.get(process.state(), _NO_ANSWER)
        self.stack = RankStack((self.number,), frames, state)
        if self.py_spy.has_ended:
            # A rank that runs again answers the next request.
            self.answer = StackAnswer(self.request_number, (), 0)


@dataclass
class StackSampler:
    """Samples the stacks of a node's ranks, each while it takes no step."""

    samplers: dict[Path, RankSampler] = field(default_factory=dict)

    def poll(self, ranks: Iterable[LiveRank], now: float) -> None:
        """Sample what is due of these running ranks; of others the state is dropped."""
        known, self.samplers = self.samplers, {}
        for rank in ranks:
            path = rank.reader.path
            sampler = known.pop(path) if path in known else RankSampler(rank)
            self.samplers[path] = sampler
            sampler.poll(now)
        for sampler in known.values():
            sampler.close()

    def attributes(self) -> dict[str, str]:
        """Attributes of a heartbeat: `stacks`, and `stacks_pending` while answers are awaited."""
        samplers = self.samplers.values()
        stacks = group_stacks(each.stack for each in samplers if each.stack is not None)
        pending = any(each.is_pending and each.stack is None for each in samplers)
        return {
            **({"stacks": serialize_stacks(stacks)} if stacks else {}),
            **({"stacks_pending": "yes"} if pending else {}),
        }

    def activities(self) -> set[str]:
        """What ranks do, as far as their stacks and their use of the CPU show."""
        samplers = self.samplers.values()
        computing = {"computing" for each in samplers if each.is_computing}
        compiling = {
            "compiling" for each in samplers if each.stack is not None and each.stack.is_compiling
        }
        return computing | compiling

    def close(self) -> None:
        """End what still runs."""
        self.poll((), 0.0)
