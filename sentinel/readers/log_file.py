"""Opens the file of a log: gzip is decompressed, and UTF-16 is converted to UTF-8.

A pipe, a device, another compression, or UTF-16 without a byte order mark is refused with the
reason and the remedy.
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import stat
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

GZIP_SUFFIX = ".gz"

MAX_DECOMPRESSED_BYTES = 2**32
MAX_COMPRESSION_RATIO = 200
"""Most decompressed bytes for each byte of the file; gzip reaches 1,028."""
MIN_DECOMPRESSED_BYTES = 2**24
"""Read of any compressed file, however small it is."""

_GZIP_MAGIC = b"\x1f\x8b"
_COMPRESSIONS = {
    _GZIP_MAGIC: ("gzip", "gunzip -k"),
    b"BZh": ("bzip2", "bunzip2 -k"),
    b"\xfd7zXZ\x00": ("xz", "unxz -k"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
    b"\x04\x22\x4d\x18": ("lz4", "unlz4 -k"),
    b"\x1f\x9d": ("compress", "gunzip -k"),
    b"PK\x03\x04": ("zip", "unzip"),
    b"7z\xbc\xaf\x27\x1c": ("7z", "7z x"),
}
"""First bytes of compressed files: the name of the compression, and the command that undoes it."""

_ENCODINGS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Encodings by byte order mark. That of UTF-16 is the beginning of one of UTF-32."""

_HOLE = bytes(16)
_TAR_MAGIC, _TAR_MAGIC_OFFSET = b"ustar", 257
_TESTED_CHARACTERS = 32
"""Characters at the start of a file that show whether it is UTF-16."""


class DamagedFileError(ValueError):
    """The compressed data end early or are damaged; what precedes the damage was returned."""


