"""Command page: one page of shared memory in which a node's agent sends commands to its ranks.

All ranks must execute a command at the same step, since saving a checkpoint may be a collective.
A command therefore names a future step index, and each rank sets one word, its ready token, before
that step. A rank that reaches the step executes the command if all ranks are ready, and otherwise
skips it. Ranks whose steps wait for each other agree on the result: when one of them reaches the
step, all others have passed the step before it, so no token can change any more. A rank that was
ready for a skipped command clears its token, for ranks that are further behind. Ranks of several
nodes, each of which has a page of its own, agree through a store and leave the tokens at 0.

    bytes 0..15      magic, layout version
    bytes 16..23     number of firing incidents of the run, for measurements in the trainer
    bytes 24..31     1 if the ranks must not note the rows of their steps
    bytes 64..71     number of the newest command, published last
    bytes 72..2047   checksum, seeded with the number; size; step index from which ranks may be
                     ready; step index at which the command is due; action bits; JSON
    bytes 2048..4095 a ready token for each local rank: the command it is ready for, and how it
                     counts steps

Numbers are in native byte order and aligned, so that each is written in one piece. A command that
is partly written or partly overwritten has a wrong checksum and is ignored.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from sentinel.transport.mapped_file import create_atomically

ACTIONS = ("checkpoint", "stop", "call")
"""Save a checkpoint, stop the training, call the user's function. A bit number is an index here."""

PAGE_SIZE = 4096
PAGE_MAGIC, PAGE_VERSION = b"SNTLCMND", 1
INCIDENT_WORD = 2
"""Index of the word with the number of firing incidents."""
ROWS_OFF_WORD = 3
"""Index of the word that is 1 if no rows are to be noted."""
NUMBER_WORD = 8
"""Index of the word with the newest command's number."""
MAX_LOCAL_RANKS = 256
_FIRST_READY_WORD = PAGE_SIZE // 8 - MAX_LOCAL_RANKS
_PAGE_HEADER = struct.Struct("@8sQ")
_BODY_CHECK = struct.Struct("@II")
_BODY_HEADER = struct.Struct("@QQQ")
_BODY_CHECK_OFFSET = 8 * (NUMBER_WORD + 1)
_BODY_OFFSET = _BODY_CHECK_OFFSET + _BODY_CHECK.size
_MAX_BODY_BYTES = 8 * _FIRST_READY_WORD - _BODY_OFFSET
_MAX_TEXT_CHARS = 120
"""Limit for each text; one character takes up to six bytes of JSON."""
MAX_NUMBER = 1 << 62
"""Limit of the numbers of a command."""
_PAGE_SUFFIX = ".commands"


class CommandPageError(ValueError):
    """A file that is not a command page of this version."""


