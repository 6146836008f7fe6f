"""Nodes: the part this agent has among those of its job, and what it makes of its ranks' records.

The first ring that is read tells. Where all ranks are on this node, it is alone, and everything is
as it was read. Where there are more nodes, that of rank 0 is the head and judges the run; the
others are posts. A post that never reaches a head judges its own ranks after a while: several pages
are better than none.

A restart may move rank 0 to another node, and with it the place where all look for the head. The
head stays where it is all the same: it makes itself known at the new place, where whoever was about
to judge the run anew gives way, and sends on who comes. Once it is gone, the new place is the head.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sentinel.cluster.authentication import Seal
from sentinel.cluster.client import Link
from sentinel.cluster.endpoints import Address, address, spelled
from sentinel.cluster.failover import Heir
from sentinel.cluster.follower import HEAD_LOST_SECONDS, Post
from sentinel.cluster.head import Head
from sentinel.cluster.server import Hub
from sentinel.cluster.spool import Spool
from sentinel.model.counters import Tally
from sentinel.model.record import Record
from sentinel.model.record_batch import Entry
from sentinel.transport.identity import Identity
from sentinel.transport.rendezvous import NOWHERE, Meeting

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
        self.sign: Hub | None = None
        """Where others look for the head, though it is elsewhere."""
        self.herald: Link | None = None
        """Makes a head known that is not where others look for it."""
        self._at = ""
        """Where others reach us, if we are the head."""
        self._decided = False

    @property
    def role(self) -> str:
        """What it is: alone, head or post; nothing before it is known."""
        if not self._decided:
            return ""
        if self.post is not None:
            return "post"
        return "head" if self.head is not None else "alone"

    def turn(self, local: Iterable[Record]) -> list[Entry]:
        """What this agent is to judge now."""
        first = self.first()
        if first is not None:
            self._decide(first)
        if self.post is not None:
            return [*self.post.turn(local)]
        entries: list[Entry] = [*local] if self.heir is None else self.heir.turn(local)
        return entries if self.head is None else self.head.turn(entries)

    @property
    def due(self) -> bool:
        """Whether there is anything to store, though there may be nothing to judge."""
        parts = (self.heir, self.head, self.post)
        return any(part is not None and part.due for part in parts)

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
        hub = self.sign if self.head is None else self.head.hub
        link = self.herald if self.post is None else self.post.link
        if hub is not None:
            hub.stop()
        if link is not None:
            link.stop()

    def state(self) -> dict[str, Any]:
        """In plain words: role; of a head its address, trouble and nodes; of a post its link.

        The address, `head`, is the same on all of them, and `port` that part of it.
        """
        told: dict[str, Any] = {"role": self.role}
        if self.head is not None:
            hub = self.head.hub
            told |= {"port": hub.port, "trouble": hub.trouble, "nodes": self.head.state()}
            told["head"] = spelled(self._at, hub.port)
        if self.post is not None:
            told |= self.post.state()
        return told

    def _decide(self, first: Identity) -> None:
        before, self._decided = self._decided, True
        if self.post is not None:
            self._reconsider(first, self.post)
        elif self.head is not None:
            self._hold(first, self.head)
        elif first.local_world_size < first.world_size and self.heir is None:
            # Who has judged the run already goes on, wherever rank 0 is by now.
            if before or _is_first(first) or self._address():
                self._judge(first)
            else:
                self._hand_over(first)

    def _reconsider(self, first: Identity, post: Post) -> None:
        """Judge after all where nobody else does; where others look for the head, send them on."""
        here = _is_first(first)
        never = not post.link.head and post.silent >= ORPHANED_SECONDS
        if never or (here and post.silent >= HEAD_LOST_SECONDS):
            self._inherit(first, post)
        elif here and post.link.linked:
            if self.sign is None:
                self.sign = self._hub(first, post.link.head)
                self.sign.start()
            self.sign.at = post.link.head

    def _hold(self, first: Identity, head: Head) -> None:
        """Be known as the head where others look for it; or give way to one that is older."""
        past = head.young
        if head.elder and past is not None:
            self._give_way(first, head, past)
            return
        known = _is_first(first) or head.hears(0)
        if not known and self.herald is None and head.hub.port:
            card = {**self._card(first), "elder": spelled(self._address(), head.hub.port)}
            self.herald = self._link(first, card)
            self.herald.start()
        elif self.herald is not None:
            self.herald.look()
            if known:
                self.herald.let_go()
                self.herald = None

    def _give_way(self, first: Identity, head: Head, past: list[Record]) -> None:
        self.connection.execute("delete from cluster where key in ('address', 'generations')")
        head.hub.at = head.elder
        self.head, self.sign = None, head.hub
        self._hand_over(first)
        if self.post is not None:
            self.post.turn(past)

    def _judge(self, first: Identity) -> None:
        if not self._address():
            self.connection.execute(
                "insert into cluster(key, value) values('address', ?)",
                ((self._place().host if _is_first(first) else "") or first.host,),
            )
        self._at = self._address()
        hub, self.sign = self.sign or self._hub(first), None
        hub.at = ""
        self.head = Head(self.run, first.host, self.connection, hub, self.tally, self.clock)
        self.head.begin(first.attempt)
        hub.start()

    def _hand_over(self, first: Identity) -> None:
        spool = Spool(self.connection, self.tally)
        link = self._link(first, {**self._card(first), "spool": spool.name})
        self.post = Post(self.run, spool, link, self.clock)
        link.start()

    def _inherit(self, first: Identity, post: Post) -> None:
        """Judge from now on, beginning with what no head has."""
        post.link.let_go()
        self.post, self.heir = None, Heir(self.run, post.spool)
        if _is_first(first):
            self._judge(first)

    def _address(self) -> str:
        """Where others found us as the head, if we ever were it."""
        query = "select value from cluster where key = 'address'"
        row = self.connection.execute(query).fetchone()
        return str(row[0]) if row else ""

    def _card(self, first: Identity) -> dict[str, str]:
        return {"host": first.host, "run": self.run}

    def _link(self, first: Identity, card: Mapping[str, str]) -> Link:
        return Link(self._place, self._seal(first), card, self.tally)

    def _hub(self, first: Identity, at: str = "") -> Hub:
        return Hub(self._place().ports, self._seal(first), self.tally, at)

    def _seal(self, first: Identity) -> Seal:
        return Seal.of(self._token, first.meeting.job)

    def _place(self) -> Address:
        first = self.first()
        return address(_meeting(first), self._head)


def _is_first(first: Identity) -> bool:
    """Whether rank 0 is on the node of its lowest rank."""
    node = first.meeting.node
    return first.rank == 0 or (node == 0 if node >= 0 else first.rank == first.local_rank)


def _meeting(first: Identity | None) -> Meeting:
    return NOWHERE if first is None else first.meeting
