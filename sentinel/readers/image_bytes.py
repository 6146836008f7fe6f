"""Type and size of an image, from its bytes only: what a log states about them is not trusted.

PNG, JPEG, GIF and WebP are recognised. SVG is not: it can hold scripts.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from struct import error, unpack_from

MAX_IMAGE_BYTES = 2**23
MAX_IMAGE_PIXELS = 2**25
"""Pixels above which a browser is not asked to decode an image, whose file may be small."""

_JPEG_SIZE_MARKERS = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
"""Markers of the JPEG segments that begin with the size of the image."""
_MAX_JPEG_SEGMENTS = 1000


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """Content type, and width and height in pixels."""

    content_type: str
    width: int
    height: int


def identify_image(data: bytes) -> ImageInfo | None:
    """What the bytes are; None if they are no image that is shown, or too large a one."""
    if len(data) > MAX_IMAGE_BYTES:
        return None
    try:
        info = _identify(data)
    except (error, IndexError):
        return None
    if info is None or not 0 < info.width * info.height <= MAX_IMAGE_PIXELS:
        return None
    return info


def read_image(source: Path, offset: int, length: int) -> bytes:
    """These bytes of a file, which are an image. Raises OSError, and ValueError if they are none.

    The file may have changed since the log was read.
    """
    if not 0 < length <= MAX_IMAGE_BYTES or offset < 0:
        raise ValueError("the image is larger than is shown")
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    with os.fdopen(os.open(source, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{source} is not a file")
        file.seek(offset)
        data = file.read(length)
    if len(data) < length or identify_image(data) is None:
        raise ValueError(f"{source} holds no image there any more")
    return data


def _identify(data: bytes) -> ImageInfo | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
        return ImageInfo("image/png", *unpack_from(">II", data, 16))
    if data.startswith((b"GIF87a", b"GIF89a")):
        return ImageInfo("image/gif", *unpack_from("<HH", data, 6))
    if data.startswith(b"\xff\xd8\xff"):
        return _identify_jpeg(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _identify_webp(data)
    return None


def _identify_jpeg(data: bytes) -> ImageInfo | None:
    offset = 2
    for _ in range(_MAX_JPEG_SEGMENTS):
        if data[offset] != 0xFF:
            return None
        marker = data[offset + 1]
        if marker == 0xFF:
            # Fill bytes precede a marker.
            offset += 1
            continue
        if marker in _JPEG_SIZE_MARKERS:
            height, width = unpack_from(">HH", data, offset + 5)
            return ImageInfo("image/jpeg", width, height)
        (length,) = unpack_from(">H", data, offset + 2)
        offset += 2 + length
    return None


def _identify_webp(data: bytes) -> ImageInfo | None:
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    elif kind == b"VP8L" and data[20] == 0x2F:
        (bits,) = unpack_from("<I", data, 21)
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = (size & 0x3FFF for size in unpack_from("<HH", data, 26))
    else:
        return None
    return ImageInfo("image/webp", width, height)
