"""What is logged during a test: the interface of pytest's `caplog` that the tests use.

pytest's plug-in attaches two handlers to every logger that does not propagate, three times a test.
torch alone has 59 of them, so that this takes a twentieth of the time of the unit tests.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

FORMAT = logging.Formatter("%(levelname)-8s %(name)s:%(filename)s:%(lineno)d %(message)s")


class CapturedLogs(logging.Handler):
    """Holds the records that reach the root logger, to which it is attached once."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self._levels: dict[logging.Logger, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        # As formatters do: the arguments may change later.
        record.message = record.getMessage()
        self.records.append(record)

    @property
    def messages(self) -> list[str]:
        """The messages, without level and place."""
        return [record.message for record in self.records]

    @property
    def text(self) -> str:
        """One line for each record, and its traceback."""
        return "".join(f"{FORMAT.format(record)}\n" for record in self.records)

    def clear(self) -> None:
        """Forget the records."""
        self.records = []

    def set_level(self, level: int, logger: str | None = None) -> None:
        """Set the level of a logger, the root by default, until the end of the test."""
        found = logging.getLogger(logger)
        self._levels.setdefault(found, found.level)
        found.setLevel(level)

    @contextmanager
    def at_level(self, level: int, logger: str | None = None) -> Iterator[None]:
        """Set the level of a logger, the root by default, within a block."""
        found = logging.getLogger(logger)
        before = found.level
        found.setLevel(level)
        try:
            yield
        finally:
            found.setLevel(before)

    def restore_levels(self) -> None:
        """Undo `set_level`."""
        while self._levels:
            logger, level = self._levels.popitem()
            logger.setLevel(level)
