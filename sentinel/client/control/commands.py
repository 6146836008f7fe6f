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

from sentinel.client.guard import Guard
from sentinel.client.step_clock import StepClock
from sentinel.model.record import Event
from sentinel.transport.command_page import MOST_RANKS, NUMBER, Request, Requests, made, page_beside
from sentinel.transport.identity import Identity

NOTHING: frozenset[str] = frozenset()
_PHASE = "on_critical"
_BLANK: Sequence[int] = (0,) * (NUMBER + 1)

Tell = Callable[[Event, Any, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user's function is told when it is called: why, and at which step of the trainer.

    `deeds` are the other words that were asked for, "checkpoint" and "stop". `case` is the name of
    the incident that leads the case, `cause` what is held to be behind it; it may be empty.
    """

    deeds: frozenset[str]
    case: str
    cause: str
    step: int


class Errands:
    """Looks at the page of requests, if there is one; `call` is the user's function.

    What becomes of a request is told through `tell`, an error of `call` to `guard`.
    """

    def __init__(
        self,
        page: Requests | None = None,
        identity: Identity | None = None,
        call: Callable[[Asked], object] | None = None,
        tell: Tell = lambda *_: None,
        guard: Guard | None = None,
    ) -> None:
        self.page, self._call, self._tell, self._guard = page, call, tell, guard
        self._identity = identity or Identity("")
        self.words = _BLANK if page is None else page.words
        self.steps = 0
        """Optimizer steps that were taken."""
        self.settled = 0
        """Number of the newest request that is past."""
        self.due: Request | None = None
        """What is to be done at this step, and was not begun."""
        self.led = False
        """Whether a framework takes what is due."""
        self._coming: Request | None = None
        self._word = 0
        """What this rank says to be ready for it, and all others must say as well."""
        self._errors = 0
        """Errors that were swallowed before the first step, or are the user's function's."""
        self._open = NOTHING
        self._answered: int | None = None

    def stepped(self, clock: StepClock) -> None:
        """The loop took an optimizer step. What no framework takes is done now."""
        if not self.steps and self._guard is not None:
            self._errors = self._guard.swallowed
        self.steps += 1
        left = self.due
        if self.words[NUMBER] != self.settled:
            # What was said before the first step counts as well, and maybe on one rank alone.
            before = clock.beat - clock.optimizer_steps
            self.look(clock.step, before + self.steps, before)
        # What a framework left behind, it was broken off before.
        if self.due is not None and (self.due is left or not self.led):
            self.carry_out(clock.step)

    def look(self, step: int, beat: int, ahead: int | None = 0) -> None:
        """A step is over, and a request is not settled: be ready for it, or act, or let it pass.

        `ahead` is how far beats are ahead of what the ranks count alike; None if that is not known.
        """
        number, page = self.words[NUMBER], self.page
        if page is None:
            return
        if self._coming is None or self._coming.number != number:
            self._coming, self._word = page.read(), 0
        coming = self._coming
        if coming is None:
            return
        if beat < coming.beat:
            if beat >= coming.since:
                self._word = self._word or _word(number, ahead or 0)
                sound = self._is_sound(ahead)
                page.be_ready(self._identity.local_rank, self._word if sound else 0)
            return
        self.settled, self._coming = number, None
        words = ", ".join(sorted(coming.deeds))
        if self._word and page.ready(self._word, self._identity.local_world_size):
            self.due, self._answered = coming, None
            self._open = coming.deeds - {"call"}
            became = f"{words} at step {step}, for {coming.case}"
        else:
            # Who is behind by more than a step may become ready yet, and is not to act alone.
            page.be_ready(self._identity.local_rank, 0)
            became = f"nothing at step {step}: not every rank was ready to {words}"
        self._tell(Event.FACTS, None, {_PHASE: became})

    def requested(self, beat: int) -> frozenset[str]:
        """What a loop is to do now: a checkpoint at one step, a stop from then on.

        The step counts, not whether it was done: ranks of which one alone saves would go apart.
        """
        if not self._open:
            return NOTHING
        if self._answered is None:
            self._answered = beat
        elif self._answered != beat:
            self._open &= {"stop"}
        return self._open

    def take(self, step: int) -> frozenset[str]:
        """For a framework: what it is to do at this step, the user's function called already."""
        if self.due is not None:
            self.carry_out(step)
        words, self._open = self._open, NOTHING
        return words

    def carry_out(self, step: int) -> None:
        """Call the user's function, if that is due. An error of it is counted, and told by name."""
        due, self.due = self.due, None
        if due is None or self._call is None or "call" not in due.deeds:
            return
        self._tell(Event.PHASE, None, {"name": _PHASE, "edge": "begin"})
        try:
            self._call(Asked(due.deeds - {"call"}, due.case, due.cause, step))
        except Exception as error:
            self._tell(Event.FACTS, None, {f"{_PHASE}/error": type(error).__name__})
            if self._guard is not None:
                self._errors += 1
                self._guard.noted(error)
        finally:
            self._tell(Event.PHASE, None, {"name": _PHASE, "edge": "end"})

    def abandon(self) -> None:
        """Let go of the memory."""
        self.words, self.settled, self.due = _BLANK, 0, None
        if self.page is not None:
            self.page.close()
            self.page = None

    def _is_sound(self, ahead: int | None) -> bool:
        """Whether this rank is sure to come to the step that the others come to."""
        if self._guard is not None and self._guard.swallowed > self._errors:
            # A step may have been missed over it.
            return False
        return _group_size() in (None, self._identity.world_size) and (
            ahead is not None or self._identity.world_size == 1
        )


def errands(
    ring: Path, identity: Identity, call: Callable[[Asked], object] | None, tell: Tell, guard: Guard
) -> Errands:
    """Those of the rank with that ring; without a page where none can be made."""
    page = None
    if identity.local_world_size <= MOST_RANKS and identity.local_rank < MOST_RANKS:
        try:
            page = made(page_beside(ring, identity.attempt))
        except (OSError, ValueError):
            # A request is then answered by no rank, since this one is never ready.
            page = None
    return Errands(page, identity, call, tell, guard)


def _word(number: int, ahead: int) -> int:
    """The same for ranks that are ready for one request, and that count their steps alike."""
    return (number & 0xFFFFFFFF) | (ahead & 0xFFFFFFFF) << 32


def _group_size() -> int | None:
    """Ranks of the process group, if there is one: it may be made by what no launcher numbered."""
    group = sys.modules.get("torch.distributed")
    if group is None or not group.is_available() or not group.is_initialized():
        return None
    return int(group.get_world_size())
