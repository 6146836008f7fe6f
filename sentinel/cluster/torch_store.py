"""The TCPStore of torch.distributed through which agents of several nodes exchange messages.

The head hosts it on a port of its own; the stores and process groups of the trainer are not used.
This is the only module of the cluster that imports torch, and only for runs on more than one node.

A call can block as long as the network does, and a connection to something that is no store blocks
for ever. The agent therefore makes the calls through `sentinel.cluster.message_store`, in a process
that it can end.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

STORE_TIMEOUT = timedelta(seconds=5)
CONNECT_TIMEOUT_SECONDS = 1.0
"""Timeout of the plain connection that is tried before torch connects."""
_LISTEN_BACKLOG = 4096
_ALL_INTERFACES = ("0.0.0.0", "::")  # noqa: S104 - recognised, not bound
_ABSENT_VALUE = "sentinel: the key is absent"


class MessageStoreError(OSError):
    """There is no store at that address, or the connection to it is lost."""


class TorchStore:
    """One connection to the store. Every method but `close` may raise MessageStoreError."""

    def __init__(self, store: Any) -> None:
        self._store = store

    @classmethod
    def host(cls, listener: socket.socket) -> TorchStore:
        """Host a store on a listening socket, which it takes over."""
        # Before `detach`: if torch is missing, the socket must still be closed.
        store_class = _load_store_class()
        listener.listen(_LISTEN_BACKLOG)
        host, _ = socket.getnameinfo(listener.getsockname(), socket.NI_NUMERICHOST)
        port = listener.getsockname()[1]
        # The connection of this process to its own store.
        host = "localhost" if host in _ALL_INTERFACES else host
        listener.setblocking(True)
        return cls(
            _open_store(store_class, host, port, is_host=True, master_listen_fd=listener.detach())
        )

    @classmethod
    def connect(cls, host: str, port: int) -> TorchStore:
        """Connect to the store at that address."""
        try:
            socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_SECONDS).close()
        except OSError as error:
            raise MessageStoreError(f"No answer at {host}:{port} ({error}).") from None
        return cls(_open_store(_load_store_class(), host, port, is_host=False))

    def read(self, keys: Sequence[str]) -> list[bytes]:
        """The values of these keys. Every key must exist, else it blocks until STORE_TIMEOUT."""
        return [bytes(value) for value in self._call("multi_get", list(keys))]

    def peek(self, key: str) -> bytes | None:
        """The value of the key, or None. It never waits, and costs half of `read`."""
        # For an absent key, compare_set returns the expected value, else the stored one.
        value = bytes(self._call("compare_set", key, _ABSENT_VALUE, _ABSENT_VALUE))
        return None if value == _ABSENT_VALUE.encode() else value

    def has(self, key: str) -> bool:
        """Whether the key exists."""
        return bool(self._call("check", [key]))

    def write(self, messages: Mapping[str, bytes]) -> None:
        """Set these keys, in their order."""
        if messages:
            self._call("multi_set", list(messages), list(messages.values()))

    def increment(self, key: str, amount: int = 1) -> int:
        """Add to the number at the key; returns the new number."""
        return int(self._call("add", key, amount))

    def remove(self, keys: Sequence[str]) -> None:
        """Delete these keys."""
        for key in keys:
            self._call("delete_key", key)

    def count_keys(self) -> int:
        """The number of keys."""
        return int(self._call("num_keys"))

    def close(self) -> None:
        """Close the connection, and the store if this process hosts it."""
        self._store = None

    def _call(self, name: str, *args: Any) -> Any:
        try:
            return getattr(self._store, name)(*args)
        except (RuntimeError, OSError, AttributeError) as error:
            first_line = str(error).partition("\n")[0]
            raise MessageStoreError(
                f"The store does not answer ({type(error).__name__}: {first_line})"
            ) from None


def load_core() -> None:
    """Load the C++ part of torch only, in a process that needs nothing else of torch.

    That takes a quarter of the time of `import torch`, and 75 MB less. It relies on the names of
    internal modules: on an error the process must import torch instead.
    """
    spec = find_spec("torch")
    if spec is None:
        # `_load_store_class` reports it.
        return
    torch, distributed = ModuleType("torch"), ModuleType("torch.distributed")
    torch.__path__ = [*(spec.submodule_search_locations or ())]
    _silence_torch()
    sys.modules |= {"torch": torch, "torch.distributed": distributed}
    core = import_module("torch._C")
    # It adds its classes to modules of these names.
    core._c10d_init()  # noqa: SLF001 - as torch.distributed does
    classes = import_module("torch._C._distributed_c10d")
    distributed.TCPStore = classes.TCPStore  # type: ignore[attr-defined]


def _load_store_class() -> Any:
    try:
        _silence_torch()
        store_class = import_module("torch.distributed").TCPStore
        logging.getLogger("torch").setLevel(logging.WARNING)
    except (ImportError, AttributeError) as error:
        raise MessageStoreError(
            "torch is not installed in the environment of the agent."
        ) from error
    return store_class


def _silence_torch() -> None:
    """A broken connection is an error of ours, not a C++ stack trace on stderr."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")


def _open_store(store_class: Any, host: str, port: int, *, is_host: bool, **options: Any) -> Any:
    try:
        return store_class(
            host, port, is_master=is_host, wait_for_workers=False, timeout=STORE_TIMEOUT, **options
        )
    except (RuntimeError, OSError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        raise MessageStoreError(
            f"No store at {host}:{port} ({type(error).__name__}: {first_line})"
        ) from None
