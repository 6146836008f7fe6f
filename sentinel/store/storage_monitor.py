"""Collects the errors of the storage from all threads, and raises them in the agent's loop."""

from __future__ import annotations

import errno
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from sentinel.config.config_sources import ConfigError
from sentinel.model.storage_state import StorageState

_UNUSABLE_SQLITE_ERRORS = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")
_BUSY_SQLITE_ERRORS = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_INTERRUPT", "SQLITE_NOMEM")
_NOT_UTF_8 = "Could not decode to UTF-8"
_UNUSABLE_OS_ERRORS = frozenset(
    {errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ENOENT}
)


class FailureKind(Enum):
    """What a failure of the storage requires."""

    DAMAGED = "damaged"
    """The file cannot be read: it is set aside, and a new one begun."""
    UNUSABLE = "unusable"
    """The directory cannot be used: another one is used meanwhile."""


class StorageFailure(Exception):  # noqa: N818 - the agent is replaced; the process continues
    """The storage of the agent failed, and another agent with another storage must continue."""

    def __init__(self, kind: FailureKind, error: Exception) -> None:
        super().__init__(f"{kind.value}: {error}")
        self.kind, self.error = kind, error


class DamagedContentError(sqlite3.DatabaseError):
    """A stored value is not what was stored; the message does not quote it."""


@contextmanager
def reading_storage() -> Iterator[None]:
    """Raise DamagedContentError for an error of a decoder: the stored value is damaged."""
    try:
        yield
    except ConfigError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        message = f"a stored value cannot be decoded ({type(error).__name__})"
        raise DamagedContentError(message) from error


def is_json(value: str | bytes) -> bool:
    """Whether a stored text is JSON."""
    try:
        json.loads(value)
    except (ValueError, TypeError):
        return False
    return True


def classify(error: BaseException) -> FailureKind | None:
    """What an error of the storage requires; None if it is another error, or one that passes."""
    if isinstance(error, StorageFailure):
        return error.kind
    if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.ProgrammingError):
        name = str(getattr(error, "sqlite_errorname", None) or "")
        if name.startswith(_BUSY_SQLITE_ERRORS):
            return None
        if isinstance(error, sqlite3.OperationalError) and not name:
            # Of Python's module, not of SQLite.
            return FailureKind.DAMAGED if _NOT_UTF_8 in str(error) else None
        is_unusable = name.startswith(_UNUSABLE_SQLITE_ERRORS)
        return FailureKind.UNUSABLE if is_unusable else FailureKind.DAMAGED
    if isinstance(error, OSError) and error.errno in _UNUSABLE_OS_ERRORS:
        return FailureKind.UNUSABLE
    return None


@dataclass
class StorageMonitor:
    """The state of the storage, and its first failure that the loop has not handled yet.

    One for all agents of a process, one after the other. `report` is called from any thread,
    `check` from the agent's loop.
    """

    state: StorageState = field(default_factory=StorageState)
    is_in_memory: bool = False
    """Whether the agent works in shared memory."""
    reads_again_until: float = 0.0
    """Records up to this time (epoch seconds) are read again, since the positions were lost."""
    _failure: StorageFailure | None = field(default=None, init=False)

    def report(self, error: Exception) -> None:
        """Let `check` raise if the error is a failure of the storage."""
        kind = classify(error)
        # The first failure is the cause of others; assigning is atomic.
        if kind is not None and self._failure is None:
            self._failure = StorageFailure(kind, error)

    def request_move(self, failure: StorageFailure) -> None:
        """Let `check` raise, so that the next agent uses another directory."""
        if self._failure is None:
            self._failure = failure

    def check(self) -> None:
        """Raise the reported failure, if any."""
        if self._failure is not None:
            raise self._failure

    def pop_failure(self, *kinds: FailureKind) -> StorageFailure | None:
        """The reported failure if it is of one of these kinds; the caller handles it."""
        failure = self._failure
        if failure is None or failure.kind not in kinds:
            return None
        self._failure = None
        return failure
