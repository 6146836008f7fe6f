"""A progress bar on standard error for what takes longer than two seconds on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

DELAY_SECONDS = 2.0
"""What ends before shows no bar."""

_UPDATE_SECONDS = 0.1


class ProgressBar:
    """Shows `description`, a bar, a text, the time and the time left.

    When it ends, only what was printed above it remains. Nothing is shown if standard error is no
    terminal, so that output for programs is unchanged.
    """

    def __init__(
        self,
        description: str,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.description, self.clock = description, clock
        self._console = console
        self._started = self._updated = clock()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._is_terminal: bool | None = None
        self._unprinted: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    @property
    def is_due(self) -> bool:
        """Whether an update would show something."""
        now = self.clock()
        return now - self._started >= DELAY_SECONDS and now - self._updated >= _UPDATE_SECONDS

    def print(self, text: str) -> None:
        """Print a line above the bar, once that is shown."""
        if self._progress is None:
            self._unprinted.append(text)
        else:
            self._progress.console.print(text, markup=False, highlight=False)

    def update(self, fraction: float | None = None, text: str = "") -> None:
        """Show how far it is: `fraction` from 0 to 1, None if that is not known."""
        if not self.is_due:
            return
        self._updated = self.clock()
        if self._progress is None and not self._start():
            return
        if self._progress is not None and self._task is not None:
            values: dict[str, Any] = {"total": None if fraction is None else 1.0, "text": text}
            self._progress.update(self._task, completed=fraction or 0.0, **values)

    def _start(self) -> bool:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        if self._is_terminal is None:
            self._console = self._console or Console(stderr=True)
            self._is_terminal = self._console.is_terminal
        if not self._is_terminal:
            return False
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task(self.description, total=None, text="")
        self._progress.start()
        for each in self._unprinted:
            self.print(each)
        return True
