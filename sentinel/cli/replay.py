"""`sentinel replay`: evaluate the log of a training run as the agent would have live."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from enum import StrEnum
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sentinel.cli._options import error_exit, read_error_text, settings_environ
from sentinel.config.settings import ConfigError, Settings, load_replay_settings
from sentinel.model.diagnosis import Diagnosis
from sentinel.model.finding import Severity
from sentinel.model.json_safe import json_safe
from sentinel.model.notification import Notification
from sentinel.model.record import WHOLE_RUN, Record
from sentinel.pipeline import pipeline
from sentinel.pipeline.engine import Engine, Result
from sentinel.pipeline.replay import ReplayedIncident, ReplayResult, replay_records
from sentinel.readers.format_detection import open_log
from sentinel.signals.coverage import coverage_text
from sentinel.store.baselines import BaselineMemory, BaselineStore
from sentinel.transport.paths import home_dir

EXIT_SEVERITY_REACHED = 3
SEVERITY_STYLES = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}


class FailOn(StrEnum):
    """The lowest severity at which a replay fails."""

    WARNING = "warning"
    CRITICAL = "critical"


def replay(  # noqa: PLR0913, PLR0917 - each is an option
    path: Annotated[Path, typer.Argument(help="Log file, or folder of a run.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    fail_on: Annotated[
        FailOn | None, typer.Option(help="Exit 3 if a case or incident is at least this severe.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file (sentinel.toml).")] = None,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines",
            help="Start from stored trajectories of alike healthy runs, and store this one's.",
        ),
    ] = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a setting: detectors.kl_blowup.ratio=4."
        ),
    ] = None,
) -> None:
    """Evaluate the log of a training run as the agent would have live.

    Settings are read as by the agent: from sentinel.toml or --config, and SENTINEL_* variables.

    Exit status: 0, 2 if the log or the settings cannot be read, 3 by --fail-on.
    """
    try:
        settings = load_replay_settings(assignments or (), settings_environ(config))
    except ConfigError as error:
        raise error_exit("replay", str(error)) from None
    try:
        result = _replay_log(path, settings, use_baselines=baselines)
    except (OSError, ValueError) as error:
        raise error_exit("replay", f"cannot read {path}: {read_error_text(error)}") from None
    if result.notice:
        _print_notice(f"{path}: {result.notice}")
    (_print_json if json else _print_tables)(result)
    if result.coverage.is_blind:
        _print_notice(f"{path}: {_coverage_text(result)}")
    if result.dropped:
        _print_notice(f"{result.dropped} records could not be processed")
    if result.failed_detectors:
        names = ", ".join(result.failed_detectors)
        _print_notice(f"{names} failed, so findings may be missing")
    if fail_on is not None and result.worst_severity_order <= Severity(fail_on.value).order:
        raise typer.Exit(EXIT_SEVERITY_REACHED)


def _print_notice(text: str) -> None:
    typer.echo(f"sentinel replay: {text}.", err=True)


def _coverage_text(result: ReplayResult) -> str:
    return coverage_text(result.coverage.is_blind, result.coverage.unmonitored)


def _replay_log(path: Path, settings: Settings, *, use_baselines: bool = False) -> ReplayResult:
    source = replace(open_log(path), keys=settings.keys)
    replayed = pipeline.build(settings)
    if not use_baselines:
        result = replay_records(source, replayed)
    else:
        memory = _LogBaselines(path.resolve(), replayed.engine)
        result = replay_records(source, replayed, memory.update)
        memory.store_log()
    if not result.records:
        raise ValueError("it holds no record of a step")
    return result


class _LogBaselines:
    """The baselines of a log: logs in one folder without a configuration are of one project."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self.path, self.engine = path, engine
        self.memory: BaselineMemory | None = None
        self.last_record: Record | None = None

    def update(self, result: Result) -> None:
        """Choose the baseline at the first result, and update it with each."""
        if self.memory is None:
            store, name = BaselineStore(home_dir() / "baselines"), str(self.path.parent)
            run = result.record.run
            self.memory = BaselineMemory(run, self.engine, store, {"project": name})
        self.memory.update(result)
        self.last_record = result.record

    def store_log(self) -> None:
        """Store the trajectories of the log if it is healthy."""
        if self.memory is not None and self.last_record is not None:
            self.memory.add_run(self.last_record.step, self.path.stat().st_mtime)


