"""A store on loopback for tests of the cluster, hubs and links, and what strangers do to it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

from support.rank_processes import until

from sentinel.cluster.authentication import Seal
from sentinel.cluster.client import Link
from sentinel.cluster.endpoints import CARD, Address
from sentinel.cluster.message_store import Board, BoardError, listener
from sentinel.cluster.server import Hub
from sentinel.model.counters import Tally

PATIENCE = 60.0
SEAL = Seal.of("token", "job")
REFUSED = "sentinel_link_refused_total"


def ports(count: int = 1) -> tuple[int, ...]:
    """Ports that were free a moment ago."""
    with closing(socket.socket()) as first:
        first.bind(("", 0))
        port = first.getsockname()[1]
    return tuple(range(port, port + count))


@contextmanager
def hosted() -> Iterator[tuple[Board, int]]:
    """A board that is hosted here, and its port."""
    place = listener((0,))
    port = place.getsockname()[1]
    board = Board.host(place)
    try:
        yield board, port
    finally:
        board.close()


@contextmanager
def hub(at: tuple[int, ...] | None = None, seal: Seal = SEAL) -> Iterator[Hub]:
    """A hub that listens; the tally of it is its own."""
    made = Hub(at or (0,), seal, Tally())
    made.start()
    try:
        until(lambda: made.port, PATIENCE, "the hub listens")
        yield made
    finally:
        made.stop(PATIENCE)


@contextmanager
def link(port: int | tuple[int, ...], seal: Seal = SEAL, **card: str) -> Iterator[Link]:
    """A link that looks for a head at these ports of loopback."""
    many = port if isinstance(port, tuple) else (port,)
    made = Link(lambda: Address("127.0.0.1", many), seal, {"host": "b", **card}, Tally())
    made.start()
    try:
        yield made
    finally:
        made.stop(PATIENCE)


def stranger(port: int) -> Board:
    """A connection of somebody who found the store."""
    return until(lambda: _joined(port), PATIENCE, "the store is there")


def _joined(port: int) -> Board | None:
    with suppress(BoardError):
        return Board.join("127.0.0.1", port)
    return None


def refusals(tally: Tally) -> dict[str, float]:
    return {reason: n for (family, reason), n in tally.counts.items() if family == REFUSED}


def welcomed(hub: Hub, link: Link, row: int = 0) -> Any:
    """The hello of that link, once its head has answered it."""
    (hello,) = until(hub.hellos, PATIENCE, f"a hello ({link.trouble})")
    hub.answer(hello.slot, 0, row)
    session = link.answer.session if link.answer else 0
    until(lambda: link.linked and link.answer.session > session, PATIENCE, "it is linked")
    return hello


def awaited(condition: Callable[[], Any], what: str) -> Any:
    return until(condition, PATIENCE, what)


def birth(board: Board) -> str:
    """What the card says of this life of the store."""
    return str(json.loads(SEAL.open(CARD, board.read([CARD])[0]))["birth"])
