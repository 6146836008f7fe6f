"""A message store on loopback, with servers, clients, and outsiders that write to it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

from support.rank_processes import until

from sentinel.cluster.authentication import MessageAuthenticator
from sentinel.cluster.client import ClusterClient
from sentinel.cluster.endpoints import HeadEndpoint
from sentinel.cluster.message_store import MessageStore
from sentinel.cluster.protocol import HEAD_INFO_KEY, HeadInfo
from sentinel.cluster.server import ClusterServer, Hello
from sentinel.cluster.sockets import bind_first_free_port
from sentinel.cluster.torch_store import MessageStoreError, TorchStore
from sentinel.model.counters import Counters

TIMEOUT_SECONDS = 240.0
AUTHENTICATOR = MessageAuthenticator.for_job("token", "job")
REFUSED_METRIC = "sentinel_head_connection_rejected_total"


def free_ports(count: int = 1) -> tuple[int, ...]:
    """Consecutive ports, of which the first was just free."""
    with closing(socket.socket()) as first:
        first.bind(("", 0))
        port = first.getsockname()[1]
    return tuple(range(port, port + count))


class LocalStore(TorchStore):
    """A store in the process of the test, without a limit: a process takes a second to start."""

    memory_bytes = 0

    def __init__(self, store: Any = None) -> None:
        super().__init__(store)

    def connect(self, host: str, port: int) -> None:
        """Connect this store, as a MessageStore does."""
        self._store = TorchStore.connect(host, port)._store

    def disconnect(self) -> None:
        self._store = None

    def limit_memory(self, max_bytes: int) -> None:
        """No limit."""

    def abort(self) -> None:
        """Nothing to end."""


@contextmanager
def hosted_store() -> Iterator[tuple[TorchStore, int]]:
    """A store that this process hosts, and its port."""
    listener = bind_first_free_port((0,))
    port = listener.getsockname()[1]
    store = TorchStore.host(listener)
    try:
        yield store, port
    finally:
        store.close()


@contextmanager
def running_server(
    ports: tuple[int, ...] | None = None,
    authenticator: MessageAuthenticator = AUTHENTICATOR,
    listen_host: str = "",
    *,
    in_own_process: bool = False,
) -> Iterator[ClusterServer]:
    """A server that listens, with its own counters."""
    server = ClusterServer(
        ports or (0,),
        authenticator,
        Counters(),
        listen_host=listen_host,
        open_store=MessageStore.host if in_own_process else LocalStore.host,
    )
    server.start()
    try:
        until(lambda: server.port, TIMEOUT_SECONDS, "the server listens")
        yield server
    finally:
        server.stop(TIMEOUT_SECONDS)


@contextmanager
def running_client(
    ports: int | tuple[int, ...],
    authenticator: MessageAuthenticator = AUTHENTICATOR,
    *,
    in_own_process: bool = False,
    **node_info: str,
) -> Iterator[ClusterClient]:
    """A client that searches for a head at these ports of loopback."""
    endpoint = HeadEndpoint("127.0.0.1", ports if isinstance(ports, tuple) else (ports,))
    store = MessageStore() if in_own_process else LocalStore()
    client = ClusterClient(
        lambda: endpoint, authenticator, {"host": "b", **node_info}, Counters(), store
    )
    client.start()
    try:
        yield client
    finally:
        client.stop(TIMEOUT_SECONDS)


def connect_outsider(port: int) -> TorchStore:
    """A connection to the store without a client."""
    return until(lambda: _try_connect(port), TIMEOUT_SECONDS, "the store accepts connections")


def _try_connect(port: int) -> TorchStore | None:
    with suppress(MessageStoreError):
        return TorchStore.connect("127.0.0.1", port)
    return None


def refusal_counts(counters: Counters) -> dict[str, float]:
    """The number of refused messages and records by reason."""
    return {
        reason: count
        for (family, reason), count in counters.values.items()
        if family == REFUSED_METRIC
    }


def accept_client(server: ClusterServer, client: ClusterClient, last_row: int = 0) -> Hello:
    """Acknowledge the hello of the client, and wait until it is connected."""
    (hello,) = await_condition(server.drain_hellos, f"a hello ({client.error})")
    server.acknowledge(hello.slot, 0, last_row)
    session = client.last_ack.session if client.last_ack else 0
    await_condition(
        lambda: client.is_connected and client.last_ack.session > session, "the client is connected"
    )
    return hello


def await_condition(condition: Callable[[], Any], description: str) -> Any:
    return until(condition, TIMEOUT_SECONDS, description)


def read_instance_id(store: TorchStore) -> str:
    """The id of this life of the store, from the head info."""
    (message,) = store.read([HEAD_INFO_KEY])
    return HeadInfo.deserialize(AUTHENTICATOR.verify(HEAD_INFO_KEY, message)).instance_id
