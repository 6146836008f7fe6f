"""Report of the demo: rich text for a terminal, or JSON lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sentinel.demo.receiver import ReceivedNotification, format_evidence
from sentinel.demo.scenario import FAULTS, DemoOutcome
from sentinel.model.evidence_text import evidence_text

SEVERITY_COLORS = {"critical": "red", "warning": "yellow", "info": "blue"}
PROGRESS_INTERVAL_STEPS = 50
"""Steps between two lines of progress if the output is no terminal."""
SHOWN_SIGNALS = {"loss": "loss", "kl_ref": "KL", "reward": "reward"}
_SLACK_EMOJI = re.compile(r"^:\w+: ")
"""Emoji code at the start of a Slack message."""


@dataclass
class DemoReport:
    """Prints to `console`. With `json_lines`: one JSON object per notification and a summary."""

    json_lines: bool = False
    console: Console = field(default_factory=lambda: Console(highlight=False))

    def __post_init__(self) -> None:
        has_no_bar = self.json_lines or not self.console.is_terminal
        columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
        self._bar = Progress(
            *columns, console=self.console, transient=True, disable=has_no_bar, refresh_per_second=4
        )
        self._task = self._bar.add_task("starting 4 training processes", total=None)
        self._last_progress_step = 0
        self._pending_faults = list(FAULTS)
        self._reported_causes: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def print_text(self, text: str) -> None:
        """Print a line with rich markup, unless the output is JSON."""
        if not self.json_lines:
            self.console.print(text, soft_wrap=True)

    def show_notification(self, item: ReceivedNotification | str) -> None:
        """Show a notification: a panel for the webhook, a line for Slack."""
        if isinstance(item, str):
            self.print_text(f"[dim]Slack received:[/] {escape(_SLACK_EMOJI.sub('', item))}")
            return
        self._reported_causes[item.case] = item.cause
        if self.json_lines:
            self._write_json({"type": "notification", **asdict(item)})
        else:
            self.console.print(_notification_panel(item))

    def show_progress(self, state: Mapping[str, Any]) -> None:
        """Show the state of the run from its agent."""
        for case in state.get("cases", ()):
            self._report_cause_change(case)
        values = {name: signal["value"] for name, signal in state.get("signals", {}).items()}
        step = int(state.get("step") or 0)
        while self._pending_faults and step >= self._pending_faults[0].step:
            fault = self._pending_faults.pop(0)
            self.print_text(f"[bold]Fault at step {fault.step}: {fault.description}.[/]")
        signals = "  ".join(
            f"{SHOWN_SIGNALS[key]} {values[key]:.3g}" for key in SHOWN_SIGNALS if key in values
        )
        text = f"step {step}  {signals}"
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
        """Show the new cause of a case whose cause has changed without a notification."""
        diagnosis, reported = case["diagnosis"], self._reported_causes.get(case["name"])
        if not diagnosis or not reported or reported == diagnosis["cause"]:
            return
        self._reported_causes[case["name"]] = diagnosis["cause"]
        if self.json_lines:
            self._write_json({"type": "diagnosis", "case": case["name"], **diagnosis})
        else:
            self.console.print(_diagnosis_panel(case, diagnosis))

    def show_outcome(
        self,
        outcome: DemoOutcome,
        notifications: Sequence[ReceivedNotification],
        seconds: float,
        kept_folder: Path | None,
    ) -> None:
        """Show the timeline of faults and notifications, and whether the demo passed."""
        if self.json_lines:
            folder = str(kept_folder) if kept_folder else None
            self._write_json({**_summary(outcome, seconds), "folder": folder})
            return
        self.console.print(_timeline(notifications, outcome))
        for notification in outcome.unexpected:
            cause = outcome.causes[notification.case] or "none"
            self.print_text(
                f"[red]Unexpected:[/] {notification.detector} {_reason(notification)} at step "
                f"{notification.step} (cause: {cause})."
            )
        for cause in outcome.missing:
            self.print_text(f"[red]Missing:[/] no case has the cause {cause}.")
        if outcome.passed:
            self.print_text(
                f"[green]Passed[/] in {seconds:.0f} s: each fault was reported once, with the "
                "correct cause, and nothing else was reported."
            )
        else:
            self.print_text(f"[red]Failed[/] after {seconds:.0f} s.")
        if kept_folder:
            self.print_text(f"Logs, checkpoints and database are in {kept_folder}.")

    def _write_json(self, item: Mapping[str, Any]) -> None:
        self.console.file.write(json.dumps(item) + "\n")
        self.console.file.flush()


def _notification_panel(notification: ReceivedNotification) -> Panel:
    is_resolved = notification.reason == "resolved"
    onset, step = notification.onset_step, notification.step
    confidence = notification.confidence_text if not is_resolved else ""
    likelihood = f" The cause is {confidence}." if confidence else ""
    lines = [f"Onset at step {onset}, {_reason(notification)} at step {step}.{likelihood}"]
    if is_resolved or not notification.cause_evidence:
        values = ", ".join(
            evidence_text(name, value) for name, value in notification.evidence.items()
        )
        lines = [escape(notification.summary), *lines, f"[dim]{escape(values)}[/]"]
    else:
        lines = [*lines, *_evidence_lines(notification.cause_evidence)]
    if not is_resolved:
        lines += _remedy_lines(notification.remedy, notification.last_good_step)
    if notification.others:
        lines.append(
            f"[dim]Detectors: first {notification.detector}, then "
            f"{', '.join(notification.others)}.[/]"
        )
    title = escape(notification.title or notification.detector)
    return Panel(
        "\n".join(lines),
        title=f"{notification.severity.upper()} {_reason(notification)}: {title}",
        subtitle=f"signed webhook, {notification.seconds:.1f} s after the step",
        border_style="green"
        if is_resolved
        else SEVERITY_COLORS.get(notification.severity, "white"),
        title_align="left",
    )


def _reason(notification: ReceivedNotification) -> str:
    return notification.reason.replace("_", " ")


def _diagnosis_panel(case: Mapping[str, Any], diagnosis: Mapping[str, Any]) -> Panel:
    lines = [
        *_evidence_lines(map(format_evidence, diagnosis["evidence"])),
        *_remedy_lines(case["remedy"], diagnosis["last_good_step"]),
    ]
    return Panel(
        "\n".join(lines),
        title=f"New cause: {escape(diagnosis['title'])} ({diagnosis['confidence_text']})",
        subtitle="on the agent's web page",
        border_style=SEVERITY_COLORS.get(case["severity"], "white"),
        title_align="left",
    )


def _evidence_lines(evidence: Iterable[str]) -> list[str]:
    return [f"• {escape(text)}" for text in evidence]


def _remedy_lines(remedy: str, last_good_step: int | None) -> list[str]:
    checkpoint = ""
    if last_good_step is not None:
        checkpoint = f"\nLast checkpoint before the onset: step {last_good_step}."
    return [f"[bold]What to do:[/] {escape(remedy)}{checkpoint}"]


def _timeline(notifications: Sequence[ReceivedNotification], outcome: DemoOutcome) -> Table:
    """Table of faults and notifications in the order of their steps."""
    table = Table(title="Faults and notifications", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("step", justify="right", style="bold")
    table.add_column("event", ratio=1)
    table.add_column("steps after fault", justify="right")
    table.add_column("delivery", justify="right")
    rows = [(fault.step, 0, (f"[bold]{fault.description}[/]", "", "")) for fault in FAULTS]
    rows += [
        (each.step, 1, _timeline_row(each, outcome.causes[each.case])) for each in notifications
    ]
    for step, _, cells in sorted(rows, key=lambda row: row[:2]):
        table.add_row(str(step), *cells)
    return table


def _timeline_row(notification: ReceivedNotification, cause: str) -> tuple[str, str, str]:
    fault_steps = [fault.step for fault in FAULTS if fault.cause == cause]
    title = f"{notification.severity} {escape(notification.title or notification.detector)}"
    colored = f"[{SEVERITY_COLORS.get(notification.severity, 'white')}]{title}[/]"
    detail = escape(notification.confidence_text or notification.summary)
    event = f"{colored} {_reason(notification)}: {detail}"
    if cause not in {"", notification.cause}:
        event += f" [dim]Final cause: {cause}.[/]"
    steps_after = str(notification.step - fault_steps[0]) if fault_steps else ""
    return event, steps_after, f"{notification.seconds:.1f} s"


def _summary(outcome: DemoOutcome, seconds: float) -> dict[str, Any]:
    steps = {fault.cause: fault.step for fault in FAULTS}
    return {
        "type": "summary",
        "passed": outcome.passed,
        "seconds": round(seconds, 1),
        "faults": [asdict(fault) for fault in FAULTS],
        "steps_after": {
            cause: each.step - steps[cause] for cause, each in outcome.detected.items()
        },
        "causes": dict(outcome.causes),
        "missing": list(outcome.missing),
        "unexpected": [n.detector for n in outcome.unexpected],
    }
