"""Board: the store of torch.distributed in which agents of several nodes leave messages.

The head hosts it, in its own process and on a port of its own: the trainer's stores and groups are
never touched. This is the one file that loads torch, and only where there is more than one node.
A call may block for as long as the network does, and a connection to what is no store blocks for
ever: so calls are made from threads of their own, and `cut` ends one that takes too long.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from typing import Any

PATIENCE = timedelta(seconds=5)
KNOCK_SECONDS = 1.0
"""How long we wait for anybody to answer at an address, before torch tries."""
_BACKLOG = 4096
_NOBODYS = "nobody leaves this"


class BoardError(OSError):
    """There is no store at that address, or it can be reached no more."""


class Board:
    """One connection to the store; every method but `close` may raise BoardError."""

    def __init__(self, store: Any) -> None:
        self._store = store

    @classmethod
    def host(cls, listener: socket.socket) -> Board:
        """Host a store at a socket that is bound, which it takes over."""
        # Before the socket is nobody's: without torch it would stay open for ever.
        make = _maker()
        listener.listen(_BACKLOG)
        port = listener.getsockname()[1]
        listener.setblocking(True)
        return cls(_store(make, "localhost", port, serves=True, master_listen_fd=listener.detach()))

    @classmethod
    def join(cls, host: str, port: int) -> Board:
        """Connect to the store at that address."""
        try:
            socket.create_connection((host, port), timeout=KNOCK_SECONDS).close()
        except OSError as error:
            raise BoardError(f"Nobody answers at {host}:{port} ({error}).") from None
        return cls(_store(_maker(), host, port, serves=False))

    def read(self, keys: Sequence[str]) -> list[bytes]:
        """What is left there. Every key must exist: else it waits for all its patience."""
        return [bytes(value) for value in self._call("multi_get", list(keys))]

    def peek(self, key: str) -> bytes | None:
        """What is left there, None where nothing is; it never waits, at half the cost of `read`."""
        # A key that is not there answers with what was expected, and one that is with its own.
        found = bytes(self._call("compare_set", key, _NOBODYS, _NOBODYS))
        return None if found == _NOBODYS.encode() else found

    def has(self, key: str) -> bool:
        """Whether there is anything."""
        return bool(self._call("check", [key]))

    def leave(self, messages: Mapping[str, bytes]) -> None:
        """Leave these there, in their order."""
        if messages:
            self._call("multi_set", list(messages), list(messages.values()))

    def count(self, key: str, more: int = 1) -> int:
        """Add to a number there, and what it is then."""
        return int(self._call("add", key, more))

    def remove(self, keys: Sequence[str]) -> None:
        """Leave nothing there."""
        for key in keys:
            self._call("delete_key", key)

    def close(self) -> None:
        """Let go of the connection, and of the store where we host it."""
        self._store = None

    def _call(self, name: str, *args: Any) -> Any:
        try:
            return getattr(self._store, name)(*args)
        except (RuntimeError, OSError, AttributeError) as error:
            first = str(error).partition("\n")[0]
            raise BoardError(
                f"The store does not answer ({type(error).__name__}: {first})"
            ) from None


def _maker() -> Any:
    try:
        # A connection that breaks is news to our log, and no stack of C++ frames.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
        # Seconds, and 200 MB.
        make = import_module("torch.distributed").TCPStore
        logging.getLogger("torch").setLevel(logging.WARNING)
    except (ImportError, AttributeError) as error:
        raise BoardError("torch is not installed where the agent runs.") from error
    return make


def _store(make: Any, host: str, port: int, *, serves: bool, **more: Any) -> Any:
    try:
        return make(host, port, is_master=serves, wait_for_workers=False, timeout=PATIENCE, **more)
    except (RuntimeError, OSError, ValueError) as error:
        first = str(error).partition("\n")[0]
        raise BoardError(f"No store at {host}:{port} ({type(error).__name__}: {first})") from None


def listener(ports: Sequence[int]) -> socket.socket:
    """A socket at the first of these ports that is free, for all networks of this node.

    Raises BoardError where none is.
    """
    for port in ports:
        with suppress(OSError):
            if socket.has_dualstack_ipv6():
                return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
            return socket.create_server(("", port))
    raise BoardError(f"None of the ports {ports[0]} to {ports[-1]} is free: set [cluster] head.")


def cut(port: int) -> None:
    """End every connection of this process to such a port; whoever waits there gets an error.

    A call of the store has no end of its own while the other side keeps its socket open.
    """
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names alone are wanted
        with suppress(OSError):
            # One of our own: its owner may close it at any moment.
            descriptor = os.dup(int(name))
            try:
                _shut(descriptor, port)
            finally:
                os.close(descriptor)


def _shut(descriptor: int, port: int) -> None:
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return
    found = socket.socket(fileno=descriptor)
    try:
        # The address of a Unix socket is a text.
        if found.family != socket.AF_UNIX and found.getpeername()[1] == port:
            found.shutdown(socket.SHUT_RDWR)
    finally:
        found.detach()
