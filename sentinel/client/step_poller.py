"""Checks that are due at a step: the agent's process, commands from the agent, the collective."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from time import time as wall_time

from sentinel.client.control.command_executor import CommandExecutor
from sentinel.client.step_clock import StepClock
from sentinel.transport.ring import RingWriter

POLL_INTERVAL_SECONDS = 0.5


class StepPoller:
    """Calls `on_poll` at most every `POLL_INTERVAL_SECONDS`, and `on_step` at every step.

    Where no optimizer steps, it also polls for commands; the training loop does so otherwise.
    """

    def __init__(
        self,
        ring: RingWriter,
        clock: StepClock,
        commands: CommandExecutor,
        on_poll: Callable[[], None],
        on_step: Callable[[int], None] | None = None,
    ) -> None:
        self._ring, self._clock, self._commands = ring, clock, commands
        self._on_poll, self._on_step = on_poll, on_step
        self.next_poll_at = 0.0
        """Seconds since the epoch. A log after this time does not take the fast path."""
        self.clock_offset = wall_time() - perf_counter()
        """Seconds to add to `perf_counter()` for the time of day; one clock call less per log."""

    def poll(self, now: float) -> None:
        """Run what is due after a step; `now` is the time of day in seconds."""
        self.clock_offset = wall_time() - perf_counter()
        if now > self.next_poll_at or self.next_poll_at > now + 2 * POLL_INTERVAL_SECONDS:
            self.next_poll_at = now + POLL_INTERVAL_SECONDS
            self._on_poll()
        # Where an optimizer steps, the loop polls right after the step.
        if not self._clock.optimizer_steps and self._commands.has_unsettled_command:
            self._run_commands()
        if self._on_step is not None:
            self._on_step(self._clock.step_index)
            if not self._clock.optimizer_steps:
                # Every step must come by here.
                self.next_poll_at = 0.0

    def _run_commands(self) -> None:
        clock, commands = self._clock, self._commands
        offset = None if clock.last_given_step is None else clock.step_index - clock.last_given_step
        commands.poll(clock.step, clock.step_index, offset)
        # Until the command is settled, no log takes the fast path.
        self.next_poll_at = 0.0
        if not commands.framework_handles:
            began = perf_counter()
            commands.run_callback(clock.step)
            # The time of the user's function is not overhead of sentinel.
            self._ring.overhead_seconds -= perf_counter() - began
