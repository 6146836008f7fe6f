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

from sentinel.cluster.authentication import MessageAuthenticator
from sentinel.cluster.client import ClusterClient
from sentinel.cluster.endpoints import HeadEndpoint, format_address, head_endpoint
from sentinel.cluster.failover import Failover
from sentinel.cluster.follower import HEAD_LOST_AFTER_SECONDS, Follower
from sentinel.cluster.head import Head
from sentinel.cluster.server import ClusterServer
from sentinel.cluster.spool import Spool
from sentinel.model.counters import Counters
from sentinel.model.record import Record
from sentinel.model.record_batch import RecordOrBatch
from sentinel.transport.identity import Identity
from sentinel.transport.rendezvous import NO_RENDEZVOUS, Rendezvous

HEAD_SEARCH_TIMEOUT_SECONDS = 300.0
"""How long a post looks for a head that it never reached, before it judges its own ranks."""


class AgentRole:
    """Gives what this agent is to judge of what it reads.

    `first` tells the lowest rank on this node, once one is known. `head` is where the head is, as a
    person set it: host, or host:port; `token` is what agents of the job share.
    """

    def __init__(  # noqa: PLR0913 - what agents of a job need to know of each other
        self,
        run: str,
        connection: sqlite3.Connection,
        counters: Counters,
        first_identity: Callable[[], Identity | None],
        *,
        configured_head: str = "",
        token: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.run, self.connection, self.counters, self.first_identity = (
            run,
            connection,
            counters,
            first_identity,
        )
        self._configured_head, self._token, self.clock = configured_head, token, clock
        self.head: Head | None = None
        self.follower: Follower | None = None
        self.failover: Failover | None = None
        self.redirect_server: ClusterServer | None = None
        """Where others look for the head, though it is elsewhere."""
        self.announcing_client: ClusterClient | None = None
        """Makes a head known that is not where others look for it."""
        self._advertised_host = ""
        """Where others reach us, if we are the head."""
        self._is_decided = False

    @property
    def role(self) -> str:
        """What it is: alone, head or post; nothing before it is known."""
        if not self._is_decided:
            return ""
        if self.follower is not None:
            return "follower"
        return "head" if self.head is not None else "single"

    def exchange(self, local_records: Iterable[Record]) -> list[RecordOrBatch]:
        """What this agent is to judge now."""
        first = self.first_identity()
        if first is not None:
            self._decide(first)
        if self.follower is not None:
            return [*self.follower.forward(local_records)]
        entries: list[RecordOrBatch] = (
            [*local_records] if self.failover is None else self.failover.drain(local_records)
        )
        return entries if self.head is None else self.head.merge(entries)

    @property
    def has_unsaved_changes(self) -> bool:
        """Whether there is anything to store, though there may be nothing to judge."""
        parts = (self.failover, self.head, self.follower)
        return any(part is not None and part.has_unsaved_changes for part in parts)

    def persist(self) -> None:
        """Store what is read and what was heard, within the caller's transaction."""
        for part in (self.failover, self.head, self.follower):
            if part is not None:
                part.persist()

    def after_commit(self) -> None:
        """All that was read is stored: tell the others."""
        for part in (self.head, self.follower):
            if part is not None:
                part.after_commit()

    @property
    def finished(self) -> bool:
        """Whether nothing is to be heard of others, or handed to them, any more."""
        part = self.follower or self.head
        return part is None or part.finished

    def stop(self) -> None:
        """Leave the others."""
        hub = self.redirect_server if self.head is None else self.head.server
        link = self.announcing_client if self.follower is None else self.follower.client
        if hub is not None:
            hub.stop()
        if link is not None:
            link.stop()

    def status(self) -> dict[str, Any]:
        """In plain words: role; of a head its address, trouble and nodes; of a post its link.

        The address, `head`, is the same on all of them, and `port` that part of it.
        """
        told: dict[str, Any] = {"role": self.role}
        if self.head is not None:
            hub = self.head.server
            told |= {"port": hub.port, "error": hub.error, "nodes": self.head.node_status()}
            told["head"] = format_address(self._advertised_host, hub.port)
        if self.follower is not None:
            told |= self.follower.status()
        return told

    def _decide(self, identity: Identity) -> None:
        before, self._is_decided = self._is_decided, True
        if self.follower is not None:
            self._fail_over_or_redirect(identity, self.follower)
        elif self.head is not None:
            self._announce_or_yield(identity, self.head)
        elif identity.local_world_size < identity.world_size and self.failover is None:
            # Who has judged the run already goes on, wherever rank 0 is by now.
            if before or _hosts_rank_zero(identity) or self._stored_address():
                self._become_head(identity)
            else:
                self._become_follower(identity)

    def _fail_over_or_redirect(self, identity: Identity, follower: Follower) -> None:
        """Judge after all where nobody else does; where others look for the head, send them on."""
        here = _hosts_rank_zero(identity)
        never = (
            not follower.client.head_address
            and follower.silent_seconds >= HEAD_SEARCH_TIMEOUT_SECONDS
        )
        if never or (here and follower.silent_seconds >= HEAD_LOST_AFTER_SECONDS):
            self._fail_over(identity, follower)
        elif here and follower.client.is_connected:
            if self.redirect_server is None:
                self.redirect_server = self._new_server(identity, follower.client.head_address)
                self.redirect_server.start()
            self.redirect_server.redirect_to = follower.client.head_address

    def _announce_or_yield(self, identity: Identity, head: Head) -> None:
        """Be known as the head where others look for it; or give way to one that is older."""
        past = head.early_records
        if head.established_head and past is not None:
            self._yield_to_established_head(identity, head, past)
            return
        known = _hosts_rank_zero(identity) or head.has_seen_rank(0)
        if not known and self.announcing_client is None and head.server.port:
            card = {
                **self._node_info(identity),
                "elder": format_address(self._stored_address(), head.server.port),
            }
            self.announcing_client = self._new_client(identity, card)
            self.announcing_client.start()
        elif self.announcing_client is not None:
            self.announcing_client.check_timeout()
            if known:
                self.announcing_client.request_stop()
                self.announcing_client = None

    def _yield_to_established_head(
        self, identity: Identity, head: Head, early_records: list[Record]
    ) -> None:
        self.connection.execute("delete from cluster where key in ('address', 'generations')")
        head.server.redirect_to = head.established_head
        self.head, self.redirect_server = None, head.server
        self._become_follower(identity)
        if self.follower is not None:
            self.follower.forward(early_records)

    def _become_head(self, identity: Identity) -> None:
        if not self._stored_address():
            self.connection.execute(
                "insert into cluster(key, value) values('address', ?)",
                ((self._endpoint().host if _hosts_rank_zero(identity) else "") or identity.host,),
            )
        self._advertised_host = self._stored_address()
        hub, self.redirect_server = self.redirect_server or self._new_server(identity), None
        hub.redirect_to = ""
        self.head = Head(self.run, identity.host, self.connection, hub, self.counters, self.clock)
        self.head.start_at_attempt(identity.attempt)
        hub.start()

    def _become_follower(self, identity: Identity) -> None:
        spool = Spool(self.connection, self.counters)
        link = self._new_client(identity, {**self._node_info(identity), "spool": spool.spool_id})
        self.follower = Follower(self.run, spool, link, self.clock)
        link.start()

    def _fail_over(self, identity: Identity, follower: Follower) -> None:
        """Judge from now on, beginning with what no head has."""
        follower.client.request_stop()
        self.follower, self.failover = None, Failover(self.run, follower.spool)
        if _hosts_rank_zero(identity):
            self._become_head(identity)

    def _stored_address(self) -> str:
        """Where others found us as the head, if we ever were it."""
        query = "select value from cluster where key = 'address'"
        row = self.connection.execute(query).fetchone()
        return str(row[0]) if row else ""

    def _node_info(self, identity: Identity) -> dict[str, str]:
        return {"host": identity.host, "run": self.run}

    def _new_client(self, identity: Identity, node_info: Mapping[str, str]) -> ClusterClient:
        return ClusterClient(
            self._endpoint, self._authenticator(identity), node_info, self.counters
        )

    def _new_server(self, identity: Identity, redirect_to: str = "") -> ClusterServer:
        return ClusterServer(
            self._endpoint().ports, self._authenticator(identity), self.counters, redirect_to
        )

    def _authenticator(self, identity: Identity) -> MessageAuthenticator:
        return MessageAuthenticator.for_job(self._token, identity.rendezvous.job_id)

    def _endpoint(self) -> HeadEndpoint:
        first = self.first_identity()
        return head_endpoint(_rendezvous_of(first), self._configured_head)


def _hosts_rank_zero(identity: Identity) -> bool:
    """Whether rank 0 is on the node of its lowest rank."""
    node = identity.rendezvous.node_rank
    return identity.rank == 0 or (node == 0 if node >= 0 else identity.rank == identity.local_rank)


def _rendezvous_of(identity: Identity | None) -> Rendezvous:
    return NO_RENDEZVOUS if identity is None else identity.rendezvous
