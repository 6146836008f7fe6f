"""Small images, written byte by byte."""

from __future__ import annotations

import struct
import zlib


def png(width=2, height=1):
    """A valid PNG in shades of grey."""
    rows = b"".join(b"\0" + bytes((x * 255) // width for x in range(width)) for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    )


def gif(width=2, height=1):
    """The beginning of a GIF."""
    return b"GIF89a" + struct.pack("<HH", width, height) + bytes(8)


def jpeg(width=2, height=1):
    """The beginning of a JPEG, with a segment before the one with its size."""
    size = struct.pack(">HBHHB", 11, 8, height, width, 1) + bytes(3)
    return b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0" + size


def webp(width=2, height=1):
    """The beginning of an extended WebP."""
    sizes = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF" + bytes(4) + b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + sizes
