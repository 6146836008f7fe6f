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

ACTIONS = ("checkpoint", "stop", "call")
"""What may be asked: a checkpoint, a clean end, a call of the user's function. By their bits."""

PAGE_SIZE = 4096
PAGE_MAGIC, PAGE_VERSION = b"SNTLRQST", 1
NUMBER_WORD = 8
"""Word of the newest request's number."""
MAX_LOCAL_RANKS = 256
_FIRST_READY_WORD = PAGE_SIZE // 8 - MAX_LOCAL_RANKS
_PAGE_HEADER = struct.Struct("@8sQ")
_BODY_CHECK = struct.Struct("@II")
_BODY_HEADER = struct.Struct("@QQQ")
_BODY_CHECK_OFFSET = 8 * (NUMBER_WORD + 1)
_BODY_OFFSET = _BODY_CHECK_OFFSET + _BODY_CHECK.size
_MAX_BODY_BYTES = 8 * _FIRST_READY_WORD - _BODY_OFFSET
_MAX_TEXT_CHARS = 120
"""Of each text; a letter takes up to six bytes of JSON."""
_PAGE_SUFFIX = ".requests"


class CommandPageError(ValueError):
    """A file that is no page of requests, and why."""


@dataclass(frozen=True, slots=True)
class Command:
    """One request. `number` grows; `beat` is when to act, and from `since` on a rank may be ready.

    `case` is the name of the incident that leads the case, `cause` what is held to be behind it.
    """

    number: int
    ready_from_index: int
    due_step_index: int
    actions: frozenset[str]
    case: str = ""
    cause: str = ""


class CommandPage:
    """The page, mapped: written by one agent, read by ranks, each of which has one word in it.

    Touching it in a forked child ends the child, since the mapping stays with the parent.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError, RequestsError naming the file."""
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size != PAGE_SIZE:
                raise CommandPageError(f"{path} is no page of requests.")
            self._map = mmap.mmap(descriptor, PAGE_SIZE)
        finally:
            os.close(descriptor)
        self._map.madvise(mmap.MADV_DONTFORK)
        if _PAGE_HEADER.unpack_from(self._map) != (PAGE_MAGIC, PAGE_VERSION):
            raise CommandPageError(f"{path} is no page of requests that this sentinel knows.")
        self.words = memoryview(self._map).cast("Q")

    @property
    def latest_number(self) -> int:
        """Of the newest request; 0 before the first."""
        return int(self.words[NUMBER_WORD])

    def write(self, command: Command) -> None:
        """Ask for that in place of whatever was asked before."""
        bits = sum(1 << ACTIONS.index(deed) for deed in command.actions)
        texts = [command.case[:_MAX_TEXT_CHARS], command.cause[:_MAX_TEXT_CHARS]]
        terms = _BODY_HEADER.pack(command.ready_from_index, command.due_step_index, bits)
        body = terms + json.dumps(texts).encode()
        seal = _BODY_CHECK.pack(_checksum(body, command.number), len(body))
        self._map[_BODY_CHECK_OFFSET : _BODY_OFFSET + len(body)] = seal + body
        self.words[NUMBER_WORD] = command.number

    def read(self) -> Command | None:
        """The newest request, if it is there as a whole."""
        number = self.latest_number
        # Copied before it is checked: a writer that comes by cannot spoil it after.
        page = self._map[:]
        checksum, size = _BODY_CHECK.unpack_from(page, _BODY_CHECK_OFFSET)
        body = page[_BODY_OFFSET : _BODY_OFFSET + min(size, _MAX_BODY_BYTES)]
        if not number or _checksum(body, number) != checksum or len(body) < _BODY_HEADER.size:
            return None
        since, beat, bits = _BODY_HEADER.unpack_from(body)
        case, cause = json.loads(body[_BODY_HEADER.size :])
        deeds = frozenset(deed for at, deed in enumerate(ACTIONS) if bits >> at & 1)
        return Command(number, since, beat, deeds, case, cause)

    def set_ready(self, local_rank: int, token: int) -> None:
        """Have the rank of that place on its node say that word; 0 if it is not ready."""
        self.words[_FIRST_READY_WORD + local_rank] = token

    def all_ready(self, token: int, local_world_size: int) -> bool:
        """Whether all of so many ranks say that word."""
        return all(
            said == token
            for said in self.words[_FIRST_READY_WORD : _FIRST_READY_WORD + local_world_size]
        )

    def close(self) -> None:
        """Let go of the memory; the file stays."""
        self.words.release()
        self._map.close()


def command_page_path(ring: Path, attempt: int) -> Path:
    """Where the page of the ranks of that attempt lies, beside their rings."""
    return ring.with_name(f"{attempt}{_PAGE_SUFFIX}")


def open_or_create(path: Path) -> CommandPage:
    """The page at `path`, made if no rank has made it yet. Raises OSError, RequestsError."""
    if not path.exists():
        _create_page(path)
    return CommandPage(path)


def remove_orphan_pages(directory: Path) -> None:
    """Remove the pages of a directory whose rings are gone, and it too once nothing is left."""
    if next(directory.glob("*.ring"), None) is None:
        for page in directory.glob(f"*{_PAGE_SUFFIX}"):
            page.unlink(missing_ok=True)
        # The run's own directory holds more than this, and stays.
        with suppress(OSError):
            directory.rmdir()


def _create_page(path: Path) -> None:
    """A page that appears under its name only when it is whole; another rank's serves as well."""
    unborn = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(unborn, flags, 0o600)
    try:
        # Reserved for good: writing to a page that a full tmpfs cannot give is SIGBUS.
        os.posix_fallocate(descriptor, 0, PAGE_SIZE)
        os.pwrite(descriptor, _PAGE_HEADER.pack(PAGE_MAGIC, PAGE_VERSION), 0)
        with suppress(FileExistsError):
            os.link(unborn, path)
    finally:
        os.close(descriptor)
        unborn.unlink()


def _checksum(body: bytes, number: int) -> int:
    return crc32(body, number & 0xFFFFFFFF)
