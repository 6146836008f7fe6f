"""Errands: what the agent asks this rank to do, from the step it is due at until it is done.

At the end of each step one word of mapped memory is looked at; nothing more, unless it says that
something is asked. `transport.command_page` says how ranks come to act at the same step. A rank
whose steps may be counted otherwise than those of the others is never ready. Optimizer steps are
counted here as well, since the recorder may hear of one late, through another thread.

A framework that can save and stop by itself takes what is due at the end of its step. In any other
loop the user's function is called right behind the optimizer's step, and `sentinel.requested` says
what the loop is to do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.client.guard import ErrorGuard
from sentinel.client.step_clock import StepClock
from sentinel.model.record import Event
from sentinel.transport.command_page import (
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

RecordEvent = Callable[[Event, Any, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class CommandContext:
    """What a user's function is told when it is called: why, and at which step of the trainer.

    `deeds` are the other words that were asked for, "checkpoint" and "stop". `case` is the name of
    the incident that leads the case, `cause` what is held to be behind it; it may be empty.
    """

    actions: frozenset[str]
    case: str
    cause: str
    step: int


class CommandExecutor:
    """Looks at the page of requests, if there is one; `call` is the user's function.

    What becomes of a request is told through `tell`, an error of `call` to `guard`.
    """

    def __init__(
        self,
        page: CommandPage | None = None,
        identity: Identity | None = None,
        callback: Callable[[CommandContext], object] | None = None,
        record_event: RecordEvent = lambda *_: None,
        guard: ErrorGuard | None = None,
    ) -> None:
        self.page, self._callback, self._record_event, self._guard = (
            page,
            callback,
            record_event,
            guard,
        )
        self._identity = identity or Identity("")
        self.words = _EMPTY_WORDS if page is None else page.words
        self.optimizer_steps = 0
        """Optimizer steps that were taken."""
        self.settled_number = 0
        """Number of the newest request that is past."""
        self.due_command: Command | None = None
        """What is to be done at this step, and was not begun."""
        self.framework_handles = False
        """Whether a framework takes what is due."""
        self._upcoming: Command | None = None
        self._ready_word = 0
        """What this rank says to be ready for it, and all others must say as well."""
        self._ignored_errors = 0
        """Errors that were swallowed before the first step, or are the user's function's."""
        self._open_actions = NO_ACTIONS
        self._answered_index: int | None = None

    def after_optimizer_step(self, clock: StepClock) -> None:
        """The loop took an optimizer step. What no framework takes is done now."""
        if not self.optimizer_steps and self._guard is not None:
            self._ignored_errors = self._guard.swallowed_errors
        self.optimizer_steps += 1
        left = self.due_command
        if self.words[NUMBER_WORD] != self.settled_number:
            # What was said before the first step counts as well, and maybe on one rank alone.
            before = clock.step_index - clock.optimizer_steps
            self.poll(clock.step, before + self.optimizer_steps, before)
        # What a framework left behind, it was broken off before.
        if self.due_command is not None and (
            self.due_command is left or not self.framework_handles
        ):
            self.run_callback(clock.step)

    def poll(self, step: int, step_index: int, index_offset: int | None = 0) -> None:
        """A step is over, and a request is not settled: be ready for it, or act, or let it pass.

        `ahead` is how far beats are ahead of what the ranks count alike; None if that is not known.
        """
        number, page = self.words[NUMBER_WORD], self.page
        if page is None:
            return
        if self._upcoming is None or self._upcoming.number != number:
            self._upcoming, self._ready_word = page.read(), 0
        coming = self._upcoming
        if coming is None:
            return
        if step_index < coming.due_step_index:
            if step_index >= coming.ready_from_index:
                self._ready_word = self._ready_word or _ready_word(number, index_offset or 0)
                sound = self._counts_like_peers(index_offset)
                page.set_ready(self._identity.local_rank, self._ready_word if sound else 0)
            return
        self.settled_number, self._upcoming = number, None
        words = ", ".join(sorted(coming.actions))
        if self._ready_word and page.all_ready(self._ready_word, self._identity.local_world_size):
            self.due_command, self._answered_index = coming, None
            self._open_actions = coming.actions - {"call"}
            became = f"{words} at step {step}, for {coming.case}"
        else:
            # Who is behind by more than a step may become ready yet, and is not to act alone.
            page.set_ready(self._identity.local_rank, 0)
            became = f"nothing at step {step}: not every rank was ready to {words}"
        self._record_event(Event.METADATA, None, {_PHASE_NAME: became})

    def requested(self, step_index: int) -> frozenset[str]:
        """What a loop is to do now: a checkpoint at one step, a stop from then on.

        The step counts, not whether it was done: ranks of which one alone saves would go apart.
        """
        if not self._open_actions:
            return NO_ACTIONS
        if self._answered_index is None:
            self._answered_index = step_index
        elif self._answered_index != step_index:
            self._open_actions &= {"stop"}
        return self._open_actions

    def pop_actions(self, step: int) -> frozenset[str]:
        """For a framework: what it is to do at this step, the user's function called already."""
        if self.due_command is not None:
            self.run_callback(step)
        words, self._open_actions = self._open_actions, NO_ACTIONS
        return words

    def run_callback(self, step: int) -> None:
        """Call the user's function, if that is due. An error of it is counted, and told by name."""
        due, self.due_command = self.due_command, None
        if due is None or self._callback is None or "call" not in due.actions:
            return
        self._record_event(Event.PHASE, None, {"name": _PHASE_NAME, "edge": "begin"})
        try:
            self._callback(CommandContext(due.actions - {"call"}, due.case, due.cause, step))
        except Exception as error:
            self._record_event(Event.METADATA, None, {f"{_PHASE_NAME}/error": type(error).__name__})
            if self._guard is not None:
                self._ignored_errors += 1
                self._guard.count_error(error)
        finally:
            self._record_event(Event.PHASE, None, {"name": _PHASE_NAME, "edge": "end"})

    def close(self) -> None:
        """Let go of the memory."""
        self.words, self.settled_number, self.due_command = _EMPTY_WORDS, 0, None
        if self.page is not None:
            self.page.close()
            self.page = None

    def _counts_like_peers(self, index_offset: int | None) -> bool:
        """Whether this rank is sure to come to the step that the others come to."""
        if self._guard is not None and self._guard.swallowed_errors > self._ignored_errors:
            # A step may have been missed over it.
            return False
        return _process_group_size() in (None, self._identity.world_size) and (
            index_offset is not None or self._identity.world_size == 1
        )


def make_executor(
    ring_path: Path,
    identity: Identity,
    callback: Callable[[CommandContext], object] | None,
    record_event: RecordEvent,
    guard: ErrorGuard,
) -> CommandExecutor:
    """Those of the rank with that ring; without a page where none can be made."""
    page = None
    if identity.local_world_size <= MAX_LOCAL_RANKS and identity.local_rank < MAX_LOCAL_RANKS:
        try:
            page = open_or_create(command_page_path(ring_path, identity.attempt))
        except (OSError, ValueError):
            # A request is then answered by no rank, since this one is never ready.
            page = None
    return CommandExecutor(page, identity, callback, record_event, guard)


def _ready_word(number: int, index_offset: int) -> int:
    """The same for ranks that are ready for one request, and that count their steps alike."""
    return (number & 0xFFFFFFFF) | (index_offset & 0xFFFFFFFF) << 32


def _process_group_size() -> int | None:
    """Ranks of the process group, if there is one: it may be made by what no launcher numbered."""
    group = sys.modules.get("torch.distributed")
    if group is None or not group.is_available() or not group.is_initialized():
        return None
    return int(group.get_world_size())
