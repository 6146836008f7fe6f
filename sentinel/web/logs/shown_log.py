"""A log in the list, as the parts that search, import and show it know it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from threading import Condition
from time import monotonic

from sentinel.readers.log_folder import LogRun
from sentinel.store.imports.log_cache import CacheEntry
from sentinel.store.imports.log_import import SETTLED_SECONDS
from sentinel.store.run_summary import RunEntry


@dataclass(eq=False)
class ShownLog:
    """A log in the list. Its fields are set while the lock of `Changes` is held."""

    log: LogRun
    cache: CacheEntry
    last_written: float = 0.0
    entry: RunEntry | None = None
    summary_of: object = None
    """The import that the entry shows; None if there may be a newer one."""
    ended_imports: int = 0
    """Processes that imported it and have ended."""
    signature: str = ""
    examined_at: float = float("-inf")
    viewed_at: float = float("-inf")
    failed: str = ""
    """Signature of the files with which the importing process broke off."""
    background_at: float = float("-inf")
    is_queued: bool = False
    """Whether it is among the logs that are imported without a viewer."""
    note_mark: int = 0
    """When the note about it was written, in nanoseconds; 0 without one."""

    def is_growing(self, now: float) -> bool:
        """Whether it was written a short time before `now`, in seconds since the epoch."""
        return now - self.last_written < SETTLED_SECONDS


def newest_first(logs: Iterable[ShownLog]) -> list[ShownLog]:
    """The logs in the order in which they were written."""
    return sorted(logs, key=lambda each: each.last_written, reverse=True)


class Changes:
    """The lock of what threads share, and a count of changes for which threads wait."""

    def __init__(self) -> None:
        self.lock = Condition()
        self.is_stopped = False
        self.count = 0

    def note(self) -> None:
        """Something has changed."""
        with self.lock:
            self.count += 1
            self.lock.notify_all()

    def stop(self) -> None:
        """End every wait, now and later."""
        with self.lock:
            self.is_stopped = True
            self.lock.notify_all()

    def wait(self, known: int, seconds: float) -> None:
        """Wait for a change after that of the count `known`, for at most so long."""
        until = monotonic() + seconds
        with self.lock:
            while not self.is_stopped and self.count == known and (left := until - monotonic()) > 0:
                self.lock.wait(left)
