"""Layout: what stands where in a ring file.

One page of header, then `capacity` bytes of frames. Numbers are in the machine's own order, since
both ends are on one machine, and aligned, so that each is read and written in one piece.

    bytes 0..63      magic, layout version, capacity, pid and its start, creation, identity's length
    bytes 64..111    step, beat, time; seconds spent in the trainer; sequence number of the last
                     frame, and position behind it, which is published last
    bytes 128..151   outcome; errors of ours; beat of the newest backward pass that has begun
    bytes 256..511   one counter per drop reason
    bytes 1024..4095 identity as JSON

A frame is crc32 of its payload (salted with the sequence number), length of the payload, sequence
number, payload, filled up to 8 bytes. Positions only grow; a frame stands at its position modulo
the capacity and is never split: a marker, or less room than a frame's head, sends the reader on to
the start.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from functools import lru_cache

from sentinel.model.record import UNKNOWN_OUTCOME
from sentinel.transport.identity import Identity
from sentinel.transport.process import Process
from sentinel.transport.rendezvous import Rendezvous

RING_MAGIC = b"SNTLRING"
RING_VERSION = 1
HEADER_SIZE = 4096
STATIC_STRUCT = struct.Struct("@8sQQQQdQ")
PROGRESS_STRUCT = struct.Struct("@qqddQQ")
FRAME_HEADER = struct.Struct("@IIQ")
PROGRESS_OFFSET = 64
IDENTITY_OFFSET = 1024
WRAP_MARKER = 0xFFFFFFFF
WORD_SEQUENCE, WORD_POSITION = 12, 13
WORD_OUTCOME, WORD_ERRORS, WORD_BACKWARD_STEP_INDEX, WORD_DROPS = 16, 17, 18, 32

DROP_REASONS = (
    "type",
    "shape",
    "key",
    "range",
    "too_many_names",
    "too_large",
    "pending",
    "busy",
    "event",
    "error",
    "behind",
)
"""Why a value, or a record, was refused inside the trainer: not a number; not exactly one element;
a name that is not a short text; an integer beyond a float; more names than are kept; a record
beyond what a frame may hold; device values that never became ready in time; logged while another
thread was logging and the side queue was full; an event nobody knows; an error of ours; more than a
collective had room for."""

MAX_CLIENT_ERRORS = 20
"""Errors of ours after which the hook switches itself off."""

OUTCOMES = ("running", "finished", "exception", "exit", "interrupted")
"""How a rank ended, as far as it could still say; `running` where it could not."""


NORMAL_OUTCOMES = frozenset({"finished", "interrupted"})
"""Outcomes of a rank of which nobody needs to be told."""


@dataclass(frozen=True, slots=True)
class RingHeader:
    """What a ring says of itself and its writer.

    `last_step`, `last_beat` and `last_time` (seconds since the epoch) are of the last step the
    writer took; before the first, zeros and the time of the ring's creation. `begun` is the beat of
    the newest backward pass that has begun, 0 where none was seen. `overhead_ns` is what
    our code cost the training thread so far, in nanoseconds. `drops` counts refused values, in the
    order of `DROP_REASONS`.
    """

    process: Process
    identity: Identity
    capacity: int
    created_at: float
    position: int
    sequence: int
    last_step: int
    last_step_index: int
    last_time: float
    backward_step_index: int
    outcome: str
    overhead_ns: int
    errors: int
    drop_counts: tuple[int, ...]


def pack_header(identity: Identity, process: Process, capacity: int, created_at: float) -> bytes:
    """Header of a new ring."""
    text = json.dumps(asdict(identity)).encode()[: HEADER_SIZE - IDENTITY_OFFSET]
    page = bytearray(HEADER_SIZE)
    STATIC_STRUCT.pack_into(
        page,
        0,
        RING_MAGIC,
        RING_VERSION,
        capacity,
        process.pid,
        process.start_ticks,
        created_at,
        len(text),
    )
    PROGRESS_STRUCT.pack_into(page, PROGRESS_OFFSET, 0, 0, created_at, 0.0, 0, 0)
    page[IDENTITY_OFFSET : IDENTITY_OFFSET + len(text)] = text
    return bytes(page)


def parse_header(page: bytes) -> RingHeader:
    """Header from a copy of the first page. Raises ValueError saying what is wrong with it."""
    if len(page) < HEADER_SIZE or page[: len(RING_MAGIC)] != RING_MAGIC:
        raise ValueError("is not a ring of sentinel")
    _, version, capacity, pid, started, created, length = STATIC_STRUCT.unpack_from(page, 0)
    if version != RING_VERSION:
        raise ValueError(f"has ring layout {version}, this sentinel reads {RING_VERSION}")
    words = memoryview(page).cast("Q")
    outcome = words[WORD_OUTCOME]
    step, beat, time, spent, sequence, position = PROGRESS_STRUCT.unpack_from(page, PROGRESS_OFFSET)
    try:
        identity = _parse_identity(page[IDENTITY_OFFSET : IDENTITY_OFFSET + length])
    except (ValueError, TypeError) as error:
        raise ValueError("has an unreadable identity") from error
    return RingHeader(
        process=Process(pid, started),
        identity=identity,
        capacity=capacity,
        created_at=created,
        position=position,
        sequence=sequence,
        last_step=step,
        last_step_index=beat,
        last_time=time,
        backward_step_index=words[WORD_BACKWARD_STEP_INDEX],
        outcome=OUTCOMES[outcome] if outcome < len(OUTCOMES) else UNKNOWN_OUTCOME,
        overhead_ns=int(spent * 1e9),
        errors=words[WORD_ERRORS],
        drop_counts=tuple(words[WORD_DROPS : WORD_DROPS + len(DROP_REASONS)]),
    )


# It is asked of every ring many times a second, and never changes.
@lru_cache(maxsize=1024)
def _parse_identity(text: bytes) -> Identity:
    told = json.loads(text)
    return Identity(**{**told, "meeting": Rendezvous(**told.get("meeting", {}))})
