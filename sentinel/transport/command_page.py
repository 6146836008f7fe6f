"""Requests: what a node's agent asks of the trainers there, in one page that all of them map.

Several ranks must do it at the same step, for a checkpoint may be a collective: so a request names
a beat in the future, and each rank writes one word, that it is ready, at a step before that beat.
Whoever comes to the beat acts if all are ready, and otherwise nobody does. Ranks whose steps wait
for each other agree on that: who is at the beat knows the others to be past the step before it, so
that none of the words can change any more. Whoever is ready in vain takes its word back, for those
that are further behind.

    bytes 0..15      magic, layout version
    bytes 64..71     number of the newest request, published last
    bytes 72..2047   checksum, salted with the number; size; since; beat; bits of the deeds; JSON
    bytes 2048..4095 a word for each local rank: which request it is ready for, and how it counts

Numbers are in the machine's own order and aligned, so that each is written in one piece. A request
that is half there, or half overwritten, has the wrong checksum, and is none.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

DEEDS = ("checkpoint", "stop", "call")
"""What may be asked: a checkpoint, a clean end, a call of the user's function. By their bits."""

SIZE = 4096
MAGIC, VERSION = b"SNTLRQST", 1
NUMBER = 8
"""Word of the newest request's number."""
MOST_RANKS = 256
_READY = SIZE // 8 - MOST_RANKS
_HEAD = struct.Struct("@8sQ")
_SEAL = struct.Struct("@II")
_TERMS = struct.Struct("@QQQ")
_SEAL_AT = 8 * (NUMBER + 1)
_BODY_AT = _SEAL_AT + _SEAL.size
_MOST_BYTES = 8 * _READY - _BODY_AT
_MOST_LETTERS = 120
"""Of each text; a letter takes up to six bytes of JSON."""
_ENDING = ".requests"


class RequestsError(ValueError):
    """A file that is no page of requests, and why."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `number` grows; `beat` is when to act, and from `since` on a rank may be ready.

    `case` is the name of the incident that leads the case, `cause` what is held to be behind it.
    """

    number: int
    since: int
    beat: int
    deeds: frozenset[str]
    case: str = ""
    cause: str = ""


class Requests:
    """The page, mapped: written by one agent, read by ranks, each of which has one word in it.

    Touching it in a forked child ends the child, since the mapping stays with the parent.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError, RequestsError naming the file."""
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size != SIZE:
                raise RequestsError(f"{path} is no page of requests.")
            self._map = mmap.mmap(descriptor, SIZE)
        finally:
            os.close(descriptor)
        self._map.madvise(mmap.MADV_DONTFORK)
        if _HEAD.unpack_from(self._map) != (MAGIC, VERSION):
            raise RequestsError(f"{path} is no page of requests that this sentinel knows.")
        self.words = memoryview(self._map).cast("Q")

    @property
    def number(self) -> int:
        """Of the newest request; 0 before the first."""
        return int(self.words[NUMBER])

    def write(self, request: Request) -> None:
        """Ask for that in place of whatever was asked before."""
        bits = sum(1 << DEEDS.index(deed) for deed in request.deeds)
        texts = [request.case[:_MOST_LETTERS], request.cause[:_MOST_LETTERS]]
        terms = _TERMS.pack(request.since, request.beat, bits)
        body = terms + json.dumps(texts).encode()
        seal = _SEAL.pack(_checksum(body, request.number), len(body))
        self._map[_SEAL_AT : _BODY_AT + len(body)] = seal + body
        self.words[NUMBER] = request.number

    def read(self) -> Request | None:
        """The newest request, if it is there as a whole."""
        number = self.number
        # Copied before it is checked: a writer that comes by cannot spoil it after.
        page = self._map[:]
        checksum, size = _SEAL.unpack_from(page, _SEAL_AT)
        body = page[_BODY_AT : _BODY_AT + min(size, _MOST_BYTES)]
        if not number or _checksum(body, number) != checksum or len(body) < _TERMS.size:
            return None
        since, beat, bits = _TERMS.unpack_from(body)
        case, cause = json.loads(body[_TERMS.size :])
        deeds = frozenset(deed for at, deed in enumerate(DEEDS) if bits >> at & 1)
        return Request(number, since, beat, deeds, case, cause)

    def be_ready(self, place: int, word: int) -> None:
        """Have the rank of that place on its node say that word; 0 if it is not ready."""
        self.words[_READY + place] = word

    def ready(self, word: int, ranks: int) -> bool:
        """Whether all of so many ranks say that word."""
        return all(said == word for said in self.words[_READY : _READY + ranks])

    def close(self) -> None:
        """Let go of the memory; the file stays."""
        self.words.release()
        self._map.close()


def page_beside(ring: Path, attempt: int) -> Path:
    """Where the page of the ranks of that attempt lies, beside their rings."""
    return ring.with_name(f"{attempt}{_ENDING}")


def made(path: Path) -> Requests:
    """The page at `path`, made if no rank has made it yet. Raises OSError, RequestsError."""
    if not path.exists():
        _make(path)
    return Requests(path)


def tidy(directory: Path) -> None:
    """Remove the pages of a directory whose rings are gone, and it too once nothing is left."""
    if next(directory.glob("*.ring"), None) is None:
        for page in directory.glob(f"*{_ENDING}"):
            page.unlink(missing_ok=True)
        # The run's own directory holds more than this, and stays.
        with suppress(OSError):
            directory.rmdir()


def _make(path: Path) -> None:
    """A page that appears under its name only when it is whole; another rank's serves as well."""
    unborn = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(unborn, flags, 0o600)
    try:
        # Reserved for good: writing to a page that a full tmpfs cannot give is SIGBUS.
        os.posix_fallocate(descriptor, 0, SIZE)
        os.pwrite(descriptor, _HEAD.pack(MAGIC, VERSION), 0)
        with suppress(FileExistsError):
            os.link(unborn, path)
    finally:
        os.close(descriptor)
        unborn.unlink()


def _checksum(body: bytes, number: int) -> int:
    return crc32(body, number & 0xFFFFFFFF)
