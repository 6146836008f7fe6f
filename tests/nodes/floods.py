"""Floods of the port of a head, by a program that knows the protocol of TCPStore.

    python floods.py KIND HOST PORT

It floods until it is killed, and connects again whenever it is disconnected.
"""

from __future__ import annotations

import resource
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count

VALIDATE, SET, APPEND = 0, 1, 9
"""Query types of TCPStore.cpp in torch."""
MAGIC = 0x3C85F7CE
MIB = 1 << 20
RETRY_SECONDS = 0.02


def _text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def _connect(address: tuple[str, int]) -> socket.socket:
    connection = socket.create_connection(address, timeout=5.0)
    connection.sendall(struct.pack("<BI", VALIDATE, MAGIC))
    return connection


def _repeat(address: tuple[str, int], message: Callable[[int], bytes]) -> None:
    """Send messages over one connection, until it is closed."""
    with _connect(address) as connection:
        for number in count():
            connection.sendall(message(number))


def flood_with_large_keys(address: tuple[str, int]) -> None:
    """Keys of 7 MiB, below the 8 MiB of a message."""
    value = _text(bytes(7 * MIB))
    _repeat(address, lambda _: bytes([SET]) + _text(f"{time.time_ns()}".encode()) + value)


def flood_with_many_keys(address: tuple[str, int]) -> None:
    """Small keys, a thousand at once."""

    def keys(number: int) -> bytes:
        start = time.time_ns() + number
        return b"".join(
            bytes([SET]) + _text(b"%d" % (start + n)) + _text(b"x") for n in range(1000)
        )

    _repeat(address, keys)


def flood_with_appends(address: tuple[str, int]) -> None:
    """One value that grows."""
    message = bytes([APPEND]) + _text(b"grows") + _text(bytes(MIB))
    _repeat(address, lambda _: message)


def flood_with_head_keys(address: tuple[str, int]) -> None:
    """The head's own slot keys, which it does not remove."""
    value = _text(bytes(7 * MIB))
    _repeat(address, lambda n: bytes([SET]) + _text(b"sentinel/mailbox/%d" % (n % 50)) + value)


def flood_with_connections(address: tuple[str, int]) -> None:
    """Idle connections."""
    held = []
    with suppress(OSError):
        while len(held) < 3000:
            held.append(socket.create_connection(address, timeout=5.0))
    for first in held[:1]:
        # Until the head closes it.
        first.settimeout(60.0)
        with suppress(OSError):
            first.recv(1)
    for each in held:
        each.close()


def flood_with_half_message(address: tuple[str, int]) -> socket.socket:
    """A message of 7 MiB without its last byte, over the returned connection."""
    connection = _connect(address)
    connection.sendall(bytes([SET]) + _text(b"half") + struct.pack("<Q", 7 * MIB))
    connection.sendall(bytes(7 * MIB - 1))
    return connection


def flood_with_half_messages(address: tuple[str, int]) -> None:
    """200 connections, each with a part of a message."""
    held = []
    with suppress(OSError):
        while len(held) < 200:
            held.append(flood_with_half_message(address))
    for each in held:
        each.close()


def flood_with_garbage(address: tuple[str, int]) -> None:
    """Bytes that are no message, and lengths of terabytes."""
    for data in (b"\xff" * MIB, b"GET / HTTP/1.1\r\n\r\n"):
        with suppress(OSError), socket.create_connection(address, timeout=5.0) as connection:
            connection.sendall(data)
    with suppress(OSError), _connect(address) as connection:
        connection.sendall(bytes([SET]) + struct.pack("<Q", 1 << 50) + bytes(MIB))


def flood_with_endless_bytes(address: tuple[str, int]) -> None:
    """200 connections at once, each with bytes without end: a value, or no message."""
    begun = struct.pack("<BI", VALIDATE, MAGIC) + bytes([SET]) + _text(b"endless")
    starts = (begun + struct.pack("<Q", 8 * MIB - 64), begun + struct.pack("<Q", 1 << 50), b"\xff")
    data = bytes(MIB)
    with selectors.DefaultSelector() as selector:
        for number in count():
            while len(selector.get_map()) < 200:
                with suppress(OSError):
                    connection = socket.create_connection(address, timeout=5.0)
                    connection.sendall(starts[number % len(starts)])
                    connection.setblocking(False)
                    selector.register(connection, selectors.EVENT_WRITE)
            for key, _ in selector.select(1.0):
                connection = key.fileobj
                try:
                    connection.send(data)
                except OSError:
                    selector.unregister(connection)
                    connection.close()


FLOODS = {
    "endless_bytes": flood_with_endless_bytes,
    "large_keys": flood_with_large_keys,
    "many_keys": flood_with_many_keys,
    "appends": flood_with_appends,
    "head_keys": flood_with_head_keys,
    "connections": flood_with_connections,
    "half_messages": flood_with_half_messages,
    "garbage": flood_with_garbage,
}


@contextmanager
def running_flood(kind: str, address: tuple[str, int]) -> Iterator[None]:
    """Flood that address in another process."""
    command = [sys.executable, "-P", __file__, kind, address[0], str(address[1])]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield
        assert process.poll() is None, "the flood has ended"
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Flood until this process is killed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1 << 16), hard))
    kind, address = sys.argv[1], (sys.argv[2], int(sys.argv[3]))
    while True:
        with suppress(OSError):
            FLOODS[kind](address)
        time.sleep(RETRY_SECONDS)


if __name__ == "__main__":
    main()