def _print_json(result: ReplayResult) -> None:
    for replayed in result.incidents:
        print(dumps(_incident_json(replayed), allow_nan=False))
    for case in result.diagnosed_cases:
        if case.diagnosis is not None:
            print(dumps(_diagnosis_json(result, case, case.diagnosis), allow_nan=False))
    counts = {
        "records": result.records,
        "skipped": result.skipped,
        "steps": result.steps,
        "incidents": len(result.incidents),
        "monitored": result.coverage.monitored,
        "unmonitored": [asdict(each) for each in result.coverage.unmonitored],
    }
    failed = {"failed": result.failed_detectors} if result.failed_detectors else {}
    print(dumps({"type": "summary", **counts, **failed}))


def _incident_json(replayed: ReplayedIncident) -> dict[str, Any]:
    incident, finding = replayed.incident, replayed.notification.incident.finding
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
        "onset": None if replayed.onset is None else asdict(replayed.onset),
        "summary": finding.summary,
        "evidence": json_safe(finding.evidence),
        "remedy": incident.remedy,
        "case": replayed.case_name,
    }


def _diagnosis_json(
    result: ReplayResult, case: Notification, diagnosis: Diagnosis
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
        "resolved_step": result.resolved_step(case),
        "incidents": [incident.name for incident in result.incidents_in(case)],
        "evidence": [asdict(each) for each in diagnosis.evidence],
        "remedy": diagnosis.remedy,
        "last_good_step": case.last_good_step,
    }


def _print_tables(result: ReplayResult) -> None:
    console = Console()
    for case in result.diagnosed_cases:
        if case.diagnosis is not None:
            console.print(_case_panel(result, case, case.diagnosis))
    if not result.incidents:
        limit = " in what is monitored" if _coverage_text(result) else ""
        console.print(f"No incident{limit} in {result.steps} steps.")
    else:
        console.print(_incident_table(result))
        for name, remedy in _remedies(result):
            console.print(f"[bold]{name}[/bold]: {escape(remedy)}")
    if text := _coverage_text(result):
        console.print(escape(f"{text[:1].upper()}{text[1:]}."))
    if result.skipped:
        subject = "1 line" if result.skipped == 1 else f"{result.skipped} lines"
        was = "was" if result.skipped == 1 else "were"
        console.print(f"{subject} could not be read and {was} skipped.")


def _case_panel(result: ReplayResult, case: Notification, diagnosis: Diagnosis) -> Panel:
    severity, resolved_step = case.incident.severity, result.resolved_step(case)
    sentence = [f"Onset at step {case.onset_step}", f"detected at step {case.incident.opened_step}"]
    if resolved_step is not None:
        sentence.append(f"resolved at step {resolved_step}")
    if case.last_good_step is not None:
        sentence.append(f"last good checkpoint: step {case.last_good_step}")
    names = ", ".join(dict.fromkeys(each.key.detector for each in result.incidents_in(case)))
    parts: list[RenderableType] = [
        Text(f"{', '.join(sentence)}."),
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
    for each in diagnosis.evidence:
        table.add_row("setting" if each.step is None else f"step {each.step}", Text(each.text))
    return table


def _incident_table(result: ReplayResult) -> Table:
    table = Table("", "Detector", "Onset", "Detected", "Resolved", "Summary", box=SIMPLE)
    for replayed in result.incidents:
        incident = replayed.incident
        resolved_step = "" if incident.resolved_step is None else str(incident.resolved_step)
        table.add_row(
            f"[{SEVERITY_STYLES[incident.severity]}]{incident.severity.value}[/]",
            incident.key.detector,
            str(incident.onset_step),
            str(incident.opened_step),
            resolved_step,
            escape(replayed.notification.incident.finding.summary),
        )
    return table


def _remedies(result: ReplayResult) -> Iterator[tuple[str, str]]:
    """The remedy of each detector, once; diagnosed cases have a remedy of their own."""
    diagnosed = {case.incident.name for case in result.diagnosed_cases}
    others = (each.incident for each in result.incidents if each.case_name not in diagnosed)
    yield from {incident.key.detector: incident.remedy for incident in others}.items()
