"""Records of a .wandb file, in the framing of the wandb package."""

from __future__ import annotations

import struct
import zlib

from support.event_files import field


def framed(*records, damage=()):
    """Content of a file with these records; `damage` lists those with a damaged first fragment."""
    data = bytearray(b":W&B\xe1\xbe\x00")
    for index, record in enumerate(records):
        left, started = record, False
        while left or not started:
            space = 2**15 - len(data) % 2**15
            if space < 7:
                data += bytes(space)
                continue
            part, left = left[: space - 7], left[space - 7 :]
            kind = {(False, False): 1, (False, True): 2, (True, True): 3, (True, False): 4}[
                started, bool(left)
            ]
            body = bytes([kind]) + part
            checksum = zlib.crc32(body) ^ (index in damage and not started)
            data += struct.pack("<IH", checksum, len(part)) + body
            started = True
    return bytes(data)


def row(step, loss, pad=b""):
    items = [(b"_step", str(step)), (b"loss", str(loss)), (b"pad", '"' + "x" * len(pad) + '"')]
    fields = (field(1, field(1, key) + field(16, value.encode())) for key, value in items)
    return field(2, b"".join(fields))
