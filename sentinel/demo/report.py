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

from sentinel.demo.delivery import ReceivedNotification, format_evidence
from sentinel.demo.scenario import FAULTS, DemoOutcome

SEVERITY_COLORS = {"critical": "red", "warning": "yellow", "info": "blue"}
PROGRESS_INTERVAL_STEPS = 50
"""Steps between two lines of progress where there is no terminal to draw a bar on."""
SHOWN_SIGNALS = {"loss": "loss", "kl_ref": "KL", "reward": "reward"}
_SLACK_EMOJI = re.compile(r"^:\w+: ")
"""What Slack draws as a coloured dot."""


@dataclass
class DemoReport:
    """Prints to `console`; with `lines`, JSON and nothing else: one object per page, and a last."""

    json_lines: bool = False
    console: Console = field(default_factory=lambda: Console(highlight=False))

    def __post_init__(self) -> None:
        quiet = self.json_lines or not self.console.is_terminal
        columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
        self._bar = Progress(
            *columns, console=self.console, transient=True, disable=quiet, refresh_per_second=4
        )
        self._task = self._bar.add_task("starting 4 processes", total=None)
        self._last_progress_step = 0
        self._pending_faults = list(FAULTS)
        self._reported_causes: dict[str, str] = {}

    def __enter__(self) -> DemoReport:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def print_text(self, text: str) -> None:
        """A sentence to the person; its markup is ours."""
        if not self.json_lines:
            self.console.print(text, soft_wrap=True)

    def show_notification(self, item: ReceivedNotification | str) -> None:
        """A page came: in full by the webhook, in a line by Slack."""
        if isinstance(item, str):
            self.print_text(f"[dim]Slack got:[/] {escape(_SLACK_EMOJI.sub('', item))}")
            return
        self._reported_causes[item.case] = item.cause
        if self.json_lines:
            self._write_json({"type": "page", **asdict(item)})
        else:
            self.console.print(_notification_panel(item))

    def show_progress(self, state: Mapping[str, Any]) -> None:
        """What the agent says of the run by now."""
        for case in state.get("cases", ()):
            self._report_cause_change(case)
        values = {name: signal["value"] for name, signal in state.get("signals", {}).items()}
        step = int(state.get("step") or 0)
        while self._pending_faults and step >= self._pending_faults[0].step:
            fault = self._pending_faults.pop(0)
            self.print_text(f"[bold]Step {fault.step}: {fault.description}.[/]")
        told = "  ".join(
            f"{SHOWN_SIGNALS[key]} {values[key]:.3g}" for key in SHOWN_SIGNALS if key in values
        )
        text = f"step {step}  {told}"
        total = float(state.get("metadata", {}).get("max_steps", 0)) or None
        done = values.get("optimizer_steps", 0.0)
        self._bar.update(self._task, total=total, completed=done, description=text)
        if (
            not self.console.is_terminal
            and step >= self._last_progress_step + PROGRESS_INTERVAL_STEPS
        ):
            self._last_progress_step = step
            self.print_text(text)

    def _report_cause_change(self, case: Mapping[str, Any]) -> None:
        """Tell where a cause that people were told is another by now, which costs no page."""
        known, told = case["diagnosis"], self._reported_causes.get(case["name"])
        if not known or not told or told == known["cause"]:
            return
        self._reported_causes[case["name"]] = known["cause"]
        if self.json_lines:
            self._write_json({"type": "diagnosis", "case": case["name"], **known})
        else:
            self.console.print(_diagnosis_panel(case, known))

    def show_outcome(
        self,
        outcome: DemoOutcome,
        notifications: Sequence[ReceivedNotification],
        seconds: float,
        kept_folder: Path | None,
    ) -> None:
        """The end: what was done, what was told of it, and whether that is all as it should be."""
        if self.json_lines:
            self._write_json(
                {**_summary(outcome, seconds), "folder": str(kept_folder) if kept_folder else None}
            )
            return
        self.console.print(_timeline(notifications, outcome))
        for page in outcome.unexpected:
            cause = outcome.causes[page.case] or "nothing"
            self.print_text(
                f"[red]Unexpected:[/] {page.detector} was {page.reason} at step {page.step}, and "
                f"put down to {cause}."
            )
        for name in outcome.missing:
            self.print_text(f"[red]Missing:[/] nothing was put down to {name}.")
        if outcome.passed:
            self.print_text(
                f"[green]Passed[/] in {seconds:.0f} s: every mistake was told by its name, once, "
                "and nothing else."
            )
        else:
            self.print_text(f"[red]Failed[/] after {seconds:.0f} s.")
        if kept_folder:
            self.print_text(f"Logs, checkpoints and database are kept in {kept_folder}.")

    def _write_json(self, told: Mapping[str, Any]) -> None:
        self.console.file.write(json.dumps(told) + "\n")
        self.console.file.flush()


