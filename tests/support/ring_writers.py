"""A ring writer that is killed at a random time."""

import os
import random
import select
import signal
import struct
from pathlib import Path

from sentinel.transport.identity import Identity
from sentinel.transport.ring import (
    RingCursor,
    RingReader,
    RingWriter,
)

WRITER_IDENTITY = Identity("run", attempt=2, rank=3, host="here")


def killed_writer(path: Path) -> int:
    """Kill a child that writes a ring. Returns how many records it had acknowledged.

    Asserts that every acknowledged record can be read back.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        write_until_killed(path, write)
    os.close(write)
    acknowledged = b""
    while len(acknowledged) < 8:
        acknowledged += os.read(read, 65536)
    select.select([], [], [], random.uniform(0.0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while chunk := os.read(read, 65536):
        acknowledged += chunk
    os.close(read)
    (last,) = struct.unpack_from("Q", acknowledged, len(acknowledged) // 8 * 8 - 8)
    reader = RingReader(path)
    batch = reader.read(RingCursor())
    numbers = [struct.unpack_from("Q", payload)[0] for payload in batch.payloads]
    reader.close()
    path.unlink()
    assert (batch.lost_frames, batch.corrupt_frames) == (0, 0)
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= last
    return int(last)


def write_until_killed(path: Path, acknowledge: int) -> None:
    writer = RingWriter(path, WRITER_IDENTITY, 16 << 20)
    number = 0
    while True:
        number += 1
        writer.write(struct.pack("Q", number) + b"x" * (number % 300))
        os.write(acknowledge, struct.pack("Q", number))
