"""Tables of what a replay found, for people: cases, incidents with curves, remedies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.box import SIMPLE
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sentinel.cli._sparkline import Curve, sparkline
from sentinel.model.diagnosis import Diagnosis, describe_possible_causes
from sentinel.model.finding import Severity
from sentinel.model.incident import Incident
from sentinel.model.notification import Notification
from sentinel.pipeline.replay import ReplayResult

SEVERITY_STYLES = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}
CURVE_WIDTH, MIN_CURVE_WIDTH = 56, 12
"""Characters of a curve beside an incident, with the name of its signal."""
MIN_CURVE_POINTS = 3
"""Fewer points are no curve."""


def print_heading(run: str) -> None:
    """The name of a run, above what was found in it."""
    Console().rule(f"[bold]{escape(run)}[/bold]", align="left")


def print_incidents(result: ReplayResult, curves: Mapping[str, Curve]) -> None:
    """The cases, the incidents with the curves of their signals, and the remedies."""
    console = Console()
    for case in result.diagnosed_cases:
        if case.diagnosis is not None:
            console.print(_case_panel(result, case, case.diagnosis))
    console.print(_incident_table(result, curves))
    for case in result.cases:
        for sentence in describe_possible_causes(case.possible_causes):
            console.print(f"[bold]{case.incident.key.detector}[/bold]: {escape(sentence)}")
    for name, remedy in _remedies(result):
        console.print(f"[bold]{name}[/bold]: {escape(remedy)}")


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
