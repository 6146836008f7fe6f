"""Agreement of all ranks on a command: each reports that it is ready; at its step all act, or none.

The ranks of one node use the ready tokens of their command page, see `transport.command_page`.
Those of several nodes use the store of the training's process group, and only for a command that
is under way: each rank counts itself there, and the first one at the step stores the decision for
all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol
from zlib import crc32

from sentinel.client.process_group import default_store, process_group
from sentinel.transport.command_page import Command, CommandPage

READY_TIMEOUT_SECONDS, DECISION_TIMEOUT_SECONDS = 2.0, 10.0
"""Longest waits for the store, which answers within milliseconds while its node runs."""
_ACT, _SKIP = "act", "skip"


class Agreement(Protocol):
    """What a rank does about one command.

    `word` is equal on ranks that are ready for the same command and count their steps alike; 0
    without one.
    """

    def set_ready(self, word: int, *, is_ready: bool) -> None:
        """Report whether this rank is ready, before the step at which the command is due."""

    def is_reached(self, word: int) -> bool:
        """Whether all ranks act, at that step."""


class PageAgreement:
    """The agreement of the `local_world_size` ranks that share a command page."""

    def __init__(self, page: CommandPage, local_rank: int, local_world_size: int) -> None:
        self._page, self._local_rank, self._size = page, local_rank, local_world_size

    def set_ready(self, word: int, *, is_ready: bool) -> None:
        """Set or clear the ready token of this rank."""
        self._page.set_ready(self._local_rank, word if is_ready else 0)

    def is_reached(self, word: int) -> bool:
        """Whether every rank has this token; otherwise this rank clears its own."""
        if word and self._page.all_ready(word, self._size):
            return True
        # A rank more than a step behind may still become ready, and must not act alone.
        self._page.set_ready(self._local_rank, 0)
        return False


class StoreAgreement:
    """The agreement of all `world_size` ranks of a process group, through its store.

    A rank that cannot reach the store in time takes no action. The others may act then; their node
    has lost its connection to this one.
    """

    def __init__(self, command: Command, world_size: int) -> None:
        identity = (*command[:3], sorted(command.actions), command.case)
        self._key = f"sentinel/command/{command.number}/{crc32(repr(identity).encode()):08x}"
        self._world_size = world_size
        self._store: Any = None
        self._is_counted = self._was_counted = False

    def set_ready(self, word: int, *, is_ready: bool) -> None:
        """Count this rank among those that are ready, or take it back."""
        if is_ready == self._is_counted:
            return
        self._is_counted, self._was_counted = is_ready, True
        self._call(
            lambda store: store.add(f"{self._key}/{word}", 1 if is_ready else -1),
            READY_TIMEOUT_SECONDS,
        )

    def is_reached(self, word: int) -> bool:
        """Whether all ranks were counted when the first of them reached the step."""
        # Without this rank no other one can count all.
        return self._was_counted and bool(
            self._call(lambda store: self._decide(store, word), DECISION_TIMEOUT_SECONDS)
        )

    def _decide(self, store: Any, word: int) -> bool:
        ready_count = store.add(f"{self._key}/{word}", 0)
        decision = _ACT if ready_count >= self._world_size else _SKIP
        # Stores the decision if there is none; returns the stored one.
        stored = store.compare_set(f"{self._key}/decision", "", decision)
        return bytes(stored) == _ACT.encode()

    def _call(self, operation: Callable[[Any], object], timeout: float) -> object:
        """The result of an operation on the store; None if it fails, or takes too long.

        A call on a store that is cut off may never return, and must not stop the training.
        """
        results: list[object] = []

        def run() -> None:
            try:
                self._store = self._store or _connect()
                results.append(operation(self._store))
            except (RuntimeError, ValueError, OSError, AttributeError, TypeError):
                # The store is gone, there is none, or this torch has another one.
                pass

        thread = threading.Thread(target=run, name="sentinel-agreement", daemon=True)
        thread.start()
        thread.join(timeout)
        return results[0] if results else None


def _connect() -> Any:
    """A connection of its own to the store of the process group, which takes torch 2.8 or newer."""
    group = process_group()
    if group is None:
        raise ValueError("no process group")
    # Not the store of the training: a call that hangs would hold its lock.
    return default_store(group).clone()
