"""Telling: the demo as a person sees it, or, with `lines`, as a program reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sentinel.demo.course import FAULTS, Outcome
from sentinel.demo.delivery import Delivery

COLOURS = {"critical": "red", "warning": "yellow", "info": "blue"}
EVERY = 50
"""Steps between two lines of progress where there is no terminal to draw a bar on."""
SHOWN = {"loss": "loss", "kl_ref": "KL", "reward": "reward"}
_LIGHT = re.compile(r"^:\w+: ")
"""What Slack draws as a coloured dot."""


@dataclass
class Telling:
    """Prints to `console`; with `lines`, JSON and nothing else: one object per page, and a last."""

    lines: bool = False
    console: Console = field(default_factory=lambda: Console(highlight=False))

    def __post_init__(self) -> None:
        quiet = self.lines or not self.console.is_terminal
        columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
        self._bar = Progress(
            *columns, console=self.console, transient=True, disable=quiet, refresh_per_second=4
        )
        self._task = self._bar.add_task("starting 4 processes", total=None)
        self._told_at = 0
        self._faults = list(FAULTS)

    def __enter__(self) -> Telling:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """A sentence to the person; its markup is ours."""
        if not self.lines:
            self.console.print(text, soft_wrap=True)

    def arrived(self, item: Delivery | str) -> None:
        """A page came: in full by the webhook, in a line by Slack."""
        if isinstance(item, str):
            self.say(f"[dim]Slack got:[/] {escape(_LIGHT.sub('', item))}")
        elif self.lines:
            self._line({"type": "page", **asdict(item)})
        else:
            self.console.print(_panel(item))

    def progress(self, state: Mapping[str, Any]) -> None:
        """What the agent says of the run by now."""
        values = {name: signal["value"] for name, signal in state.get("signals", {}).items()}
        step = int(state.get("step") or 0)
        while self._faults and step >= self._faults[0].step:
            fault = self._faults.pop(0)
            self.say(f"[bold]Step {fault.step}: {fault.mistake}.[/]")
        told = "  ".join(f"{SHOWN[key]} {values[key]:.3g}" for key in SHOWN if key in values)
        text = f"step {step}  {told}"
        total = float(state.get("about", {}).get("max_steps", 0)) or None
        done = values.get("optimizer_steps", 0.0)
        self._bar.update(self._task, total=total, completed=done, description=text)
        if not self.console.is_terminal and step >= self._told_at + EVERY:
            self._told_at = step
            self.say(text)

    def verdict(
        self, outcome: Outcome, pages: Sequence[Delivery], seconds: float, kept: Path | None
    ) -> None:
        """The end: what was done, what was told of it, and whether that is all as it should be."""
        if self.lines:
            self._line({**_summary(outcome, seconds), "folder": str(kept) if kept else None})
            return
        self.console.print(_timeline(pages))
        for page in outcome.unexpected:
            self.say(f"[red]Unexpected:[/] {page.detector} was {page.reason} at step {page.step}.")
        for name in outcome.missing:
            self.say(f"[red]Missing:[/] no page of {name}.")
        if outcome.passed:
            self.say(
                f"[green]Passed[/] in {seconds:.0f} s: every mistake was told, and nothing else."
            )
        else:
            self.say(f"[red]Failed[/] after {seconds:.0f} s.")
        if kept:
            self.say(f"Logs, checkpoints and database are kept in {kept}.")

    def _line(self, told: Mapping[str, Any]) -> None:
        self.console.file.write(json.dumps(told) + "\n")
        self.console.file.flush()


def _panel(page: Delivery) -> Panel:
    numbers = ", ".join(f"{name} {_number(value)}" for name, value in page.evidence.items())
    began = f"Began at step {page.onset_step}, {page.reason} at step {page.step}."
    text = f"{escape(page.summary)}\n{began}\n[dim]{escape(numbers)}[/]"
    if page.reason != "resolved":
        text += f"\n[bold]What to do:[/] {escape(page.remedy)}"
    colour = "green" if page.reason == "resolved" else COLOURS.get(page.severity, "white")
    title = f"{page.severity.upper()}: {page.detector} {page.reason}"
    came = f"webhook, signed, {page.seconds:.1f} s after the step"
    return Panel(text, title=title, subtitle=came, border_style=colour, title_align="left")


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _timeline(pages: Sequence[Delivery]) -> Table:
    """Mistakes and pages in the order of their steps."""
    table = Table(title="What was done, and what was told of it", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("step", justify="right", style="bold")
    table.add_column("what", ratio=1)
    table.add_column("steps after", justify="right")
    table.add_column("arrived after", justify="right")
    rows = [(fault.step, 0, (f"[bold]{fault.mistake}[/]", "", "")) for fault in FAULTS]
    rows += [(page.step, 1, _row(page)) for page in pages]
    for step, _, cells in sorted(rows, key=lambda row: row[:2]):
        table.add_row(str(step), *cells)
    return table


def _row(page: Delivery) -> tuple[str, str, str]:
    done = [f.step for f in FAULTS if page.detector in f.detectors + f.consequences]
    name = f"[{COLOURS.get(page.severity, 'white')}]{page.severity} {page.detector}[/]"
    told = f"{name} {page.reason}: {escape(page.summary)}"
    return told, str(page.step - done[0]) if done else "", f"{page.seconds:.1f} s"


def _summary(outcome: Outcome, seconds: float) -> dict[str, Any]:
    steps = {name: fault.step for fault in FAULTS for name in fault.detectors}
    return {
        "type": "summary",
        "passed": outcome.passed,
        "seconds": round(seconds, 1),
        "faults": [asdict(fault) for fault in FAULTS],
        "steps_after": {name: page.step - steps[name] for name, page in outcome.caught.items()},
        "missing": list(outcome.missing),
        "unexpected": [page.detector for page in outcome.unexpected],
    }
