"""Makes the connections of an agent to those of other nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sentinel.cluster.authentication import MessageAuthenticator
from sentinel.cluster.client import ClusterClient
from sentinel.cluster.endpoints import HeadEndpoint, head_endpoint
from sentinel.cluster.server import ClusterServer
from sentinel.model.counters import Counters
from sentinel.transport.identity import Identity
from sentinel.transport.rendezvous import NO_RENDEZVOUS


@dataclass(frozen=True)
class ConnectionFactory:
    """Makes the clients and servers of this agent, with one endpoint and token.

    `first_identity` is that of the lowest rank on this node, None until it is known.
    """

    run: str
    counters: Counters
    first_identity: Callable[[], Identity | None]
    configured_head: str
    token: str
    all_interfaces: bool

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

    def _authenticator(self, identity: Identity) -> MessageAuthenticator:
        return MessageAuthenticator.for_job(self.token, identity.rendezvous.job_id)
