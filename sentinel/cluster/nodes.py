"""Nodes: the part this agent has among those of its job, and what it makes of its ranks' records.

The first ring that is read tells. Where all ranks are on this node, it is alone, and everything is
as it was read. Where there are more nodes, that of rank 0 is the head and judges the run; the
others are posts. A post that never reaches a head judges its own ranks after a while: several pages
are better than none. And one to whose node rank 0 has come is the next head, once the last is gone.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable
from typing import Any

from sentinel.cluster.head import Head
from sentinel.cluster.heir import Heir
from sentinel.cluster.hub import Hub
from sentinel.cluster.link import Link
from sentinel.cluster.places import Address, address
from sentinel.cluster.post import HEAD_LOST_SECONDS, Post
from sentinel.cluster.seal import Seal
from sentinel.cluster.spool import Spool
from sentinel.record import Record
from sentinel.tally import Tally
from sentinel.wire.identity import Identity
from sentinel.wire.meeting import NOWHERE, Meeting

ORPHANED_SECONDS = 300.0
"""How long a post looks for a head that it never reached, before it judges its own ranks."""


class Nodes:
    """Gives what this agent is to judge of what it reads.

    `first` tells the lowest rank on this node, once one is known. `head` is where the head is, as a
    person set it: host, or host:port; `token` is what agents of the job share.
    """

    def __init__(  # noqa: PLR0913 - what agents of a job need to know of each other
        self,
        run: str,
        connection: sqlite3.Connection,
        tally: Tally,
        first: Callable[[], Identity | None],
        *,
        head: str = "",
        token: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.run, self.connection, self.tally, self.first = run, connection, tally, first
        self._head, self._token, self.clock = head, token, clock
        self.head: Head | None = None
        self.post: Post | None = None
        self.heir: Heir | None = None
        self._decided = False

    @property
    def role(self) -> str:
        """What it is: alone, head or post; nothing before it is known."""
        if not self._decided:
            return ""
        if self.post is not None:
            return "post"
        return "head" if self.head is not None else "alone"

    def turn(self, local: Iterable[Record]) -> list[Record]:
        """What this agent is to judge now."""
        first = self.first()
        if first is not None:
            self._decide(first)
        if self.post is not None:
            return self.post.turn(local)
        records = [*local] if self.heir is None else self.heir.turn(local)
        return records if self.head is None else self.head.turn(records)

    @property
    def due(self) -> bool:
        """Whether there is anything to store, though there may be nothing to judge."""
        part = self.post or self.head
        return self.heir is not None or (part is not None and part.due)

    def keep(self) -> None:
        """Store what is read and what was heard, within the caller's transaction."""
        for part in (self.heir, self.head, self.post):
            if part is not None:
                part.keep()

    def kept(self) -> None:
        """All that was read is stored: tell the others."""
        for part in (self.head, self.post):
            if part is not None:
                part.kept()

    @property
    def over(self) -> bool:
        """Whether nothing is to be heard of others, or handed to them, any more."""
        part = self.post or self.head
        return part is None or part.over

    def stop(self) -> None:
        """Leave the others."""
        if self.head is not None:
            self.head.hub.stop()
        if self.post is not None:
            self.post.link.stop()

    def state(self) -> dict[str, Any]:
        """In plain words: role; of a head its port, trouble and nodes; of a post its link."""
        told: dict[str, Any] = {"role": self.role}
        if self.head is not None:
            hub = self.head.hub
            told |= {"port": hub.port, "trouble": hub.trouble, "nodes": self.head.state()}
        if self.post is not None:
            told |= self.post.state()
        return told

    def _decide(self, first: Identity) -> None:
        if not self._decided:
            self._decided = True
            if first.local_world_size >= first.world_size:
                return
            if _is_first(first):
                self._judge(first)
            else:
                self._hand_over(first)
        elif self.post is not None:
            never = not self.post.link.head and self.post.silent >= ORPHANED_SECONDS
            gone = _is_first(first) and self.post.silent >= HEAD_LOST_SECONDS
            if never or gone:
                self._inherit(first)

    def _judge(self, first: Identity) -> None:
        place = self._place()
        hub = Hub(place.ports, Seal.of(self._token, first.meeting.job), self.tally)
        self.head = Head(self.run, first.host, self.connection, hub, self.tally, self.clock)
        hub.start()

    def _hand_over(self, first: Identity) -> None:
        spool = Spool(self.connection, self.tally)
        card = {"host": first.host, "run": self.run, "spool": spool.name}
        seal = Seal.of(self._token, first.meeting.job)
        self.post = Post(self.run, spool, Link(self._place, seal, card, self.tally), self.clock)
        self.post.link.start()

    def _inherit(self, first: Identity) -> None:
        """Judge from now on, beginning with what no head has."""
        post, self.post = self.post, None
        if post is None:
            return
        post.link.stop()
        self.heir = Heir(self.run, post.spool)
        if _is_first(first):
            self._judge(first)

    def _place(self) -> Address:
        first = self.first()
        return address(_meeting(first), self._head)


def _is_first(first: Identity) -> bool:
    """Whether rank 0 is on the node of its lowest rank."""
    node = first.meeting.node
    return first.rank == 0 or (node == 0 if node >= 0 else first.rank == first.local_rank)


def _meeting(first: Identity | None) -> Meeting:
    return NOWHERE if first is None else first.meeting
