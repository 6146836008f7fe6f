"""Telling: the demo as a person sees it, or, with `lines`, as a program reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sentinel.demo.delivery import Delivery, dated
from sentinel.demo.scenario import FAULTS, Outcome

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
        self._named: dict[str, str] = {}

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
            return
        self._named[item.case] = item.cause
        if self.lines:
            self._line({"type": "page", **asdict(item)})
        else:
            self.console.print(_panel(item))

    def progress(self, state: Mapping[str, Any]) -> None:
        """What the agent says of the run by now."""
        for case in state.get("cases", ()):
            self._name(case)
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

    def _name(self, case: Mapping[str, Any]) -> None:
        """Tell where a cause that people were told is another by now, which costs no page."""
        known, told = case["diagnosis"], self._named.get(case["name"])
        if not known or not told or told == known["cause"]:
            return
        self._named[case["name"]] = known["cause"]
        if self.lines:
            self._line({"type": "diagnosis", "case": case["name"], **known})
        else:
            self.console.print(_found(case, known))

    def verdict(
        self, outcome: Outcome, pages: Sequence[Delivery], seconds: float, kept: Path | None
    ) -> None:
        """The end: what was done, what was told of it, and whether that is all as it should be."""
        if self.lines:
            self._line({**_summary(outcome, seconds), "folder": str(kept) if kept else None})
            return
        self.console.print(_timeline(pages, outcome))
        for page in outcome.unexpected:
            cause = outcome.causes[page.case] or "nothing"
            self.say(
                f"[red]Unexpected:[/] {page.detector} was {page.reason} at step {page.step}, and "
                f"put down to {cause}."
            )
        for name in outcome.missing:
            self.say(f"[red]Missing:[/] nothing was put down to {name}.")
        if outcome.passed:
            self.say(
                f"[green]Passed[/] in {seconds:.0f} s: every mistake was told by its name, once, "
                "and nothing else."
            )
        else:
            self.say(f"[red]Failed[/] after {seconds:.0f} s.")
        if kept:
            self.say(f"Logs, checkpoints and database are kept in {kept}.")

    def _line(self, told: Mapping[str, Any]) -> None:
        self.console.file.write(json.dumps(told) + "\n")
        self.console.file.flush()


def _panel(page: Delivery) -> Panel:
    over = page.reason == "resolved"
    lines = [f"Began at step {page.onset_step}, {page.reason} at step {page.step}."]
    if over or not page.clues:
        numbers = ", ".join(f"{name} {_number(value)}" for name, value in page.evidence.items())
        lines = [escape(page.summary), *lines, f"[dim]{escape(numbers)}[/]"]
    else:
        lines = [*lines, *_clues(page.clues)]
    if not over:
        lines += _advice(page.remedy, page.last_good_step)
    if page.others:
        lines.append(f"[dim]{page.detector} came first, then {', '.join(page.others)}.[/]")
    sure = f" ({page.belief})" if page.belief and not over else ""
    return Panel(
        "\n".join(lines),
        title=f"{page.severity.upper()}: {escape(page.title or page.detector)} {page.reason}{sure}",
        subtitle=f"webhook, signed, {page.seconds:.1f} s after the step",
        border_style="green" if over else COLOURS.get(page.severity, "white"),
        title_align="left",
    )


def _found(case: Mapping[str, Any], known: Mapping[str, Any]) -> Panel:
    lines = [
        *_clues(map(dated, known["evidence"])),
        *_advice(case["remedy"], known["last_good_step"]),
    ]
    return Panel(
        "\n".join(lines),
        title=f"What is behind it: {escape(known['title'])} ({known['belief']})",
        subtitle="on the agent's own page",
        border_style=COLOURS.get(case["severity"], "white"),
        title_align="left",
    )


def _clues(clues: Iterable[str]) -> list[str]:
    return [f"• {escape(clue)}" for clue in clues]


def _advice(remedy: str, last_good_step: int | None) -> list[str]:
    good = "" if last_good_step is None else f"\nLast checkpoint before: step {last_good_step}."
    return [f"[bold]What to do:[/] {escape(remedy)}{good}"]


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _timeline(pages: Sequence[Delivery], outcome: Outcome) -> Table:
    """Mistakes and pages in the order of their steps."""
    table = Table(title="What was done, and what was told of it", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("step", justify="right", style="bold")
    table.add_column("what", ratio=1)
    table.add_column("steps after", justify="right")
    table.add_column("arrived after", justify="right")
    rows = [(fault.step, 0, (f"[bold]{fault.mistake}[/]", "", "")) for fault in FAULTS]
    rows += [(page.step, 1, _row(page, outcome.causes[page.case])) for page in pages]
    for step, _, cells in sorted(rows, key=lambda row: row[:2]):
        table.add_row(str(step), *cells)
    return table


def _row(page: Delivery, cause: str) -> tuple[str, str, str]:
    done = [fault.step for fault in FAULTS if fault.cause == cause]
    words = f"{page.severity} {escape(page.title or page.detector)}"
    name = f"[{COLOURS.get(page.severity, 'white')}]{words}[/]"
    told = f"{name} {page.reason}: {escape(page.belief or page.summary)}"
    told += f" [dim]Put down to {cause}.[/]" if cause not in {"", page.cause} else ""
    return told, str(page.step - done[0]) if done else "", f"{page.seconds:.1f} s"


def _summary(outcome: Outcome, seconds: float) -> dict[str, Any]:
    steps = {fault.cause: fault.step for fault in FAULTS}
    return {
        "type": "summary",
        "passed": outcome.passed,
        "seconds": round(seconds, 1),
        "faults": [asdict(fault) for fault in FAULTS],
        "steps_after": {name: page.step - steps[name] for name, page in outcome.caught.items()},
        "causes": dict(outcome.causes),
        "missing": list(outcome.missing),
        "unexpected": [page.detector for page in outcome.unexpected],
    }