def _notification_panel(notification: ReceivedNotification) -> Panel:
    over = notification.reason == "resolved"
    lines = [
        f"Began at step {notification.onset_step}, {notification.reason} at step {notification.step}."
    ]
    if over or not notification.cause_evidence:
        numbers = ", ".join(
            f"{name} {_format_number(value)}" for name, value in notification.evidence.items()
        )
        lines = [escape(notification.summary), *lines, f"[dim]{escape(numbers)}[/]"]
    else:
        lines = [*lines, *_evidence_lines(notification.cause_evidence)]
    if not over:
        lines += _remedy_lines(notification.remedy, notification.last_good_step)
    if notification.others:
        lines.append(
            f"[dim]{notification.detector} came first, then {', '.join(notification.others)}.[/]"
        )
    sure = f" ({notification.belief})" if notification.belief and not over else ""
    return Panel(
        "\n".join(lines),
        title=f"{notification.severity.upper()}: {escape(notification.title or notification.detector)} {notification.reason}{sure}",
        subtitle=f"webhook, signed, {notification.seconds:.1f} s after the step",
        border_style="green" if over else SEVERITY_COLORS.get(notification.severity, "white"),
        title_align="left",
    )


def _diagnosis_panel(case: Mapping[str, Any], diagnosis: Mapping[str, Any]) -> Panel:
    lines = [
        *_evidence_lines(map(format_evidence, diagnosis["evidence"])),
        *_remedy_lines(case["remedy"], diagnosis["last_good_step"]),
    ]
    return Panel(
        "\n".join(lines),
        title=f"What is behind it: {escape(diagnosis['title'])} ({diagnosis['belief']})",
        subtitle="on the agent's own page",
        border_style=SEVERITY_COLORS.get(case["severity"], "white"),
        title_align="left",
    )


def _evidence_lines(evidence: Iterable[str]) -> list[str]:
    return [f"• {escape(clue)}" for clue in evidence]


def _remedy_lines(remedy: str, last_good_step: int | None) -> list[str]:
    good = "" if last_good_step is None else f"\nLast checkpoint before: step {last_good_step}."
    return [f"[bold]What to do:[/] {escape(remedy)}{good}"]


def _format_number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _timeline(notifications: Sequence[ReceivedNotification], outcome: DemoOutcome) -> Table:
    """Mistakes and pages in the order of their steps."""
    table = Table(title="What was done, and what was told of it", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("step", justify="right", style="bold")
    table.add_column("what", ratio=1)
    table.add_column("steps after", justify="right")
    table.add_column("arrived after", justify="right")
    rows = [(fault.step, 0, (f"[bold]{fault.description}[/]", "", "")) for fault in FAULTS]
    rows += [
        (page.step, 1, _timeline_row(page, outcome.causes[page.case])) for page in notifications
    ]
    for step, _, cells in sorted(rows, key=lambda row: row[:2]):
        table.add_row(str(step), *cells)
    return table


def _timeline_row(notification: ReceivedNotification, cause: str) -> tuple[str, str, str]:
    done = [fault.step for fault in FAULTS if fault.cause == cause]
    words = f"{notification.severity} {escape(notification.title or notification.detector)}"
    name = f"[{SEVERITY_COLORS.get(notification.severity, 'white')}]{words}[/]"
    told = f"{name} {notification.reason}: {escape(notification.belief or notification.summary)}"
    told += f" [dim]Put down to {cause}.[/]" if cause not in {"", notification.cause} else ""
    return told, str(notification.step - done[0]) if done else "", f"{notification.seconds:.1f} s"


def _summary(outcome: DemoOutcome, seconds: float) -> dict[str, Any]:
    steps = {fault.cause: fault.step for fault in FAULTS}
    return {
        "type": "summary",
        "passed": outcome.passed,
        "seconds": round(seconds, 1),
        "faults": [asdict(fault) for fault in FAULTS],
        "steps_after": {name: page.step - steps[name] for name, page in outcome.detected.items()},
        "causes": dict(outcome.causes),
        "missing": list(outcome.missing),
        "unexpected": [page.detector for page in outcome.unexpected],
    }
