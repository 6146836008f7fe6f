"""Makes the connections of an agent to those of other nodes, and the roles that use them.

It imports all roles at once: a follower may take over hours later, when another version is
installed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from sentinel.cluster.authentication import MessageAuthenticator
from sentinel.cluster.client import ClusterClient
from sentinel.cluster.endpoints import HeadEndpoint, head_endpoint
from sentinel.cluster.failover import Failover
from sentinel.cluster.follower import Follower
from sentinel.cluster.head import Head
from sentinel.cluster.server import ClusterServer
from sentinel.cluster.spool import MAX_SPOOL_BYTES, Spool
from sentinel.model.counters import Counters
from sentinel.transport.identity import Identity
from sentinel.transport.rendezvous import NO_RENDEZVOUS


@dataclass(frozen=True)
class ConnectionFactory:
    """Makes the clients, servers and roles of this agent, with one endpoint and token.

    `first_identity` is that of the lowest rank on this node, None until it is known.
    """

    run: str
    counters: Counters
    first_identity: Callable[[], Identity | None]
    configured_head: str
    token: str
    all_interfaces: bool
    clock: Callable[[], float]

    def endpoint(self) -> HeadEndpoint:
        """Where agents look for the head; a restart may change it."""
        identity = self.first_identity()
        rendezvous = NO_RENDEZVOUS if identity is None else identity.rendezvous
        return head_endpoint(rendezvous, self.configured_head)

    def client(self, identity: Identity, **node_info: str) -> ClusterClient:
        """A client of the head, which gets `node_info` with the name of this node."""
        return ClusterClient(
            self.endpoint,
            self._authenticator(identity),
            {"host": identity.host, "run": self.run, **node_info},
            self.counters,
        )

    def server(self, identity: Identity, host: str, redirect_to: str = "") -> ClusterServer:
        """A server that others reach at `host`, at whose interface it listens."""
        return ClusterServer(
            self.endpoint().ports,
            self._authenticator(identity),
            self.counters,
            redirect_to,
            listen_host="" if self.all_interfaces else host,
        )

    def head(
        self, identity: Identity, connection: sqlite3.Connection, server: ClusterServer
    ) -> Head:
        """The head of the run, which `server` connects to its followers."""
        return Head(self.run, identity.host, connection, server, self.counters, self.clock)

    def follower(
        self, identity: Identity, connection: sqlite3.Connection, max_spool_bytes: float
    ) -> Follower:
        """A follower whose client is not started yet; its spool has `max_spool_bytes` at most."""
        max_bytes = int(min(MAX_SPOOL_BYTES, max_spool_bytes))
        spool = Spool(connection, self.counters, max_bytes)
        client = self.client(identity, spool_id=spool.spool_id)
        return Follower(self.run, spool, client, self.clock)

    def failover(self, follower: Follower) -> Failover:
        """The successor of a follower that has lost its head: it evaluates the records itself."""
        return Failover(self.run, follower.spool)

    def _authenticator(self, identity: Identity) -> MessageAuthenticator:
        return MessageAuthenticator.for_job(self.token, identity.rendezvous.job_id)
