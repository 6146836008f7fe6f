"""Layout of a ring file.

One page of header, then `capacity` bytes of frames. Numbers are in native byte order, since both
ends run on one machine, and aligned, so that each is read and written in one piece.

    bytes 0..63      magic, layout version, capacity, pid and its start ticks, creation time,
                     length of the identity
    bytes 64..111    step, step index, time; seconds of overhead in the trainer; sequence number of
                     the last frame, and the position after it, which is published last
    bytes 128..167   outcome; client errors; step index of the newest backward pass; number of
                     signs of life outside steps; what the rank does outside steps
    bytes 256..511   one counter per drop reason
    bytes 1024..4095 identity as JSON

A frame is the crc32 of its payload (seeded with the sequence number), the payload's length, the
sequence number and the payload, padded to 8 bytes. Positions only grow; a frame is at its position
modulo the capacity and is never split: a wrap marker, or less space than a frame header, sends the
reader to the start.
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
RING_VERSION = 3
HEADER_SIZE = 4096
STATIC_STRUCT = struct.Struct("@8sQQQQdQ")
PROGRESS_STRUCT = struct.Struct("@qqddQQ")
FRAME_HEADER = struct.Struct("@IIQ")
PROGRESS_OFFSET = 64
IDENTITY_OFFSET = 1024
WRAP_MARKER = 0xFFFFFFFF
WORD_SEQUENCE, WORD_POSITION = 12, 13
WORD_OUTCOME, WORD_ERRORS, WORD_BACKWARD_STEP_INDEX, WORD_DROPS = 16, 17, 18, 32
WORD_ACTIVITY_COUNT, WORD_ACTIVITY = 19, 20

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
"""Why a value or record was dropped inside the trainer: not a number; not exactly one element; a
name that is not a short text; an integer too large for a float; more names than are tracked; a
record larger than a frame; device values that were not ready in time; logged while another thread
was logging and the side queue was full; an unknown event; a client error; more data than a
collective has space for."""

MAX_CLIENT_ERRORS = 20
"""Client errors after which the client disables itself."""

OUTCOMES = ("running", "finished", "exception", "exit", "interrupted")
"""How a rank ended, as far as it could record it; `running` if it could not."""

ACTIVITIES = ("", "evaluation", "save", "load")
"""What a rank does outside steps, as the client notices by itself: "" is nothing known."""

NORMAL_OUTCOMES = frozenset({"finished", "interrupted"})
"""Outcomes that are not failures."""


_STATE_STRUCT = struct.Struct(
    f"{PROGRESS_STRUCT.format}{8 * (WORD_OUTCOME - WORD_POSITION - 1)}x5Q"
    f"{8 * (WORD_DROPS - WORD_ACTIVITY - 1)}x{len(DROP_REASONS)}Q"
)
STATE_SLICE = slice(PROGRESS_OFFSET, PROGRESS_OFFSET + _STATE_STRUCT.size)
"""Bytes of the header that change while a rank runs: from the progress to the counters of drops."""


@dataclass(frozen=True, slots=True)
class RingHeader:
    """State of a ring and of its writer.

    `last_step`, `last_step_index` and `last_time` (seconds since the epoch) are of the writer's
    newest step; before the first step they are 0, 0 and the ring's creation time.
    `backward_step_index` is the step index of the newest backward pass, 0 before the first.
    `activity_count` counts signs of life outside steps, such as a fetched batch; `activity` is one
    of `ACTIVITIES`. `overhead_ns` is the total time that the client has cost the training thread,
    in nanoseconds.
    `drop_counts` counts dropped values in the order of `DROP_REASONS`.
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
    activity_count: int = 0
    activity: str = ""


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
    """Header from a copy of the first page. Raises ValueError with the reason."""
    if len(page) < HEADER_SIZE or page[: len(RING_MAGIC)] != RING_MAGIC:
        raise ValueError("is not a ring of sentinel")
    _, version, capacity, pid, start_ticks, created_at, length = STATIC_STRUCT.unpack_from(page, 0)
    if version != RING_VERSION:
        raise ValueError(f"has ring layout {version}, this sentinel reads {RING_VERSION}")
    try:
        identity = _parse_identity(page[IDENTITY_OFFSET : IDENTITY_OFFSET + length])
    except (ValueError, TypeError) as error:
        raise ValueError("has an unreadable identity") from error
    static = (Process(pid, start_ticks), identity, capacity, created_at)
    return _build_header(static, page[STATE_SLICE])


def update_header(header: RingHeader, state: bytes) -> RingHeader:
    """The header of the same ring, with a newer copy of the bytes at `STATE_SLICE`."""
    static = (header.process, header.identity, header.capacity, header.created_at)
    return _build_header(static, state)


def _build_header(static: tuple[Process, Identity, int, float], state: bytes) -> RingHeader:
    step, step_index, time, overhead, sequence, position, *words = _STATE_STRUCT.unpack(state)
    outcome, errors, backward_step_index, activity_count, activity, *drops = words
    return RingHeader(
        *static,
        position=position,
        sequence=sequence,
        last_step=step,
        last_step_index=step_index,
        last_time=time,
        backward_step_index=backward_step_index,
        outcome=OUTCOMES[outcome] if outcome < len(OUTCOMES) else UNKNOWN_OUTCOME,
        overhead_ns=int(overhead * 1e9),
        errors=errors,
        drop_counts=tuple(drops),
        activity_count=activity_count,
        activity=ACTIVITIES[activity] if activity < len(ACTIVITIES) else "",
    )


# The ranks of a run are looked at again and again, each time with a new reader.
@lru_cache(maxsize=1024)
def _parse_identity(text: bytes) -> Identity:
    fields = json.loads(text)
    return Identity(**{**fields, "rendezvous": Rendezvous(**fields.get("rendezvous", {}))})