class Command(NamedTuple):
    """One command to the ranks of a node.

    `number` grows with each command. The command is due at `due_step_index`; from
    `ready_from_index` on a rank may be ready for it. `case` is the name of the incident that leads
    the case, `cause` the title of its most likely cause.
    """

    number: int
    ready_from_index: int
    due_step_index: int
    actions: frozenset[str]
    case: str = ""
    cause: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, for `from_json`."""
        return self._asdict() | {"actions": sorted(self.actions)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Command:
        """From a JSON object. Raises ValueError or LookupError for anything else."""
        number, first, due = numbers = [fields[name] for name in cls._fields[:3]]
        if not all(type(each) is int and 0 <= each < MAX_NUMBER for each in numbers):
            raise ValueError(f"No numbers of a command: {numbers}")
        case, cause = (str(fields[name])[:_MAX_TEXT_CHARS] for name in ("case", "cause"))
        actions = frozenset(fields["actions"]) & frozenset(ACTIONS)
        return cls(number, first, due, actions, case, cause)


class CommandPage:
    """A mapped command page: one agent writes commands, each rank writes its own ready token.

    The mapping is not inherited: an access in a forked child kills the child.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError, and CommandPageError with the path."""
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size != PAGE_SIZE:
                raise CommandPageError(f"{path} is not a command page.")
            self._map = mmap.mmap(descriptor, PAGE_SIZE)
        finally:
            os.close(descriptor)
        self._map.madvise(mmap.MADV_DONTFORK)
        if _PAGE_HEADER.unpack_from(self._map) != (PAGE_MAGIC, PAGE_VERSION):
            raise CommandPageError(f"{path} is not a command page of this version of sentinel.")
        self.words = memoryview(self._map).cast("Q")

    @property
    def latest_number(self) -> int:
        """Number of the newest command; 0 before the first."""
        return int(self.words[NUMBER_WORD])

    def write(self, command: Command) -> None:
        """Replace the current command."""
        bits = sum(1 << ACTIONS.index(action) for action in command.actions)
        texts = [command.case[:_MAX_TEXT_CHARS], command.cause[:_MAX_TEXT_CHARS]]
        numbers = _BODY_HEADER.pack(command.ready_from_index, command.due_step_index, bits)
        body = numbers + json.dumps(texts).encode()
        check = _BODY_CHECK.pack(_checksum(body, command.number), len(body))
        self._map[_BODY_CHECK_OFFSET : _BODY_OFFSET + len(body)] = check + body
        self.words[NUMBER_WORD] = command.number

    def read(self) -> Command | None:
        """The newest command, or None if there is none or it is incomplete."""
        number = self.latest_number
        # Copied before the check, so that a concurrent write cannot change it afterwards.
        page = self._map[:]
        checksum, size = _BODY_CHECK.unpack_from(page, _BODY_CHECK_OFFSET)
        body = page[_BODY_OFFSET : _BODY_OFFSET + min(size, _MAX_BODY_BYTES)]
        if not number or _checksum(body, number) != checksum or len(body) < _BODY_HEADER.size:
            return None
        ready_from_index, due_step_index, bits = _BODY_HEADER.unpack_from(body)
        case, cause = json.loads(body[_BODY_HEADER.size :])
        actions = frozenset(action for bit, action in enumerate(ACTIONS) if bits >> bit & 1)
        return Command(number, ready_from_index, due_step_index, actions, case, cause)

    def set_firing_incidents(self, count: int) -> None:
        """Publish how many incidents of the run are firing."""
        self.words[INCIDENT_WORD] = count

    def switch_rows_off(self) -> None:
        """Let the ranks note no rows from now on."""
        self.words[ROWS_OFF_WORD] = 1

    def set_ready(self, local_rank: int, token: int) -> None:
        """Set the ready token of a local rank; 0 if it is not ready."""
        self.words[_FIRST_READY_WORD + local_rank] = token

    def all_ready(self, token: int, local_world_size: int) -> bool:
        """Whether each of the first `local_world_size` ranks has that token."""
        tokens = self.words[_FIRST_READY_WORD : _FIRST_READY_WORD + local_world_size]
        return all(each == token for each in tokens)

    def close(self) -> None:
        """Release the mapping; the file stays."""
        self.words.release()
        self._map.close()


def command_page_path(ring: Path, attempt: int) -> Path:
    """Path of the command page for the ranks of an attempt, next to their rings."""
    return ring.with_name(f"{attempt}{_PAGE_SUFFIX}")


def open_or_create(path: Path) -> CommandPage:
    """The page at `path`, created if no rank has done so. Raises OSError, CommandPageError."""
    if not path.exists():
        # Another rank may create it at the same time; either page will do.
        with suppress(FileExistsError):
            create_atomically(path, PAGE_SIZE, _PAGE_HEADER.pack(PAGE_MAGIC, PAGE_VERSION)).close()
    return CommandPage(path)


def remove_orphan_pages(directory: Path) -> None:
    """Remove the pages of a directory without rings, and the directory itself if it is empty."""
    if next(directory.glob("*.ring"), None) is None:
        for page in directory.glob(f"*{_PAGE_SUFFIX}"):
            page.unlink(missing_ok=True)
        # A run directory holds other files and is not removed.
        with suppress(OSError):
            directory.rmdir()


def _checksum(body: bytes, number: int) -> int:
    return crc32(body, number & 0xFFFFFFFF)
