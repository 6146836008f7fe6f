"""State of the storage of an agent: whether what it stores is complete, and lasts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sentinel.model.quantity_text import format_time

OK, MEMORY, REPLACED = "ok", "memory", "replaced"
STORAGE_MODES = (OK, MEMORY, REPLACED)


@dataclass(frozen=True, slots=True)
class StorageState:
    """How the agent stores the run; `since` is in epoch seconds, 0 if the mode is `ok`.

    Mode `memory`: the run directory cannot be used, and `reason` is why; the data is in `folder`,
    of the runtime directory. Mode `replaced`: the
    database could not be read; it is kept as `set_aside`, and a new one was begun. `recovered` is
    what of it is in the new one. `number` counts the times at which the storage became worse,
    `repeats` how often a database was replaced soon after the last one was.
    """

    mode: str = OK
    reason: str = ""
    since: float = 0.0
    remedy: str = ""
    set_aside: str = ""
    recovered: str = ""
    number: int = 0
    repeats: int = 0
    folder: str = ""

    @property
    def is_degraded(self) -> bool:
        """Whether people should know of it."""
        return self.mode != OK

    @property
    def text(self) -> str:
        """What is wrong, since when and why; empty if nothing is.

        >>> StorageState("memory", "/home is full", 1_700_000_000.0, folder="/dev/shm/run").text
        '/home is full since 2023-11-14 22:13:20 UTC; the run is stored in /dev/shm/run.'
        """
        if self.mode == REPLACED:
            return (
                f"The database was replaced at {format_time(self.since)} ({self.reason})."
                f" Recovered: {self.recovered}."
            )
        if self.mode == MEMORY:
            place = f"; the run is stored in {self.folder}" if self.folder else ""
            return f"{self.reason} since {format_time(self.since)}{place}."
        return ""

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON."""
        return asdict(self) | {"text": self.text}
