"""`sentinel replay`: judge a training log that is already there, as the agent would have live."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from json import dumps
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sentinel.config.plugins import load_classes
from sentinel.config.settings import build_causes
from sentinel.model.diagnosis import Diagnosis
from sentinel.model.finding import Severity
from sentinel.model.notification import Notification
from sentinel.model.record import WHOLE_RUN
from sentinel.pipeline.cases import CaseBook
from sentinel.pipeline.engine import Engine
from sentinel.pipeline.replay import ReplayedIncident, ReplayResult, replay_records
from sentinel.readers.format_detection import open_log

EXIT_CANNOT_READ = 2
EXIT_SEVERITY_REACHED = 3
SEVERITY_STYLES = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}


class FailOn(StrEnum):
    """From which severity on a replay is a failure."""

    WARNING = "warning"
    CRITICAL = "critical"


def replay(
    path: Annotated[Path, typer.Argument(help="Log file, or folder of a run.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    fail_on: Annotated[
        FailOn | None, typer.Option(help="Exit 3 if an incident or its cause is at least this bad.")
    ] = None,
) -> None:
    """Judge a training log as the agent would have judged the run."""
    try:
        story = _replay_log(path)
    except (OSError, ValueError) as error:
        typer.echo(f"sentinel: cannot read {path}: {error}", err=True)
        raise typer.Exit(EXIT_CANNOT_READ) from None
    if story.note:
        typer.echo(f"sentinel: of {path}, {story.note}.", err=True)
    (_print_json if json else _print_table)(story)
    if story.failed_detectors:
        told = ", ".join(story.failed_detectors)
        typer.echo(f"sentinel: {told} failed, and cannot say that all is well.", err=True)
    if fail_on is not None and story.worst_severity_order <= Severity(fail_on.value).order:
        raise typer.Exit(EXIT_SEVERITY_REACHED)


def _replay_log(path: Path) -> ReplayResult:
    engine = Engine(load_classes("detectors"), case_book=CaseBook(build_causes()))
    story = replay_records(open_log(path), engine)
    if not story.records:
        raise ValueError("it holds no record of a step")
    return story


def _print_json(story: ReplayResult) -> None:
    for told in story.incidents:
        print(dumps(_incident_json(told), allow_nan=False))
    for case in story.diagnosed_cases:
        if case.diagnosis is not None:
            print(dumps(_diagnosis_json(story, case, case.diagnosis), allow_nan=False))
    counts = {
        "records": story.records,
        "skipped": story.skipped,
        "steps": story.steps,
        "incidents": len(story.incidents),
    }
    failed = {"failed": story.failed_detectors} if story.failed_detectors else {}
    print(dumps({"type": "summary", **counts, **failed}))


def _incident_json(told: ReplayedIncident) -> dict[str, Any]:
    incident, finding = told.incident, told.notification.incident.finding
    rank = finding.rank if finding.rank is not None else incident.key.rank
    return {
        "type": "incident",
        "detector": incident.key.detector,
        "severity": incident.severity.value,
        "signal": incident.signal,
        "onset_step": incident.onset_step,
        "opened_step": incident.opened_step,
        "resolved_step": incident.resolved_step,
        "rank": None if rank == WHOLE_RUN else rank,
        "episode": incident.episode,
        "flaps": incident.flaps,
        "last_good_step": incident.last_good_step,
        "onset": None if told.onset is None else asdict(told.onset),
        "summary": finding.summary,
        "evidence": {key: _json_safe(value) for key, value in finding.evidence.items()},
        "remedy": incident.remedy,
        "case": told.case_name,
    }


def _diagnosis_json(
    story: ReplayResult, case: Notification, diagnosis: Diagnosis
) -> dict[str, Any]:
    return {
        "type": "diagnosis",
        "case": case.incident.name,
        "cause": diagnosis.cause,
        "title": diagnosis.title,
        "confidence": diagnosis.confidence,
        "severity": case.incident.severity.value,
        "onset_step": case.onset_step,
        "opened_step": case.incident.opened_step,
        "resolved_step": story.resolved_step(case),
        "incidents": [incident.name for incident in story.incidents_in(case)],
        "evidence": [asdict(clue) for clue in diagnosis.evidence],
        "remedy": diagnosis.remedy,
        "last_good_step": diagnosis.last_good_step,
    }


def _json_safe(value: float | str) -> float | str:
    # JSON has no word for NaN or infinity.
    return value if isinstance(value, str) or isfinite(value) else str(value)


def _print_table(story: ReplayResult) -> None:
    console = Console()
    for case in story.diagnosed_cases:
        if case.diagnosis is not None:
            console.print(_case_panel(story, case, case.diagnosis))
    if not story.incidents:
        console.print(f"No incident in {story.steps} steps.")
    else:
        console.print(_incident_table(story))
        for name, remedy in _remedies(story):
            console.print(f"[bold]{name}[/bold]: {escape(remedy)}")
    if story.skipped:
        console.print(f"{story.skipped} lines could not be read and were passed over.")


def _case_panel(story: ReplayResult, case: Notification, diagnosis: Diagnosis) -> Panel:
    severity, over = case.incident.severity, story.resolved_step(case)
    facts = [f"Began at step {case.onset_step}", f"page due at step {case.incident.opened_step}"]
    if over is not None:
        facts.append(f"over at step {over}")
    if diagnosis.last_good_step is not None:
        facts.append(f"last checkpoint before: step {diagnosis.last_good_step}")
    names = ", ".join(dict.fromkeys(each.key.detector for each in story.incidents_in(case)))
    parts: list[RenderableType] = [
        Text(f"{', '.join(facts)}."),
        _evidence_table(diagnosis),
        Text.assemble(("What to do: ", "bold"), diagnosis.remedy),
        Text(f"Incidents: {names}", style="dim"),
    ]
    title = f"[{SEVERITY_STYLES[severity]}]{severity.value}: {escape(diagnosis.title)}[/]"
    return Panel(
        Group(*parts),
        title=f"{title} ({diagnosis.confidence_text})",
        title_align="left",
        border_style=SEVERITY_STYLES[severity],
    )


def _evidence_table(diagnosis: Diagnosis) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for clue in diagnosis.evidence:
        table.add_row("set" if clue.step is None else f"step {clue.step}", Text(clue.text))
    return table


def _incident_table(story: ReplayResult) -> Table:
    table = Table("", "Detector", "Began", "Page due", "Over", "What", box=SIMPLE)
    for told in story.incidents:
        incident = told.incident
        over = "" if incident.resolved_step is None else str(incident.resolved_step)
        table.add_row(
            f"[{SEVERITY_STYLES[incident.severity]}]{incident.severity.value}[/]",
            incident.key.detector,
            str(incident.onset_step),
            str(incident.opened_step),
            over,
            escape(told.notification.incident.finding.summary),
        )
    return table


def _remedies(story: ReplayResult) -> Iterator[tuple[str, str]]:
    """What each detector advises, once, unless a cause that is named knows better."""
    known = {case.incident.name for case in story.diagnosed_cases}
    alone = (told.incident for told in story.incidents if told.case_name not in known)
    yield from {incident.key.detector: incident.remedy for incident in alone}.items()
