"""A store on loopback for tests of the cluster, hubs and links, and what strangers do to it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

from support.rank_processes import until

from sentinel.cluster.authentication import MessageAuthenticator
from sentinel.cluster.client import ClusterClient
from sentinel.cluster.endpoints import HEAD_INFO_KEY, HeadEndpoint
from sentinel.cluster.message_store import MessageStore, MessageStoreError, bind_first_free_port
from sentinel.cluster.server import ClusterServer
from sentinel.model.counters import Counters

PATIENCE = 60.0
SEAL = MessageAuthenticator.for_job("token", "job")
REFUSED = "sentinel_head_connection_rejected_total"


def ports(count: int = 1) -> tuple[int, ...]:
    """Ports that were free a moment ago."""
    with closing(socket.socket()) as first:
        first.bind(("", 0))
        port = first.getsockname()[1]
    return tuple(range(port, port + count))


@contextmanager
def hosted() -> Iterator[tuple[MessageStore, int]]:
    """A board that is hosted here, and its port."""
    place = bind_first_free_port((0,))
    port = place.getsockname()[1]
    board = MessageStore.host(place)
    try:
        yield board, port
    finally:
        board.close()


@contextmanager
def hub(
    at: tuple[int, ...] | None = None, seal: MessageAuthenticator = SEAL
) -> Iterator[ClusterServer]:
    """A hub that listens; the tally of it is its own."""
    made = ClusterServer(at or (0,), seal, Counters())
    made.start()
    try:
        until(lambda: made.port, PATIENCE, "the hub listens")
        yield made
    finally:
        made.stop(PATIENCE)


@contextmanager
def link(
    port: int | tuple[int, ...], seal: MessageAuthenticator = SEAL, **card: str
) -> Iterator[ClusterClient]:
    """A link that looks for a head at these ports of loopback."""
    many = port if isinstance(port, tuple) else (port,)
    made = ClusterClient(
        lambda: HeadEndpoint("127.0.0.1", many), seal, {"host": "b", **card}, Counters()
    )
    made.start()
    try:
        yield made
    finally:
        made.stop(PATIENCE)


def stranger(port: int) -> MessageStore:
    """A connection of somebody who found the store."""
    return until(lambda: _joined(port), PATIENCE, "the store is there")


def _joined(port: int) -> MessageStore | None:
    with suppress(MessageStoreError):
        return MessageStore.connect("127.0.0.1", port)
    return None


def refusals(tally: Counters) -> dict[str, float]:
    return {reason: n for (family, reason), n in tally.values.items() if family == REFUSED}


def welcomed(hub: ClusterServer, link: ClusterClient, row: int = 0) -> Any:
    """The hello of that link, once its head has answered it."""
    (hello,) = until(hub.drain_hellos, PATIENCE, f"a hello ({link.error})")
    hub.acknowledge(hello.slot, 0, row)
    session = link.last_ack.session if link.last_ack else 0
    until(lambda: link.is_connected and link.last_ack.session > session, PATIENCE, "it is linked")
    return hello


def awaited(condition: Callable[[], Any], what: str) -> Any:
    return until(condition, PATIENCE, what)


def birth(board: MessageStore) -> str:
    """What the card says of this life of the store."""
    return str(json.loads(SEAL.verify(HEAD_INFO_KEY, board.read([HEAD_INFO_KEY])[0]))["birth"])