def read_error_text(error: OSError | ValueError) -> str:
    """Why a log cannot be read, without its path."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def open_log_file(path: Path, *, is_live: bool = False) -> io.BufferedReader:
    """The bytes of a log; of a text in the encodings above, as UTF-8.

    Raises OSError, and ValueError with the remedy. Reading compressed data may raise
    DamagedFileError, and ValueError beyond the limits above. A live log has to be a file that is
    read as it is, since a position in it is one in the file. NUL bytes at its start are skipped:
    where a log was truncated, a writer that goes on at its former position leaves them.
    """
    file = _open_regular(path)
    try:
        if file.peek().startswith(_GZIP_MAGIC):
            _check_followed("compressed with gzip", is_live=is_live)
            file = io.BufferedReader(_GzipBytes(file))
        head = file.peek()
        _check_head(head, path)
        if head.startswith(_HOLE):
            file.seek(_hole_end(file))
        if encoding := next((e for mark, e in _ENCODINGS.items() if head.startswith(mark)), ""):
            _check_followed(f"a text in {encoding.upper()}", is_live=is_live)
            file = io.BufferedReader(_Utf8Bytes(file, encoding))
    except BaseException:
        file.close()
        raise
    return file


def open_binary_log(path: Path) -> io.BufferedReader:
    """The bytes of a log in a binary format. Raises OSError, and ValueError with the remedy."""
    file = _open_regular(path)
    try:
        _check_head(file.peek(), path)
    except BaseException:
        file.close()
        raise
    return file


def log_stem(path: Path) -> str:
    """The name of a log without the suffixes of its format and compression.

    >>> log_stem(Path("runs/trainer_log.jsonl.gz"))
    'trainer_log'
    """
    return uncompressed_name(path).stem


def uncompressed_name(path: Path) -> Path:
    """The path without the suffix of gzip."""
    return path.with_suffix("") if path.suffix == GZIP_SUFFIX else path


def _open_regular(path: Path) -> io.BufferedReader:
    # Opening a pipe waits for its writer, and closing it again stops the writer.
    _check_regular(path.stat().st_mode, path)
    # The path may have become a pipe since.
    file = open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")  # noqa: PTH123, SIM115
    try:
        _check_regular(os.fstat(file.fileno()).st_mode, path)
    except BaseException:
        file.close()
        raise
    return file


def _check_regular(mode: int, path: Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{path} is a directory")
    if stat.S_ISFIFO(mode):
        raise ValueError(
            "it is a pipe, which can be read only once; write it to a file first "
            f"(cat {path} > log.jsonl), and give that file"
        )
    if not stat.S_ISREG(mode):
        kind = "socket" if stat.S_ISSOCK(mode) else "device"
        raise ValueError(f"it is a {kind}; give the file that the trainer writes")


def _check_head(head: bytes, path: Path) -> None:
    """Raises ValueError if the first bytes are of a compression or encoding that is not read."""
    for magic, (name, command) in _COMPRESSIONS.items():
        if head.startswith(magic):
            raise ValueError(
                f"it is compressed with {name}; decompress it first ({command} {path.name})"
            )
    if head[_TAR_MAGIC_OFFSET:].startswith(_TAR_MAGIC):
        raise ValueError(f"it is a tar archive; extract it first (tar -xf {path.name})")
    first, second = head[: 2 * _TESTED_CHARACTERS : 2], head[1 : 2 * _TESTED_CHARACTERS : 2]
    for characters, others, encoding in ((first, second, "UTF-16LE"), (second, first, "UTF-16BE")):
        if len(others) > 1 and not any(others) and all(0 < each < 128 for each in characters):
            raise ValueError(
                f"it is {encoding} without a byte order mark, which is not read; convert it first "
                f"(iconv -f {encoding} -t UTF-8 {path.name} > log.utf8)"
            )


def _hole_end(file: io.BufferedReader) -> int:
    """The position of the first byte that is not NUL; that of the end if there is none."""
    descriptor, position = file.fileno(), 0
    # Passes over what takes no space on the disk without reading it.
    buffered = os.lseek(descriptor, 0, os.SEEK_CUR)
    with suppress(OSError):
        position = os.lseek(descriptor, 0, os.SEEK_DATA)
    os.lseek(descriptor, buffered, os.SEEK_SET)
    file.seek(position)
    while block := file.read(io.DEFAULT_BUFFER_SIZE):
        if text := block.lstrip(b"\0"):
            return position + len(block) - len(text)
        position += len(block)
    return position


def _check_followed(kind: str, *, is_live: bool) -> None:
    if is_live:
        raise ValueError(
            f"it is {kind}, which cannot be followed as it grows; "
            "evaluate it with `sentinel replay`, or follow the file that the trainer writes"
        )


class _GzipBytes(io.RawIOBase):
    """The decompressed bytes of a gzip file, up to the limits of this module."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        size = os.fstat(file.fileno()).st_size
        self._limit = max(MIN_DECOMPRESSED_BYTES, MAX_COMPRESSION_RATIO * size)
        self._limit = self._left = min(MAX_DECOMPRESSED_BYTES, self._limit)
        self._gzip = gzip.GzipFile(fileobj=file)
        self._damage, self._is_empty = "", True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, unless the data end."""
        view, used = memoryview(buffer), 0
        while used < len(view) and not self._damage:
            try:
                data = self._gzip.read1(len(view) - used)
            except EOFError:
                self._damage = "its compressed data end early"
            except (OSError, zlib.error):
                self._damage = "its compressed data are damaged"
            else:
                if not data:
                    break
                view[used : used + len(data)] = data
                used, self._is_empty = used + len(data), False
        self._left -= used
        if self._left < 0:
            raise ValueError(
                f"it decompresses to more than {self._limit / 2**20:,.0f} MiB, the limit for its "
                "size; if you trust it, decompress it first (gunzip -k)"
            )
        if self._damage and not used:
            rest = ", before the first record" if self._is_empty else "; what precedes is read"
            raise DamagedFileError(self._damage + rest)
        return used

    def close(self) -> None:
        self._file.close()
        super().close()


class _Utf8Bytes(io.RawIOBase):
    """The bytes of a text in another encoding, as UTF-8."""

    def __init__(self, file: io.BufferedReader, encoding: str) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        # Two bytes of UTF-16 are at most three of UTF-8.
        limit = max(1, len(buffer) // 2)
        converted = b""
        while not converted:
            data = self._file.read1(limit)
            converted = self._decoder.decode(data, final=not data).encode()
            if not data:
                break
        buffer[: len(converted)] = converted
        return len(converted)

    def close(self) -> None:
        self._file.close()
        super().close()
