"""`sentinel status --watch`: runs, shown again and again until Ctrl-C."""

from __future__ import annotations

import json as jsonlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sentinel.cli._run_table import Row, make_index, read_rows, run_lines, run_table

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

MAX_COMPLETED = 8
"""Runs without a summary that one look at live runs reads from their databases."""

_VOLATILE_KEYS = ("age", "last_written")
"""They change without any news."""


def watch_runs(filter_text: str, interval: float, *, is_all: bool, json: bool) -> None:
    """Show the runs with an agent, or all of them."""
    index = make_index()

    def read() -> list[Row]:
        rows = read_rows(filter_text, index, None if is_all else MAX_COMPLETED)
        return rows if is_all else [row for row in rows if row["is_live"]]

    def render(rows: list[Row], console: Console) -> RenderableType:
        return run_table(rows, console) if rows else "No run has an agent. Ctrl-C ends this."

    def changed_lines(rows: list[Row], shown: dict[str, Any]) -> Iterator[str]:
        news = [row for row in rows if _is_news(row, shown)]
        yield from map(jsonlib.dumps, news) if json else run_lines(news)

    _watch(read, render, changed_lines, interval, lambda _: False, json=json)


def watch_run(read: Callable[[], dict[str, Any]], interval: float, *, json: bool) -> None:
    """Show one run until it ends: its state, its open cases, and curves of its main signals."""
    from sentinel.cli.status import format_one

    def render(run: dict[str, Any], _: Console) -> RenderableType:
        from rich.text import Text

        return Text("\n".join(format_one(run)))

    def changed_lines(run: dict[str, Any], shown: dict[str, Any]) -> Iterator[str]:
        if json:
            yield from [jsonlib.dumps(run)] if _is_news(run, shown) else []
            return
        lines = list(format_one(run, has_curves=False))
        if _is_news({"run": run["run"], "lines": lines}, shown):
            yield from lines

    _watch(read, render, changed_lines, interval, lambda run: not run["is_live"], json=json)


def _watch(  # noqa: PLR0913 - what is read, and how it is shown
    read: Callable[[], Any],
    render: Callable[[Any, Console], RenderableType],
    changed_lines: Callable[[Any, dict[str, Any]], Iterator[str]],
    interval: float,
    is_over: Callable[[Any], bool],
    *,
    json: bool,
) -> None:
    """Until Ctrl-C or `is_over`: on a terminal the newest state, else lines about what changed."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with _ended_by_signals():
        if json or not console.is_terminal or console.is_dumb_terminal:
            shown: dict[str, Any] = {}
            while True:
                state = read()
                for line in changed_lines(state, shown):
                    print(line, flush=True)
                if is_over(state):
                    return
                time.sleep(interval)
        state = read()
        try:
            with Live(
                console=console,
                screen=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            ) as live:
                while not is_over(state):
                    live.update(render(state, console), refresh=True)
                    time.sleep(interval)
                    state = read()
        finally:
            # The screen of before is back: what was seen last stays.
            console.print(render(state, console))


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End without an error by Ctrl-C; SIGTERM also restores the terminal."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _is_news(row: dict[str, Any], shown: dict[str, Any]) -> bool:
    """Whether the run differs from what was shown of it; notes it as shown."""
    content = {key: value for key, value in row.items() if key not in _VOLATILE_KEYS}
    if shown.get(row["run"]) == content:
        return False
    shown[row["run"]] = content
    return True
