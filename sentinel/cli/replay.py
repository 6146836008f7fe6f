"""`sentinel replay`: judge a training log that is already there, as the agent would have live."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import Enum
from json import dumps
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sentinel.discover import classes
from sentinel.engine import Engine
from sentinel.finding import Severity
from sentinel.incident import Incident, Onset, Page, Reason
from sentinel.onset import Past
from sentinel.record import WHOLE_RUN, Record
from sentinel.sources.recognised import recognised

CANNOT_READ = 2
FAILED_ON = 3
COLOURS = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}


class FailOn(str, Enum):
    """From which severity on a replay is a failure."""

    WARNING = "warning"
    CRITICAL = "critical"


@dataclass
class Told:
    """One incident in its last state, with the last page that told of its trouble.

    `onset` is when it was found to have begun, looking back from where it opened.
    """

    incident: Incident
    page: Page
    onset: Onset | None = None


@dataclass
class Story:
    """What a replay found, and how much it read."""

    told: list[Told] = field(default_factory=list)
    records: int = 0
    skipped: int = 0
    steps: int = 0
    failed: list[str] = field(default_factory=list)
    """Detectors that failed while judging: what they would have found is not known."""

    @property
    def worst(self) -> int:
        """Order of the loudest severity; more than any where nothing was found."""
        return min((told.incident.severity.order for told in self.told), default=len(Severity))


def replay(
    path: Annotated[Path, typer.Argument(help="Log file, or folder of a run.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    fail_on: Annotated[
        FailOn | None, typer.Option(help="Exit 3 if an incident is at least this bad.")
    ] = None,
) -> None:
    """Judge a training log as the agent would have judged the run."""
    try:
        story = _told(path)
    except (OSError, ValueError) as error:
        typer.echo(f"sentinel: cannot read {path}: {error}", err=True)
        raise typer.Exit(CANNOT_READ) from None
    (_print_json if json else _print_table)(story)
    if story.failed:
        told = ", ".join(story.failed)
        typer.echo(f"sentinel: {told} failed, and cannot say that all is well.", err=True)
    if fail_on is not None and story.worst <= Severity(fail_on.value).order:
        raise typer.Exit(FAILED_ON)


def _told(path: Path) -> Story:
    story = tell(recognised(path), Engine(classes("detectors")))
    if not story.records:
        raise ValueError("it holds no record of a step")
    return story


def tell(source: Iterable[Record], engine: Engine) -> Story:
    """Run the records through the engine; every incident once, in the order they opened."""
    story, steps = Story(), set[int]()
    told: dict[str, Told] = {}
    past = Past({make().signal for make in engine.makers.values()})
    for record in source:
        story.records += 1
        steps.add(record.step)
        if record.rank == WHOLE_RUN:
            past.hear(record)
        for page in engine.feed(record).pages:
            _fold(told, page, past)
    for incident in engine.book.open.values():
        if incident.name in told:
            told[incident.name].incident = incident
    story.told, story.steps = list(told.values()), len(steps)
    story.skipped = getattr(source, "skipped", 0)
    story.failed = sorted(engine.errors)
    return story


def _fold(told: dict[str, Told], page: Page, past: Past) -> None:
    name = page.incident.name
    if page.reason is Reason.RESOLVED and name in told:
        told[name].incident = page.incident
        return
    onset = told[name].onset if name in told else None
    if onset is None and page.incident.severity is not Severity.INFO:
        onset = past.date(page.incident)
    told[name] = Told(page.incident, page, onset)


def _print_json(story: Story) -> None:
    for told in story.told:
        incident, finding = told.incident, told.page.incident.finding
        rank = finding.rank if finding.rank is not None else incident.key.rank
        line = {
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
            "evidence": {key: _plain(value) for key, value in finding.evidence.items()},
            "remedy": incident.remedy,
        }
        print(dumps(line, allow_nan=False))
    counts = {
        "records": story.records,
        "skipped": story.skipped,
        "steps": story.steps,
        "incidents": len(story.told),
    }
    failed = {"failed": story.failed} if story.failed else {}
    print(dumps({"type": "summary", **counts, **failed}))


def _plain(value: float | str) -> float | str:
    # JSON has no word for NaN or infinity.
    return value if isinstance(value, str) or isfinite(value) else str(value)


def _print_table(story: Story) -> None:
    console = Console()
    if not story.told:
        console.print(f"No incident in {story.steps} steps.")
    else:
        console.print(_table(story))
        for told in story.told:
            incident = told.incident
            console.print(f"[bold]{incident.key.detector}[/bold]: {escape(incident.remedy)}")
    if story.skipped:
        console.print(f"{story.skipped} lines could not be read and were passed over.")


def _table(story: Story) -> Table:
    table = Table("", "Detector", "Began", "Page due", "Over", "What", box=SIMPLE)
    for told in story.told:
        incident = told.incident
        over = "" if incident.resolved_step is None else str(incident.resolved_step)
        table.add_row(
            f"[{COLOURS[incident.severity]}]{incident.severity.value}[/]",
            incident.key.detector,
            str(incident.onset_step),
            str(incident.opened_step),
            over,
            escape(told.page.incident.finding.summary),
        )
    return table
