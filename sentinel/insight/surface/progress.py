"""How far a loss surface is, shown while it is computed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from sentinel.insight.surface.sampling import SampledSurface
from sentinel.model.quantity_text import format_duration

DELAY_SECONDS = 2.0
"""What takes less shows nothing."""


@dataclass(frozen=True, slots=True)
class SurfaceProgress:
    """What a function that is given as `progress` gets, first with 0 evaluations.

    `seconds_left` is an estimate, for all ranks together. `surface` is the coarse surface so far.
    """

    evaluations: int
    max_evaluations: int
    seconds: float
    seconds_left: float
    surface: SampledSurface | None = None


class ShownProgress:
    """Shows progress: "auto" on standard error, by calling a function, or None for not at all.

    Times are in seconds. Raises TypeError if `progress` is none of these.
    """

    def __init__(
        self, progress: Any, budget: int, seconds_each: float, seconds_after: float, ranks: int
    ) -> None:
        if progress is not None and progress != "auto" and not callable(progress):
            raise TypeError(f'`progress` must be "auto", a function or None, not {progress!r}.')
        self._function: Callable[[SurfaceProgress], None] | None = None
        if callable(progress):
            self._function = progress
        self._budget, self._after, self._ranks = budget, seconds_after, ranks
        self._estimate = budget * seconds_each + seconds_after
        self._is_shown = progress == "auto" and self._estimate > DELAY_SECONDS
        self._bar: Any = None
        self._done = 0
        self.surface: SampledSurface | None = None
        """The newest level; None before the first."""
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        self._call()
        if self._is_shown:
            text = f"Loss surface: up to {self._budget} evaluations on {self._places}, "
            sys.stderr.write(f"{text}about {format_duration(self._estimate, parts=1)}.\n")
            self._bar = _make_bar(self._budget)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar[0].stop()

    def add(self, points: int) -> None:
        """So many points have been evaluated."""
        self._done += points
        if self._bar is not None:
            self._bar[0].update(self._bar[1], completed=self._done)
        self._call()

    def show(self, surface: SampledSurface) -> None:
        """A level of the surface is there."""
        self.surface = surface
        self._call()

    @property
    def _places(self) -> str:
        return "1 rank" if self._ranks == 1 else f"{self._ranks} ranks"

    def _call(self) -> None:
        if self._function is None:
            return
        seconds = time.monotonic() - self._started
        left = self._estimate
        if self._done:
            left = seconds / self._done * max(self._budget - self._done, 0) + self._after
        self._function(SurfaceProgress(self._done, self._budget, seconds, left, self.surface))


def _make_bar(budget: int) -> tuple[Any, Any] | None:
    """A bar on standard error and its task; None if that is no terminal."""
    from rich.console import Console  # noqa: PLC0415 - slow to import
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        return None
    columns = (TextColumn("Loss surface"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task("", total=budget)
    bar.start()
    return bar, task
