"""What a replay found: JSON lines for programs, tables with curves for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from json import dumps
from typing import Any

from rich.box import SIMPLE
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sentinel.cli._sparkline import Curve, sparkline
from sentinel.model.checkpoint_clause import fit_checkpoint_clause
from sentinel.model.diagnosis import Diagnosis
from sentinel.model.finding import Severity
from sentinel.model.incident import Incident
from sentinel.model.json_safe import json_safe
from sentinel.model.notification import Notification
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.pipeline.engine import Result
from sentinel.pipeline.replay import ReplayedIncident, ReplayResult
from sentinel.signals.catalogue import SIGNALS
from sentinel.signals.coverage import coverage_text
from sentinel.store.history import onset_to_dict

SEVERITY_STYLES = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}
CURVE_WIDTH, MIN_CURVE_WIDTH = 56, 12
"""Characters of a curve beside an incident, with the name of its signal."""
MIN_CURVE_POINTS = 3
"""Fewer points are no curve."""


@dataclass
class Curves:
    """The curves of the run's signals, collected while it is replayed."""

    by_signal: dict[str, Curve] = field(default_factory=dict)

    def update(self, result: Result) -> None:
        """Add the values of a step of the whole run."""
        record = result.record
        if record.rank != WHOLE_RUN or record.event not in (Event.STEP, Event.EVAL):
            return
        for name in SIGNALS.keys() & record.values.keys():
            if name not in self.by_signal:
                self.by_signal[name] = Curve()
            self.by_signal[name].add(record.step, record.values[name])


def print_json(result: ReplayResult, run: str = "") -> None:
    """One line per incident, one per diagnosed case, and a summary.

    If several runs are replayed, each line has the name of its `run`.
    """
    name = {"run": run} if run else {}
    for replayed in result.incidents:
        print(dumps(_incident_json(replayed) | name, allow_nan=False))
    for case in result.diagnosed_cases:
        if case.diagnosis is not None:
            body = _diagnosis_json(result, case, case.diagnosis)
            print(dumps(body | name, allow_nan=False))
    counts = {
        "records": result.records,
        "skipped": result.skipped,
        "steps": result.steps,
        "incidents": len(result.incidents),
        "monitored": result.coverage.monitored,
        "unmonitored": [asdict(each) for each in result.coverage.unmonitored],
    }
    failed = {"failed": result.failed_detectors} if result.failed_detectors else {}
    print(dumps({"type": "summary", **counts, **failed, **name}))


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
        "onset": onset_to_dict(incident),
        "summary": finding.summary,
        "evidence": json_safe(finding.evidence),
        "remedy": fit_checkpoint_clause(incident.remedy, incident.last_good_step),
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
        "evidence": [each.to_dict() for each in diagnosis.evidence],
        "remedy": diagnosis.remedy,
        "last_good_step": case.last_good_step,
    }


def print_tables(result: ReplayResult, curves: Mapping[str, Curve], run: str = "") -> None:
    """Cases, incidents with the curves of their signals, remedies, and what is not monitored.

    If several runs are replayed, below the name of the `run`.
    """
    console = Console()
    if run:
        console.rule(f"[bold]{escape(run)}[/bold]", align="left")
    for case in result.diagnosed_cases:
        if case.diagnosis is not None:
            console.print(_case_panel(result, case, case.diagnosis))
    if not result.incidents:
        limit = " in what is monitored" if coverage_sentence(result) else ""
        console.print(f"No incident{limit} in {result.steps} steps.")
    else:
        console.print(_incident_table(result, curves))
        for name, remedy in _remedies(result):
            console.print(f"[bold]{name}[/bold]: {escape(remedy)}")
    if text := coverage_sentence(result):
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


def _incident_table(result: ReplayResult, curves: Mapping[str, Curve]) -> Table:
    table = Table("", "Detector", "Onset", "Detected", "Resolved", "Summary", box=SIMPLE)
    for replayed in result.incidents:
        incident = replayed.incident
        resolved_step = "" if incident.resolved_step is None else str(incident.resolved_step)
        summary = Text(replayed.notification.incident.finding.summary)
        curve = curves.get(incident.signal)
        has_curve = curve is not None and len(curve.values) >= MIN_CURVE_POINTS
        table.add_row(
            f"[{SEVERITY_STYLES[incident.severity]}]{incident.severity.value}[/]",
            incident.key.detector,
            str(incident.onset_step),
            str(incident.opened_step),
            resolved_step,
            Group(summary, _IncidentCurve(incident, curve)) if curve and has_curve else summary,
        )
    return table


@dataclass
class _IncidentCurve:
    """The signal of an incident over the whole log, as wide as there is room.

    A line is at the onset.
    """

    incident: Incident
    curve: Curve

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(MIN_CURVE_WIDTH, CURVE_WIDTH)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        values, onset_step = self.curve.values, self.incident.onset_step
        width = min(options.max_width, CURVE_WIDTH)
        name = f"{self.incident.signal} "
        name = name if len(name) + MIN_CURVE_WIDTH <= width else ""
        drawn = sparkline(values, width - len(name) - 1, ascii_only=options.ascii_only)
        onset = sum(step < onset_step for step in self.curve.steps) * len(drawn) // len(values)
        style = SEVERITY_STYLES[self.incident.severity]
        after = ("|" + drawn[onset:], style)
        yield Text.assemble((name, "dim"), drawn[:onset], after, no_wrap=True)


def _remedies(result: ReplayResult) -> Iterator[tuple[str, str]]:
    """The remedy of each detector, once; diagnosed cases have a remedy of their own."""
    diagnosed = {case.incident.name for case in result.diagnosed_cases}
    others = (each.incident for each in result.incidents if each.case_name not in diagnosed)
    yield from {incident.key.detector: incident.remedy for incident in others}.items()


def coverage_sentence(result: ReplayResult) -> str:
    """What of the log is not monitored; mostly empty."""
    return coverage_text(result.coverage.is_blind, result.coverage.unmonitored)
