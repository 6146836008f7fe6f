"""Executes commands from the agent (checkpoint, stop, callback) at a given step.

At the end of each step the executor reads one word of mapped memory, and more only if that word
announces a command. `sentinel.client.control.agreement` makes all ranks act at the same step.
A rank that may count its steps differently from the others never reports that it is ready. The
executor counts optimizer steps itself, because the recorder may process one late.

A framework that can save and stop takes the actions at the end of its step. In any other loop the
executor calls the user's function right after the optimizer step, and `sentinel.requested` returns
what the loop is to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sentinel.client.control.agreement import Agreement, PageAgreement, StoreAgreement
from sentinel.client.guard import ErrorGuard
from sentinel.client.process_group import process_group_size
from sentinel.client.step_clock import StepClock
from sentinel.model.record import Event
from sentinel.transport.command_page import (
    INCIDENT_WORD,
    MAX_LOCAL_RANKS,
    NUMBER_WORD,
    Command,
    CommandPage,
    command_page_path,
    open_or_create,
)
from sentinel.transport.identity import Identity

NO_ACTIONS: frozenset[str] = frozenset()
_PHASE_NAME = "on_critical"
_EMPTY_WORDS: Sequence[int] = (0,) * (NUMBER_WORD + 1)


class EventRecorder(Protocol):
    """The part of a recorder that the executor reports to."""

    def record_event(self, event: Event, step: Any, attributes: Mapping[str, Any]) -> None:
        """Record an event with these attributes."""

    def record_phase(self, name: str, edge: str) -> None:
        """Record that a phase begins or ends."""


@dataclass(frozen=True, slots=True)
class CommandContext:
    """The argument of a user's `on_critical` function: why it is called, and at which step.

    `actions` are the other actions of the command: "checkpoint", "stop". `case` is the name of the
    incident that leads the case; `cause` is its likely cause, and may be empty. `step` is the
    trainer's step number.
    """

    actions: frozenset[str]
    case: str
    cause: str
    step: int


class CommandExecutor:
    """The commands of one rank. It executes none until `open` or `attach` gives it a command page.

    Outcomes of commands are reported to `recorder`, errors of the user's function to `guard`.
    """

    def __init__(
        self, recorder: EventRecorder | None = None, guard: ErrorGuard | None = None
    ) -> None:
        self._recorder, self._guard = recorder, guard
        self.page: CommandPage | None = None
        self.words = _EMPTY_WORDS
        self._identity = Identity("")
        self._callback: Callable[[CommandContext], object] | None = None
        self.optimizer_steps = 0
        self.settled_number = 0
        """Number of the newest command that was executed or skipped."""
        self.due_command: Command | None = None
        """The command to execute at this step, until it is begun."""
        self.framework_handles = False
        """Whether a framework takes the actions that are due."""
        self._upcoming: Command | None = None
        self._agreement: Agreement | None = None
        """The agreement on the upcoming command."""
        self._ready_word = 0
        """The word by which this rank is ready; all other ranks must use the same one."""
        self._ignored_errors = 0
        """Swallowed errors that cannot have cost a step: before the first, or of the callback."""
        self._open_actions = NO_ACTIONS
        self._answered_index: int | None = None

    def open(
        self,
        ring_path: Path,
        identity: Identity,
        callback: Callable[[CommandContext], object] | None = None,
    ) -> None:
        """Use the command page beside that ring; does nothing if no page can be created."""
        if identity.local_world_size > MAX_LOCAL_RANKS or identity.local_rank >= MAX_LOCAL_RANKS:
            return
        try:
            page = open_or_create(command_page_path(ring_path, identity.attempt))
        except (OSError, ValueError):
            # No rank executes a command then, since this one is never ready.
            return
        self.attach(page, identity, callback)

    def attach(
        self,
        page: CommandPage,
        identity: Identity,
        callback: Callable[[CommandContext], object] | None = None,
    ) -> None:
        """Execute the commands of that page; `callback` is the user's function."""
        self.page, self.words = page, page.words
        self._identity, self._callback = identity, callback

    @property
    def has_unsettled_command(self) -> bool:
        """Whether the page holds a command that was neither executed nor skipped."""
        return self.words[NUMBER_WORD] != self.settled_number

    @property
    def firing_incidents(self) -> int:
        """How many incidents of the run are firing, as the agent of this node published."""
        return int(self.words[INCIDENT_WORD])

    def after_optimizer_step(self, clock: StepClock) -> None:
        """Process commands after an optimizer step, and execute what no framework takes."""
        if not self.optimizer_steps and self._guard is not None:
            self._ignored_errors = self._guard.swallowed_errors
        self.optimizer_steps += 1
        left_over = self.due_command
        if self.has_unsettled_command:
            # Logs before the first optimizer step count as steps too, maybe on one rank alone.
            offset = clock.step_index - clock.optimizer_steps
            self.poll(clock.step, offset + self.optimizer_steps, offset)
        # A framework that was interrupted may have left a command over.
        if self.due_command is not None and (
            self.due_command is left_over or not self.framework_handles
        ):
            self.run_callback(clock.step)

    def poll(self, step: int, step_index: int, index_offset: int | None = 0) -> None:
        """Process the newest command at the end of a step: become ready, execute it, or skip it.

        `index_offset` is by how much this rank's step index exceeds the count that all ranks share;
        None if that is unknown.
        """
        number, page = self.words[NUMBER_WORD], self.page
        if page is None:
            return
        if self._upcoming is None or self._upcoming.number != number:
            self._upcoming, self._agreement, self._ready_word = page.read(), None, 0
        command = self._upcoming
        if command is None:
            return
        if self._agreement is None:
            self._agreement = self._create_agreement(command, page)
        if step_index < command.due_step_index:
            if step_index >= command.ready_from_index:
                self._ready_word = self._ready_word or _ready_word(number, index_offset or 0)
                is_ready = self._counts_like_peers(index_offset)
                self._agreement.set_ready(self._ready_word, is_ready=is_ready)
            return
        self.settled_number, self._upcoming = number, None
        actions = ", ".join(sorted(command.actions))
        if self._agreement.is_reached(self._ready_word):
            self.due_command, self._answered_index = command, None
            self._open_actions = command.actions - {"call"}
            outcome = f"{actions} at step {step}, for {command.case}"
        else:
            outcome = f"nothing at step {step}: not every rank was ready to {actions}"
        self._report({_PHASE_NAME: outcome})

    def requested(self, step_index: int) -> frozenset[str]:
        """The actions for a loop to take now: "checkpoint" at one step, "stop" from then on.

        This depends on the step alone, not on whether the loop acted: all ranks must act alike.
        """
        if not self._open_actions:
            return NO_ACTIONS
        if self._answered_index is None:
            self._answered_index = step_index
        elif self._answered_index != step_index:
            self._open_actions &= {"stop"}
        return self._open_actions

    def pop_actions(self, step: int) -> frozenset[str]:
        """The actions for a framework to take at this step; calls the user's function first."""
        if self.due_command is not None:
            self.run_callback(step)
        actions, self._open_actions = self._open_actions, NO_ACTIONS
        return actions

    def run_callback(self, step: int) -> None:
        """Call the user's function if it is due. Its error is counted and reported by type."""
        due, self.due_command = self.due_command, None
        callback, recorder = self._callback, self._recorder
        if due is None or callback is None or recorder is None or "call" not in due.actions:
            return
        recorder.record_phase(_PHASE_NAME, "begin")
        try:
            callback(CommandContext(due.actions - {"call"}, due.case, due.cause, step))
        except Exception as error:
            self._report({f"{_PHASE_NAME}/error": type(error).__name__})
            if self._guard is not None:
                self._ignored_errors += 1
                self._guard.count_error(error)
        finally:
            recorder.record_phase(_PHASE_NAME, "end")

    def close(self) -> None:
        """Release the page."""
        self.words, self.settled_number, self.due_command = _EMPTY_WORDS, 0, None
        if self.page is not None:
            self.page.close()
            self.page = None

    def _create_agreement(self, command: Command, page: CommandPage) -> Agreement:
        identity = self._identity
        if identity.world_size > identity.local_world_size:
            return StoreAgreement(command, identity.world_size)
        return PageAgreement(page, identity.local_rank, identity.local_world_size)

    def _report(self, attributes: Mapping[str, str]) -> None:
        if self._recorder is not None:
            self._recorder.record_event(Event.METADATA, None, attributes)

    def _counts_like_peers(self, index_offset: int | None) -> bool:
        """Whether this rank is certain to count the same steps as the others."""
        if self._guard is not None and self._guard.swallowed_errors > self._ignored_errors:
            # The error may have cost a step.
            return False
        return process_group_size() in (None, self._identity.world_size) and (
            index_offset is not None or self._identity.world_size == 1
        )


def _ready_word(number: int, index_offset: int) -> int:
    """Equal on ranks that are ready for the same command and count their steps alike."""
    return (number & 0xFFFFFFFF) | (index_offset & 0xFFFFFFFF) << 32
