"""A message store in a process of its own, which the agent can limit and end.

The store of torch refuses no key and closes no connection: who reaches its port can fill the memory
of the process that hosts it. A call to something that is no store never returns. The agent
therefore loads no torch: a child process makes the calls for it, one at a time, over a socket pair.
It ends with the thread that started it, and is the first process that the kernel kills for lack of
memory.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import psutil

from sentinel.cluster.torch_store import MessageStoreError, TorchStore, load_core
from sentinel.pipeline.onset_process import child_environment

START_TIMEOUT_SECONDS = 120.0
"""A busy node takes long to load torch."""
CALL_TIMEOUT_SECONDS = 8.0
"""After which the process of a blocked call is ended. The calls of torch have 5 s of their own."""
MAX_STORE_BYTES = 96 << 20
"""Memory that a store may take when it is opened."""
MAX_ITEM_BYTES = 64 << 20
"""Size limit of one key or value between the two processes."""
MAX_OPEN_FILES = 1 << 16
"""Connections of the store, if the hard limit of the process allows that many."""

_DEFAULT_STACK_BYTES = 2 << 20
"""Stack of a thread if that of the process has no limit, see pthread_create(3)."""

_LENGTH = struct.Struct("<I")
_OK, _ERROR = b"ok", b"error"
_SCRIPT = "from sentinel.cluster.message_store import main; main()"
_PR_SET_PDEATHSIG = 1
"""PR_SET_PDEATHSIG of prctl(2): the signal that a process gets when its parent thread ends."""


class StoreProcessError(MessageStoreError):
    """The process of the store ended."""


class MessageStore:
    """A store that is hosted or connected to, in a process that the first use starts.

    Every method but `disconnect`, `abort`, `close`, `limit_memory` and `memory_bytes` may raise
    MessageStoreError.
    """

    _can_load_core: ClassVar[bool] = True
    """Whether processes load the C++ part of torch only; False once that has failed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._initial_bytes = self._last_bytes = 0
        self._is_closed = False

    @classmethod
    def host(cls, listener: socket.socket) -> MessageStore:
        """Host a store on a listening socket, which it takes over."""
        store = cls()
        with listener:
            try:
                store._start(listener)
                # Before the store is open: who floods its port fills it at once.
                store._initial_bytes = store._data_bytes() + _thread_bytes()
                store.limit_memory(MAX_STORE_BYTES)
                store._call("host", str(listener.fileno()))
            except BaseException:
                store.close()
                raise
        return store

    def connect(self, host: str, port: int) -> None:
        """Connect to the store at that address, instead of the one before."""
        if self._process is None:
            self._start()
        self._call("connect", host, str(port))

    def read(self, keys: Sequence[str]) -> list[bytes]:
        """The values of these keys. Every key must exist, else it blocks for some seconds."""
        return self._call("read", *keys)

    def peek(self, key: str) -> bytes | None:
        """The value of the key, or None. It never waits, and costs half of `read`."""
        found = self._call("peek", key)
        return found[0] if found else None

    def has(self, key: str) -> bool:
        """Whether the key exists."""
        return bool(self._call("has", key))

    def write(self, messages: Mapping[str, bytes]) -> None:
        """Set these keys, in their order."""
        if messages:
            self._call("write", *(part for message in messages.items() for part in message))

    def increment(self, key: str, amount: int = 1) -> int:
        """Add to the number at the key; returns the new number."""
        return int(self._call("increment", key, str(amount))[0])

    def remove(self, keys: Sequence[str]) -> None:
        """Delete these keys."""
        self._call("remove", *keys)

    def count_keys(self) -> int:
        """The number of keys."""
        return int(self._call("count_keys")[0])

    def limit_memory(self, max_bytes: int) -> None:
        """Let the process take that much more memory than an empty store; it ends above that."""
        if self._process is not None:
            limit = self._initial_bytes + max_bytes
            with suppress(psutil.Error):
                psutil.Process(self._process.pid).rlimit(
                    psutil.RLIMIT_DATA, (limit, resource.RLIM_INFINITY)
                )

    @property
    def memory_bytes(self) -> int:
        """How much more memory the process takes than an empty store, or took before its end."""
        self._update_memory()
        return self._last_bytes

    def disconnect(self) -> None:
        """Close the connection; the process remains for the next one."""
        if self._process is not None:
            with suppress(MessageStoreError):
                self._call("disconnect")

    def abort(self) -> None:
        """End the process, in any thread; a call that waits for it raises MessageStoreError."""
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End the process, in the thread that makes the calls."""
        self.abort()
        if self._control is not None:
            self._control.close()
        self._process = self._control = None

    def _start(self, listener: socket.socket | None = None) -> None:
        """Start the process, and wait until it has loaded torch."""
        for loads_core in (True, False) if MessageStore._can_load_core else (False,):
            self._start_process(listener, loads_core=loads_core)
            try:
                self._receive(START_TIMEOUT_SECONDS)
            except StoreProcessError:
                if not loads_core or self._is_closed:
                    raise
                # A version of torch with other internal modules.
                MessageStore._can_load_core = False
            else:
                return

    def _start_process(self, listener: socket.socket | None, *, loads_core: bool) -> None:
        self._control, theirs = socket.socketpair()
        inherited = [each.fileno() for each in (theirs, listener) if each is not None]
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line
                [
                    *(sys.executable, "-P", "-c", _SCRIPT),
                    *(str(theirs.fileno()), str(os.getpid()), "core" if loads_core else "all"),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=inherited,
                env=child_environment(),
            )
        if self._is_closed:
            self.abort()

    def _call(self, name: str, *arguments: str | bytes) -> list[bytes]:
        if self._control is None:
            raise MessageStoreError("The store does not answer (it is closed).")
        items = (name, *arguments)
        with suppress(ConnectionError):
            _send(
                self._control, [each.encode() if isinstance(each, str) else each for each in items]
            )
        return self._receive(CALL_TIMEOUT_SECONDS)

    def _receive(self, timeout: float) -> list[bytes]:
        """The result of the last call. If the process ended or does not answer, it is ended."""
        process, control = self._process, self._control
        if process is None or control is None:
            raise MessageStoreError("The store does not answer (it is closed).")
        control.settimeout(timeout)
        try:
            kind, *items = _receive(control)
        except TimeoutError:
            message = f"The store does not answer (no result within {timeout:g} s)."
            error = MessageStoreError(message)
        except (OSError, EOFError):
            error = StoreProcessError("The process of the message store ended.")
        else:
            if kind == _ERROR:
                raise MessageStoreError(items[0].decode())
            return items
        self._update_memory()
        process.kill()
        process.wait()
        control.close()
        self._process = self._control = None
        raise error

    def _update_memory(self) -> None:
        if size := self._data_bytes():
            self._last_bytes = max(0, size - self._initial_bytes)

    def _data_bytes(self) -> int:
        """The private memory of the process, as RLIMIT_DATA limits it; 0 if it ended."""
        if self._process is not None:
            with suppress(psutil.Error):
                return int(psutil.Process(self._process.pid).memory_info().data)
        return 0


def _thread_bytes() -> int:
    """The memory that the thread of an empty store takes."""
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return _DEFAULT_STACK_BYTES if stack == resource.RLIM_INFINITY else stack


def main() -> None:
    """Execute the calls of the agent, which are lists of a name and arguments.

    The arguments are the descriptor of the socket, the process id of the agent, and whether to load
    the "core" of torch or "all".
    """
    control, parent, what = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    # A scheduler signals all processes of a job. The agent still needs the store then.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    if what == "core":
        load_core()
    store: TorchStore | None = None
    _send(control, [_OK])
    with suppress(EOFError):
        while True:
            name, *arguments = _receive(control)
            try:
                result: list[bytes] = []
                if name == b"host":
                    store = TorchStore.host(socket.socket(fileno=int(arguments[0])))
                elif name == b"connect":
                    # The old connection is closed first.
                    store = None
                    store = TorchStore.connect(arguments[0].decode(), int(arguments[1]))
                elif name == b"disconnect":
                    store = None
                else:
                    result = _execute(store, name.decode(), arguments)
                _send(control, [_OK, *result])
            except MessageStoreError as error:
                _send(control, [_ERROR, str(error).encode()])
    # Without the destructors of torch, which may wait for its threads.
    os._exit(0)


def _execute(store: TorchStore | None, name: str, arguments: list[bytes]) -> list[bytes]:
    """The result of that method of `MessageStore`. Raises MessageStoreError."""
    if store is None:
        raise MessageStoreError("The store does not answer (there is no connection).")
    result: list[bytes] = []
    match name:
        case "read":
            result = store.read([key.decode() for key in arguments])
        case "peek":
            found = store.peek(arguments[0].decode())
            result = [] if found is None else [found]
        case "has":
            result = [b"yes"] if store.has(arguments[0].decode()) else []
        case "write":
            keys = [key.decode() for key in arguments[::2]]
            store.write(dict(zip(keys, arguments[1::2], strict=True)))
        case "increment":
            number = store.increment(arguments[0].decode(), int(arguments[1]))
            result = [str(number).encode()]
        case "remove":
            store.remove([key.decode() for key in arguments])
        case "count_keys":
            result = [str(store.count_keys()).encode()]
        case _:
            raise MessageStoreError(f"A message store has no method {name}.")
    return result


def _send(connection: socket.socket, items: Sequence[bytes]) -> None:
    """Send a list of names, keys and values."""
    parts = [_LENGTH.pack(len(items))]
    for item in items:
        parts += _LENGTH.pack(len(item)), item
    connection.sendall(b"".join(parts))


def _receive(connection: socket.socket) -> list[bytes]:
    """The next list. Raises EOFError if the other process ended, OSError for a timeout."""
    return [_receive_item(connection) for _ in range(_receive_length(connection))]


def _receive_item(connection: socket.socket) -> bytes:
    length = _receive_length(connection)
    if length > MAX_ITEM_BYTES:
        raise EOFError(f"An item of {length} bytes is too large.")
    return _receive_exactly(connection, length)


def _receive_length(connection: socket.socket) -> int:
    (length,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size))
    return int(length)


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        count = connection.recv_into(view[filled:])
        if not count:
            raise EOFError
        filled += count
    return bytes(data)
