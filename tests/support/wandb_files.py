"""Records of a .wandb file, framed as the library frames them."""

from __future__ import annotations

import struct
import zlib

from support.event_files import field


def framed(*records, damage=()):
    """A file of these records as W&B writes it, some of whose first pieces are damaged."""
    data = bytearray(b":W&B\xe1\xbe\x00")
    for index, record in enumerate(records):
        left, begun = record, False
        while left or not begun:
            room = 2**15 - len(data) % 2**15
            if room < 7:
                data += bytes(room)
                continue
            part, left = left[: room - 7], left[room - 7 :]
            kind = {(False, False): 1, (False, True): 2, (True, True): 3, (True, False): 4}[
                begun, bool(left)
            ]
            body = bytes([kind]) + part
            told = zlib.crc32(body) ^ (index in damage and not begun)
            data += struct.pack("<IH", told, len(part)) + body
            begun = True
    return bytes(data)


def row(step, loss, pad=b""):
    items = [(b"_step", str(step)), (b"loss", str(loss)), (b"pad", '"' + "x" * len(pad) + '"')]
    said = (field(1, field(1, key) + field(16, value.encode())) for key, value in items)
    return field(2, b"".join(said))
