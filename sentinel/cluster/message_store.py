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

STORE_TIMEOUT = timedelta(seconds=5)
CONNECT_TIMEOUT_SECONDS = 1.0
"""How long we wait for anybody to answer at an address, before torch tries."""
_LISTEN_BACKLOG = 4096
_ABSENT_VALUE = "nobody leaves this"


class MessageStoreError(OSError):
    """There is no store at that address, or it can be reached no more."""


class MessageStore:
    """One connection to the store; every method but `close` may raise BoardError."""

    def __init__(self, store: Any) -> None:
        self._store = store

    @classmethod
    def host(cls, listener: socket.socket) -> MessageStore:
        """Host a store at a socket that is bound, which it takes over."""
        # Before the socket is nobody's: without torch it would stay open for ever.
        make = _load_store_class()
        listener.listen(_LISTEN_BACKLOG)
        port = listener.getsockname()[1]
        listener.setblocking(True)
        return cls(
            _open_store(make, "localhost", port, is_host=True, master_listen_fd=listener.detach())
        )

    @classmethod
    def connect(cls, host: str, port: int) -> MessageStore:
        """Connect to the store at that address."""
        try:
            socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_SECONDS).close()
        except OSError as error:
            raise MessageStoreError(f"Nobody answers at {host}:{port} ({error}).") from None
        return cls(_open_store(_load_store_class(), host, port, is_host=False))

    def read(self, keys: Sequence[str]) -> list[bytes]:
        """What is left there. Every key must exist: else it waits for all its patience."""
        return [bytes(value) for value in self._call("multi_get", list(keys))]

    def peek(self, key: str) -> bytes | None:
        """What is left there, None where nothing is; it never waits, at half the cost of `read`."""
        # A key that is not there answers with what was expected, and one that is with its own.
        found = bytes(self._call("compare_set", key, _ABSENT_VALUE, _ABSENT_VALUE))
        return None if found == _ABSENT_VALUE.encode() else found

    def has(self, key: str) -> bool:
        """Whether there is anything."""
        return bool(self._call("check", [key]))

    def write(self, messages: Mapping[str, bytes]) -> None:
        """Leave these there, in their order."""
        if messages:
            self._call("multi_set", list(messages), list(messages.values()))

    def increment(self, key: str, amount: int = 1) -> int:
        """Add to a number there, and what it is then."""
        return int(self._call("add", key, amount))

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
            raise MessageStoreError(
                f"The store does not answer ({type(error).__name__}: {first})"
            ) from None


def _load_store_class() -> Any:
    try:
        # A connection that breaks is news to our log, and no stack of C++ frames.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
        # Seconds, and 200 MB.
        make = import_module("torch.distributed").TCPStore
        logging.getLogger("torch").setLevel(logging.WARNING)
    except (ImportError, AttributeError) as error:
        raise MessageStoreError("torch is not installed where the agent runs.") from error
    return make


def _open_store(store_class: Any, host: str, port: int, *, is_host: bool, **more: Any) -> Any:
    try:
        return store_class(
            host, port, is_master=is_host, wait_for_workers=False, timeout=STORE_TIMEOUT, **more
        )
    except (RuntimeError, OSError, ValueError) as error:
        first = str(error).partition("\n")[0]
        raise MessageStoreError(
            f"No store at {host}:{port} ({type(error).__name__}: {first})"
        ) from None


def bind_first_free_port(ports: Sequence[int]) -> socket.socket:
    """A socket at the first of these ports that is free, for all networks of this node.

    Raises BoardError where none is.
    """
    for port in ports:
        with suppress(OSError):
            if socket.has_dualstack_ipv6():
                return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
            return socket.create_server(("", port))
    raise MessageStoreError(
        f"None of the ports {ports[0]} to {ports[-1]} is free: set [cluster] head."
    )


def shutdown_connections(port: int) -> None:
    """End every connection of this process to such a port; whoever waits there gets an error.

    A call of the store has no end of its own while the other side keeps its socket open.
    """
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names alone are wanted
        with suppress(OSError):
            # One of our own: its owner may close it at any moment.
            descriptor = os.dup(int(name))
            try:
                _shutdown_if_peer_port(descriptor, port)
            finally:
                os.close(descriptor)


def _shutdown_if_peer_port(descriptor: int, port: int) -> None:
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return
    found = socket.socket(fileno=descriptor)
    try:
        # The address of a Unix socket is a text.
        if found.family != socket.AF_UNIX and found.getpeername()[1] == port:
            found.shutdown(socket.SHUT_RDWR)
    finally:
        found.detach()
