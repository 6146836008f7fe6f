"""Records a notification in an event file of TensorBoard, as a text summary.

An event file is a sequence of records: length, its checksum, a message `tensorflow.Event`, its
checksum. Checksums are CRC-32C, masked. The messages are written here field by field, since
TensorFlow and TensorBoard are heavy dependencies.
Source: tensorflow.org "TFRecord and tf.train.Example"; github.com/tensorflow/tensorboard,
`event.proto`, `summary.proto`, `tensor.proto`, `plugins/text/metadata.py`, read in November 2026.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from sentinel.notify.trackers.outcome import NotRecordedError
from sentinel.readers.crc32c import masked_crc32c

FOLDER = "sentinel"
"""Subdirectory with the texts, which TensorBoard shows as a run."""

FILE_PATTERN = "events.out.tfevents.*.sentinel"

_VARINT, _DOUBLE, _BYTES = 0, 1, 2
"""Wire types of protocol buffers."""

_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_STRING_TYPE, _TENSOR_CLASS = 7, 2
"""`DT_STRING` and `DATA_CLASS_TENSOR`."""

_MARKDOWN = str.maketrans({each: f"\\{each}" for each in "\\`*_{}[]<>()#+!|~"})


def record(call: dict[str, Any]) -> None:
    """Append the text, once for each delivery. Raises NotRecordedError."""
    directory = call["directory"] or call["runs"].get("tensorboard_dir", "")
    if not directory:
        raise NotRecordedError("no_run")
    # Not created: it would be a directory that is never read, as on another machine.
    if not Path(directory).is_dir():
        raise NotRecordedError("not_found")
    try:
        _append(Path(directory) / FOLDER, call)
    except OSError as error:
        raise NotRecordedError("unreachable", is_final=False) from error


def _append(folder: Path, call: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    files = sorted(folder.glob(FILE_PATTERN))
    path = files[-1] if files else folder / f"events.out.tfevents.{int(call['time'])}.sentinel"
    with path.open("r+b" if files else "x+b") as file:
        events = _complete_records(file.read())
        # A record that a killed process left incomplete would hide all that follow.
        file.truncate(file.seek(sum(map(len, events))))
        if any(f"({call['delivery_id'][:8]})".encode() in event for event in events):
            return
        version = frame(_double(1, call["time"]) + _bytes(3, b"brain.Event:2"))
        text = frame(text_event(call["subject"], _markdown(call), call["step"], call["time"]))
        file.write(text if events else version + text)


def _markdown(call: dict[str, Any]) -> str:
    """The text with every character of markup escaped, one line a paragraph."""
    lines = [f"**{call['title'].translate(_MARKDOWN)}**"]
    identifier = f"({call['delivery_id'][:8]})"
    for line in call["text"].removesuffix(identifier).splitlines():
        bullet, text = ("- ", line[2:]) if line.startswith("- ") else ("", line)
        lines.append(bullet + text.translate(_MARKDOWN))
    return "\n\n".join(lines) + identifier


def text_event(tag: str, text: str, step: int, time: float) -> bytes:
    """The message `Event` with one text summary; `time` in seconds since the epoch."""
    metadata = _bytes(1, _bytes(1, b"text")) + _varint(4, _TENSOR_CLASS)
    shape = _bytes(2, _varint(1, 1))
    tensor = _varint(1, _STRING_TYPE) + _bytes(2, shape) + _bytes(8, text.encode())
    value = _bytes(1, tag.encode()) + _bytes(9, metadata) + _bytes(8, tensor)
    return _double(1, time) + _varint(2, max(step, 0)) + _bytes(5, _bytes(1, value))


def frame(message: bytes) -> bytes:
    """The message as a record of the file."""
    length = struct.pack("<Q", len(message))
    return b"".join(
        (
            length,
            _CHECKSUM.pack(masked_crc32c(length)),
            message,
            _CHECKSUM.pack(masked_crc32c(message)),
        )
    )


def _complete_records(content: bytes) -> list[bytes]:
    """The records of a file up to the first that is incomplete or damaged."""
    records, offset = [], 0
    while offset + _HEADER.size <= len(content):
        length, _ = _HEADER.unpack_from(content, offset)
        end = offset + _HEADER.size + length + _CHECKSUM.size
        one = content[offset:end]
        if end > len(content) or frame(one[_HEADER.size : -_CHECKSUM.size]) != one:
            break
        records.append(one)
        offset = end
    return records


def _key(field: int, wire_type: int) -> bytes:
    return _base128(field << 3 | wire_type)


def _varint(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _base128(value)


def _double(field: int, value: float) -> bytes:
    return _key(field, _DOUBLE) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, _BYTES) + _base128(len(value)) + value


def _base128(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
