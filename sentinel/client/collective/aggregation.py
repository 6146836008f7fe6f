"""Collective: the opt-in path over torch.distributed, for where only rank 0 may have an agent.

Each rank's records are in its ring as ever. From time to time they are gathered to rank 0, which
keeps them in rings in the names of the others, for the agent of its node to read. Nothing is done
but at steps, in the thread that began the run, and nobody waits for anybody; after the first
trouble it is over for this attempt, and every node starts an agent of its own: the direct path.

One turn follows the other: look for the training's process group; come to an agreement; gather;
and, on rank 0, hear out who left.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from threading import get_ident
from time import monotonic, sleep
from typing import Any

from sentinel.client.collective import chunk
from sentinel.client.collective.gather_group import Broken, Gathering
from sentinel.client.collective.readiness import (
    DEADLINE,
    FEWEST_LOOKS,
    PAUSE,
    NoQuorum,
    Quorum,
    Start,
    joined,
)
from sentinel.client.collective.replica_rings import Mirrors
from sentinel.client.collective.sender import Outgoing
from sentinel.client.collective.shutdown import Departed
from sentinel.client.guard import Guard
from sentinel.client.recorder import Recorder
from sentinel.model.record import Event
from sentinel.transport.identity import Identity
from sentinel.transport.paths import remember
from sentinel.transport.ring import RingWriter
from sentinel.transport.ring_layout import COLLECTIVE, OUTCOMES, UNKNOWN

PATIENCE = 10.0
"""Seconds that a gather may be under way, and steps that are taken meanwhile, at least."""
FEWEST_POLLS = 3
SETTLE = 0.2
"""Seconds that rank 0, as it ends, gives the others for their last words, at most; where it fails,
gloo, to tell of those that are gone: the training's own connections may do so a moment earlier."""
LOOKS = 4
"""How often it looks meanwhile whether anybody is still there."""


class Off(Exception):  # noqa: N818 - an answer, with the reason
    """It is over; the text says why."""


