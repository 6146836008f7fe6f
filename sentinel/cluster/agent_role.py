"""The role of an agent among those of its job: single, head or follower.

The identity of the first ring decides. If all ranks are on this node, the agent is single.
Otherwise the agent of the node of rank 0 is the head, which evaluates the run, and the others are
followers. A follower that never reaches a head evaluates its own ranks after a while: several
notifications are better than none.

A restart may move rank 0 to another node, and with it the address at which all agents look for the
head. The established head stays head: it announces itself at the new address, where a new head
yields to it and redirects clients. If the established head is gone, the agent at the new address
becomes the head.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any

from sentinel.cluster.endpoints import format_address
from sentinel.cluster.protocol import MAX_REPORT_BYTES
from sentinel.model.counters import Counters
from sentinel.model.incident import Incident
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.number_ranges import ranges_text
from sentinel.model.record import Record
from sentinel.model.record_batch import RecordOrBatch
from sentinel.transport.identity import Identity

if TYPE_CHECKING:
    from sentinel.cluster.client import ClusterClient
    from sentinel.cluster.connection_factory import ConnectionFactory
    from sentinel.cluster.failover import Failover
    from sentinel.cluster.follower import Follower
    from sentinel.cluster.head import Head
    from sentinel.cluster.server import ClusterServer

NODE_LOSS_DETECTOR = "node_lost"
"""The detector that finds the loss of nodes, and on a follower that of its head."""
HEAD_SEARCH_TIMEOUT_SECONDS = 300.0
"""How long a follower searches for a head that it never reached, before it evaluates its own
ranks."""


class AgentRole:
    """Decides the role of this agent, and returns the records that it evaluates.

    `first_identity` returns the identity of the lowest rank on this node, None until it is known.
    `configured_head` is the setting `head`: host, or host:port. `token` is the secret of the job.
    A head listens at the interface of its own address, or at `all_interfaces`.
    """

    def __init__(  # noqa: PLR0913 - the settings and resources of the agent
        self,
        run: str,
        connection: sqlite3.Connection,
        counters: Counters,
        first_identity: Callable[[], Identity | None],
        *,
        configured_head: str = "",
        token: str = "",
        all_interfaces: bool = False,
        max_spool_bytes: float = inf,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.run, self.connection, self.counters, self.clock = run, connection, counters, clock
        self._max_spool_bytes = max_spool_bytes
        self.first_identity = first_identity
        self._configured_head, self._token = configured_head, token
        self._all_interfaces = all_interfaces
        self.head: Head | None = None
        self.follower: Follower | None = None
        self.failover: Failover | None = None
        self.redirect_server: ClusterServer | None = None
        """Redirects clients from the address of rank 0 to the head elsewhere."""
        self.announcing_client: ClusterClient | None = None
        """Announces this head at the address of rank 0, which is elsewhere."""
        self._advertised_host = ""
        """The host at which others reach this head."""
        self._is_decided = False

    @property
    def role(self) -> str:
        """single, head or follower; "" until it is decided."""
        if not self._is_decided:
            return ""
        if self.follower is not None:
            return "follower"
        return "head" if self.head is not None else "single"

    def exchange(self, local_records: Iterable[Record]) -> list[RecordOrBatch]:
        """Exchange records with the other agents; returns what this agent evaluates now."""
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
    def has_unread(self) -> bool:
        """Whether the next call of `exchange` returns more, without further records."""
        return any(part is not None and part.has_unread for part in (self.failover, self.head))

    @property
    def has_unsaved_changes(self) -> bool:
        """Whether there is anything to store, even without records to evaluate."""
        parts = (self.failover, self.head, self.follower)
        return any(part is not None and part.has_unsaved_changes for part in parts)

    def persist(self) -> None:
        """Store what was read and received, within the caller's transaction."""
        for part in (self.failover, self.head, self.follower):
            if part is not None:
                part.persist()

    def after_commit(self) -> None:
        """Send acknowledgements or records. The transaction is committed."""
        for part in (self.head, self.follower):
            if part is not None:
                part.after_commit()

    def is_wanted(self, notification: Notification) -> bool:
        """Whether a notification may be sent now. In any thread; takes a second at most.

        See `Follower.confirms_loss` and `Head.confirms_loss`.
        """
        incident = notification.incident
        if (
            notification.reason is NotificationReason.RESOLVED
            or incident.key.detector != NODE_LOSS_DETECTOR
        ):
            return True
        if self.follower is not None:
            return self.follower.confirms_loss()
        if self.head is not None:
            return self.head.confirms_loss(lost_hosts(incident), incident.opened_time)
        return True

    def is_loss_over(self, incident: Incident) -> bool:
        """Whether the lost head or nodes of an incident answer again."""
        if self.follower is not None:
            return self.follower.is_head_back
        return self.head is not None and self.head.is_reached(lost_hosts(incident))

    def has_losses(self) -> bool:
        """Whether the head, or a node, is lost now."""
        if self.follower is not None:
            return self.follower.is_head_lost
        return self.head is not None and self.head.has_lost_nodes

    def publish_report(self, report: Mapping[str, Any]) -> None:
        """Send this report on the run to the followers, with the next acknowledgements."""
        if self.head is not None:
            text = json.dumps(report).encode()
            self.head.server.report = text if len(text) <= MAX_REPORT_BYTES else b""

    def command_problem(self) -> str:
        """Why a command does not reach all ranks of a run on several nodes; empty if it does.

        It is a clause that follows "because".
        """
        first = self.first_identity()
        if self.head is None or first is None:
            head = "" if self.follower is None else self.follower.client.head_address
            place = f"the node of {head}" if head else "the node of rank 0"
            return f"the agent of {place} evaluates the run, and sends the commands"
        if ranks := self.head.unreached_ranks(first.world_size):
            return f"its agent reaches no agent of rank {ranges_text(ranks)}"
        return ""

    @property
    def received_report(self) -> Mapping[str, Any]:
        """The newest report of the head, if this agent is a follower; empty before the first."""
        return {} if self.follower is None else self.follower.report

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to receive from other agents, or to send to them."""
        part = self.follower or self.head
        return part is None or part.finished

    def stop(self) -> None:
        """Close all connections."""
        server = self.redirect_server if self.head is None else self.head.server
        client = self.announcing_client if self.follower is None else self.follower.client
        if server is not None:
            server.stop()
        if client is not None:
            client.stop()

    def status(self) -> dict[str, Any]:
        """The role as JSON; of a head also port, error and nodes; of a follower its connection.

        `head` is the address of the head, the same on all nodes.
        """
        status: dict[str, Any] = {"role": self.role}
        if self.head is not None:
            server = self.head.server
            status |= {
                "port": server.port,
                "listen_address": server.listen_address,
                "has_token": bool(self._token),
                "error": server.error,
                "nodes": self.head.node_status(),
                "head": format_address(self._advertised_host, server.port),
            }
        if self.follower is not None:
            status |= self.follower.status()
        return status

    @cached_property
    def _factory(self) -> ConnectionFactory:
        # Most agents are single, and connect to no other one.
        from sentinel.cluster.connection_factory import ConnectionFactory  # noqa: PLC0415

        return ConnectionFactory(
            self.run,
            self.counters,
            self.first_identity,
            self._configured_head,
            self._token,
            self._all_interfaces,
            self.clock,
        )

    def _decide(self, identity: Identity) -> None:
        was_decided, self._is_decided = self._is_decided, True
        if self.follower is not None:
            self._fail_over_or_redirect(identity, self.follower)
        elif self.head is not None:
            self._announce_or_yield(identity, self.head)
        elif identity.local_world_size < identity.world_size and self.failover is None:
            # An agent that has evaluated the run before continues, wherever rank 0 is now.
            if was_decided or _hosts_rank_zero(identity) or self._stored_address():
                self._become_head(identity)
            else:
                self._become_follower(identity)

    def _fail_over_or_redirect(self, identity: Identity, follower: Follower) -> None:
        """Take over if there is no head; if others look for it here, redirect them."""
        hosts_rank_zero = _hosts_rank_zero(identity)
        is_search_over = (
            not follower.client.head_address
            and follower.silent_seconds >= HEAD_SEARCH_TIMEOUT_SECONDS
        )
        is_successor = hosts_rank_zero and follower.is_head_lost
        if is_search_over or is_successor:
            self._fail_over(identity, follower)
        elif hosts_rank_zero and follower.client.is_connected:
            if self.redirect_server is None:
                address = follower.client.head_address
                self.redirect_server = self._factory.server(
                    identity, self._factory.endpoint().host, address
                )
                self.redirect_server.start()
            self.redirect_server.redirect_to = follower.client.head_address

    def _announce_or_yield(self, identity: Identity, head: Head) -> None:
        """Announce this head at the address of rank 0, or yield to an established head."""
        early_records = head.early_records
        if head.established_head and early_records is not None:
            self._yield_to_established_head(identity, head, early_records)
            return
        is_known = _hosts_rank_zero(identity) or head.has_seen_rank(0)
        if not is_known and self.announcing_client is None and head.server.port:
            address = format_address(self._stored_address(), head.server.port)
            self.announcing_client = self._factory.client(identity, established_head=address)
            self.announcing_client.start()
        elif is_known and self.announcing_client is not None:
            self.announcing_client.request_stop()
            self.announcing_client = None

    def _yield_to_established_head(
        self, identity: Identity, head: Head, early_records: list[Record]
    ) -> None:
        self.connection.execute("delete from cluster where key in ('address', 'attempt_map')")
        head.server.redirect_to = head.established_head
        self.head, self.redirect_server = None, head.server
        self._become_follower(identity)
        if self.follower is not None:
            self.follower.forward(early_records)

    def _become_head(self, identity: Identity) -> None:
        if not self._stored_address():
            configured = self._factory.endpoint().host if _hosts_rank_zero(identity) else ""
            self.connection.execute(
                "insert into cluster(key, value) values('address', ?)",
                (configured or identity.host,),
            )
        self._advertised_host = self._stored_address()
        server = self.redirect_server or self._factory.server(identity, self._advertised_host)
        self.redirect_server = None
        server.redirect_to = ""
        self.head = self._factory.head(identity, self.connection, server)
        self.head.start_at_attempt(identity.attempt)
        server.start()

    def _become_follower(self, identity: Identity) -> None:
        self.follower = self._factory.follower(identity, self.connection, self._max_spool_bytes)
        self.follower.client.start()

    def _fail_over(self, identity: Identity, follower: Follower) -> None:
        """Evaluate from now on, beginning with what the head has not acknowledged."""
        follower.client.request_stop()
        self.follower, self.failover = None, self._factory.failover(follower)
        if _hosts_rank_zero(identity):
            self._become_head(identity)

    def _stored_address(self) -> str:
        """The host at which others reached this agent as head, in this life or before; else ""."""
        query = "select value from cluster where key = 'address'"
        row = self.connection.execute(query).fetchone()
        return str(row[0]) if row else ""


def lost_hosts(incident: Incident) -> set[str]:
    """The hosts that an incident of NODE_LOSS_DETECTOR reports as lost."""
    return set(str(incident.finding.evidence.get("hosts", "")).split(",")) - {""}


def _hosts_rank_zero(identity: Identity) -> bool:
    """Whether rank 0 is on the node of that identity, which is of its lowest rank."""
    node = identity.rendezvous.node_rank
    return identity.rank == 0 or (node == 0 if node >= 0 else identity.rank == identity.local_rank)
