"""Images and histograms in a TensorBoard event, as TensorFlow 1, torch and TensorFlow 2 write them.

torch and TensorFlow 1 have a message of their own for each. TensorFlow 2 stores tensors: of an
image the texts width, height and bytes, of a histogram rows of left edge, right edge and count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from struct import error, unpack

from sentinel.readers.image_bytes import identify_image
from sentinel.readers.media import LoggedMedia, histogram_body
from sentinel.readers.protobuf import decode_text, fields, subfields, to_int64

_TIME, _STEP, _SUMMARY, _VALUE = 1, 2, 5, 1
_TAG, _IMAGE, _HISTOGRAM, _TENSOR = 1, 4, 5, 8
_ENCODED_IMAGE = 4
_MIN, _MAX, _LIMITS, _COUNTS = 1, 2, 6, 7
_TYPE, _CONTENT, _DOUBLES, _STRINGS = 1, 4, 6, 8
_DT_DOUBLE = 2

MIN_MEDIA_BYTES = 64
"""A shorter event holds neither."""
MAX_IMAGES_PER_EVENT = 16
MAX_HISTOGRAM_NUMBERS = 2**17
"""Numbers of one histogram that are decoded."""


def decode_media(payload: bytes, source: Path, offset: int) -> Iterator[LoggedMedia]:
    """The images and histograms of the event that is at `offset` of the file `source`.

    What is damaged is left out.
    """
    if len(payload) < MIN_MEDIA_BYTES:
        return
    try:
        step, time, entries = _decode_event(payload)
        for entry in entries:
            value = _decode_value(entry)
            if value.histogram:
                yield LoggedMedia(value.tag, step, time, "histogram", body=value.histogram)
            for at, image in enumerate(value.images):
                name = f"{value.tag}/{at}" if at else value.tag
                begin = offset + payload.index(image)
                yield LoggedMedia(name, step, time, "image", source, begin, len(image))
    except (ValueError, error):
        return


def _decode_event(payload: bytes) -> tuple[int, float, list[int | bytes]]:
    """Step, time, and the values of the summary."""
    step, time, entries = 0, 0.0, list[int | bytes]()
    for number, content in fields(payload):
        if number == _TIME and isinstance(content, bytes):
            (time,) = unpack("<d", content)
        elif number == _STEP and isinstance(content, int):
            step = to_int64(content)
        elif number == _SUMMARY:
            entries += (entry for number, entry in subfields(content) if number == _VALUE)
    return step, time, entries


@dataclass
class _Value:
    """The parts of an entry that hold a tag, a histogram or images."""

    tag: str = ""
    histogram: str = ""
    images: list[bytes] = field(default_factory=list)


def _decode_value(entry: int | bytes) -> _Value:
    value = _Value()
    for number, content in subfields(entry):
        if number == _TAG:
            value.tag = decode_text(content)
        elif number == _IMAGE:
            value.images += (
                part
                for number, part in subfields(content)
                if number == _ENCODED_IMAGE and isinstance(part, bytes)
            )
        elif number == _HISTOGRAM:
            value.histogram = _decode_histogram(content)
        elif number == _TENSOR:
            _decode_tensor(content, value)
    value.images = [image for image in value.images if identify_image(image) is not None]
    del value.images[MAX_IMAGES_PER_EVENT:]
    return value


def _decode_histogram(content: int | bytes) -> str:
    low = high = 0.0
    limits: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    for number, part in subfields(content):
        if not isinstance(part, bytes):
            continue
        if number == _MIN:
            (low,) = unpack("<d", part)
        elif number == _MAX:
            (high,) = unpack("<d", part)
        elif number == _LIMITS:
            limits += _doubles(part)
        elif number == _COUNTS:
            counts += _doubles(part)
    # The first bin has no left edge, and the outer edges may be far from any value.
    edges = [low, *(min(max(limit, low), high) for limit in limits)]
    return histogram_body(edges, counts)


def _decode_tensor(content: int | bytes, value: _Value) -> None:
    kind, numbers, texts = 0, b"", list[bytes]()
    for number, part in subfields(content):
        if number == _TYPE and isinstance(part, int):
            kind = part
        elif number in (_CONTENT, _DOUBLES) and isinstance(part, bytes):
            numbers = part
        elif number == _STRINGS and isinstance(part, bytes):
            texts.append(part)
    value.images += texts
    if kind == _DT_DOUBLE and len(numbers) >= 24 and len(numbers) % 24 == 0:
        rows = _doubles(numbers)
        value.histogram = histogram_body([*rows[::3], rows[-2]], rows[2::3])


def _doubles(part: bytes) -> tuple[float, ...]:
    count = min(len(part) // 8, MAX_HISTOGRAM_NUMBERS)
    return unpack(f"<{count}d", part[: 8 * count])