class Collective:
    """One rank's part. `tell` says facts of the run, `serve` starts the agent of this node."""

    begun = 0
    """Runs of this process so far: each has keys of its own in the store."""

    def __init__(
        self,
        ring: RingWriter,
        identity: Identity,
        tell: Callable[[Mapping[str, str]], None],
        serve: Callable[[], None],
    ) -> None:
        Collective.begun += 1
        self.ring, self.identity = ring, identity
        self._tell, self._serve = tell, serve
        self._thread = get_ident()
        self._turn: Callable[[int], None] | None = self._seek
        self._began, self._looks, self._asks_at = monotonic(), 0, 0.0
        self._quorum: Quorum | None = None
        self._gathering: Gathering | None = None
        self._outgoing: Outgoing | None = None
        self._departed: Departed | None = None
        self._mirrors = Mirrors(identity, ring.drop)
        self._every, self._due = 1, 0
        self._count, self._polls, self._polled, self._sent_at = 0, 0, 0, 0.0

    def step(self, beat: int) -> None:
        """A step was taken. Raises only what is an error of ours."""
        if self._turn is None:
            return
        try:
            self._take(self._turn if get_ident() == self._thread else self._stray, beat)
        except BaseException as error:
            self._abort(error)
            raise

    def close(self, outcome: str) -> None:
        """Hand over what is left, as this rank ends. Rank 0 gives the others a moment."""
        try:
            self._end(outcome)
        except BaseException as error:
            self._abort(error)
            raise

    def abandon(self) -> None:
        """In a forked child: all of it is the parent's."""
        self._turn = None
        self._mirrors.abandon()

    def _take(self, turn: Callable[[int], None], beat: int) -> None:
        try:
            turn(beat)
        except (Off, NoQuorum, Broken) as over:
            self._give_up(over)

    def _end(self, outcome: str) -> None:
        turn, self._turn = self._turn, None
        gathering = self._gathering
        if turn == self._gather and gathering is not None:
            if self.identity.rank == 0:
                self._settle(outcome)
            elif gathering.left or gathering.lost([0]):
                self._serve_elsewhere()
            else:
                self._leave(OUTCOMES.index(outcome))
        elif turn == self._hear_out and self._departed is not None:
            self._departed.close()
        elif turn is not None:
            self._serve_elsewhere()

    def _stray(self, beat: int) -> None:  # noqa: ARG002 - as every turn
        """A step was taken in another thread: none of ours, unless all of them are."""
        if not self._looks and monotonic() - self._began > DEADLINE:
            raise Off("steps are taken in another thread than the one that began the run")

    def _seek(self, beat: int) -> None:  # noqa: ARG002 - as every turn
        """Look for the process group of the training, which is begun when it likes."""
        now = monotonic()
        if now < self._asks_at:
            return
        self._asks_at, self._looks = now + PAUSE, self._looks + 1
        group = sys.modules.get("torch.distributed")
        if group is None or not group.is_available() or not group.is_initialized():
            if now - self._began > DEADLINE and self._looks >= FEWEST_LOOKS:
                raise Off("the training has no process group")
            return
        ours = self.identity.rank, self.identity.world_size
        if (group.get_rank(), group.get_world_size()) != ours:
            raise Off("the process group counts its ranks otherwise than the launcher")
        self._quorum = joined(group, Collective.begun, *ours, self.ring.path.parent)
        self._turn = self._agree

    def _agree(self, beat: int) -> None:
        assert self._quorum is not None
        start = self._quorum.look(beat, monotonic())
        if start is not None:
            self._open(self._quorum, start)
            self._gather(beat)

    def _open(self, quorum: Quorum, start: Start) -> None:
        self._gathering = Gathering(quorum.store, quorum.rank, quorum.world)
        silent = quorum.node == start.node
        self._outgoing = Outgoing(self.ring.path, self.identity, silent)
        self._every, self._due, self._turn = start.every, start.beat, self._gather
        self._quorum = None
        self._tell({COLLECTIVE: f"on: every {self._every} steps"})

    def _gather(self, beat: int) -> None:
        gathering = self._gathering
        assert gathering is not None
        if gathering.left:
            raise Off("rank 0 gathers no more")
        self._mirrors.put_away(self._every)
        if gathering.busy and not self._arrived(gathering):
            self._be_patient(beat)
            return
        if beat >= self._due:
            # By a grid that is the same on all: whoever was held up makes up for it.
            self._due += self._every
            self._count, self._polls = self._count + 1, 0
            self._polled, self._sent_at = beat, monotonic()
            assert self._outgoing is not None
            self._outgoing.fill(gathering.chunk, self._count)
            gathering.begin()

    def _arrived(self, gathering: Gathering) -> bool:
        if not gathering.done():
            return False
        came = gathering.gathered() if self.identity.rank == 0 else []
        self._mirrors.take(each for each in came if each[1].number == self._count)
        return True

    def _be_patient(self, beat: int) -> None:
        """Many logs may speak of one step, in which the others stand as well: steps are counted."""
        self._polls += beat != self._polled
        self._polled = beat
        if self._polls >= FEWEST_POLLS and monotonic() - self._sent_at > PATIENCE:
            raise Off("timed out")

    def _give_up(self, why: Exception) -> None:
        """Never again in this attempt: the direct path takes over."""
        self._turn = None
        gathering = self._gathering
        if gathering is None or self.identity.rank:
            if gathering is not None:
                self._leave(chunk.GOES_ON)
            self._say_off(str(why))
            self._serve_elsewhere()
            return
        self._departed = Departed(gathering, self._mirrors, self._say_off, why)
        self._turn = self._hear_out

    def _hear_out(self, beat: int) -> None:  # noqa: ARG002 - as every turn
        assert self._departed is not None
        if self._departed.heard():
            self._turn = None

    def _settle(self, outcome: str) -> None:
        """The end of rank 0: the others' last words are most often there, or are about to be."""
        gathering, waits_till = self._gathering, monotonic() + SETTLE
        assert gathering is not None
        failed, looks_at = outcome in ("exception", "exit"), 0.0
        try:
            while not self._all_said(gathering) and (failed or outcome == "finished"):
                now = monotonic()
                looks = failed and now >= looks_at
                if now > waits_till or (looks and not gathering.accompanied()):
                    break
                looks_at = now + SETTLE / LOOKS if looks else looks_at
                sleep(0.002)
            why: Exception | None = None
        except Broken as over:
            why = over
        Departed(gathering, self._mirrors, self._say_off, why).close()

    def _all_said(self, gathering: Gathering) -> bool:
        arrived = not gathering.busy or self._arrived(gathering)
        self._mirrors.put_away()
        return arrived and self._mirrors.rings.keys() <= gathering.last_words().keys()

    def _leave(self, ending: int) -> None:
        """Hand rank 0 what is left. A ring that it so has the whole of, nobody else will read."""
        gathering, outgoing = self._gathering, self._outgoing
        assert gathering is not None
        assert outgoing is not None
        memory = bytearray(chunk.SIZE)
        outgoing.last(memory, self._count, ending)
        gathering.leave(memory)
        outgoing.close()
        if ending != chunk.GOES_ON and not outgoing.silent:
            remember(self.identity.run, self.ring.path)
            self.ring.path.unlink(missing_ok=True)

    def _say_off(self, why: str) -> None:
        self._tell({COLLECTIVE: f"off: {why}"})

    def _abort(self, error: BaseException) -> None:
        """After an error of ours. Rings in the others' names must not look as if they had ended."""
        self._turn = None
        self._serve_elsewhere()
        why = type(error).__name__
        self._say_off(why)
        for rank in [*self._mirrors.rings]:
            self._mirrors.close(rank, UNKNOWN, {COLLECTIVE: f"off: {why}"})

    def _serve_elsewhere(self) -> None:
        if self.identity.rank:
            self._serve()


class CollectiveRecorder(Recorder):
    """A recorder whose steps drive a collective as well."""

    def __init__(
        self,
        ring: RingWriter,
        guard: Guard,
        tick: Callable[[], None],
        identity: Identity,
        serve: Callable[[], None],
    ) -> None:
        super().__init__(ring, guard, tick)
        self.collective = Collective(
            ring, identity, lambda facts: self.say(Event.FACTS, None, facts), serve
        )

    def close(self, facts: Mapping[str, Any]) -> None:
        """As ever; rank 0 hears the others out before it says STOP, they leave after theirs."""
        first = self.collective.identity.rank == 0
        if first:
            self._end(facts)
        super().close(facts)
        if not first:
            self._end(facts)

    def abandon(self) -> None:
        """As ever; the rings in the others' names as well."""
        super().abandon()
        self.collective.abandon()

    def _end(self, facts: Mapping[str, Any]) -> None:
        try:
            self.collective.close(str(facts["outcome"]))
        except Exception as error:
            self.gate.guard.caught(error)

    def _look(self, now: float) -> None:
        super()._look(now)
        self.collective.step(self.clock.beat)
        if not self.clock.optimizer_steps:
            # The shortest way of a log leads by here no more.
            self._looks_at = 0.0
