"""`sentinel replay`: evaluate the log of a training run as the agent would have live."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from sentinel.cli._options import (
    error_exit,
    logs_of_several_runs,
    read_error_text,
    settings_environ,
)
from sentinel.cli._run_ids import complete_run, similar_runs_text

if TYPE_CHECKING:
    from sentinel.cli._stored_log import StoredLog
    from sentinel.config.settings import Settings
    from sentinel.model.incident import Incident
    from sentinel.model.record import Record
    from sentinel.pipeline.engine import Engine, Result
    from sentinel.pipeline.replay import ReplayResult
    from sentinel.readers.log_reader import LogReader
    from sentinel.store.baselines import BaselineMemory

EXIT_SEVERITY_REACHED = 3
_BYTE_POSITIONS = frozenset({".jsonl", ".log", ".txt", ".wandb", ".out"})
OBJECTS_PER_COLLECTION = 1_000_000
"""New objects after which the garbage collector runs during a replay."""
"""Suffixes of logs whose position is a number of bytes."""


class FailOn(StrEnum):
    """The lowest severity at which a replay fails."""

    WARNING = "warning"
    CRITICAL = "critical"


def replay(  # noqa: PLR0913, PLR0917 - each is an option
    path: Annotated[
        Path,
        typer.Argument(
            help="Log file, folder of a run or of several, or id of a stored run.",
            autocompletion=complete_run,
        ),
    ],
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

    Of a folder with the logs of several runs, each is evaluated under its name. Settings are read
    as by the agent: from sentinel.toml or --config, and SENTINEL_* variables.

    Exit status: 0, 2 if the log or the settings cannot be read, 3 by --fail-on.
    """
    from sentinel.config.settings import ConfigError, load_replay_settings
    from sentinel.model.finding import Severity

    try:
        settings = load_replay_settings(assignments or (), settings_environ(config))
    except ConfigError as error:
        raise error_exit("replay", str(error)) from None
    runs = logs_of_several_runs(path)
    if len(runs) == 1:
        path, runs = runs[0].path, []
    results: list[ReplayResult] = []
    for log in runs:
        try:
            if log.problem:
                raise ValueError(log.problem)  # noqa: TRY301 - as other logs that are not readable
            results.append(
                _replay_and_print(
                    _Part(log.path, log.run), settings, json=json, use_baselines=baselines
                )
            )
        except (OSError, ValueError) as error:
            _print_notice(f"cannot read {log.path}: {read_error_text(error)}")
    if runs and not results:
        raise error_exit("replay", f"none of the {len(runs)} logs below {path} can be read.")
    if not runs:
        try:
            results = [_replay_and_print(_Part(path), settings, json=json, use_baselines=baselines)]
            # Of a log that several processes write in turns, each is replayed by itself.
            results += [
                _replay_and_print(each, settings, json=json, use_baselines=baselines)
                for each in (_Part(path, name, name) for name in results[0].other_trainings)
            ]
        except (OSError, ValueError) as error:
            similar = "" if path.exists() else similar_runs_text(str(path))
            text = f"cannot read {path}: {read_error_text(error)}"
            raise error_exit("replay", f"{text}. {similar}" if similar else text) from None
    worst = min(result.worst_severity_order for result in results)
    if fail_on is not None and worst <= Severity(fail_on.value).order:
        raise typer.Exit(EXIT_SEVERITY_REACHED)


class _Part(NamedTuple):
    """What is replayed of a log: the rows of `writer`, or of the first one if that is empty.

    `run` is the name that is printed, empty if there is only one.
    """

    path: Path
    run: str = ""
    writer: str = ""


def _replay_and_print(
    part: _Part, settings: Settings, *, json: bool, use_baselines: bool
) -> ReplayResult:
    """Replay a log and print what was found; with the name of the run if there are several."""
    from sentinel.cli._replay_report import Curves, coverage_sentence, print_json, print_tables

    path, run, writer = part
    curves = Curves()
    observers: list[Callable[[Result], None]] = [] if json else [curves.update]
    result = _replay_log(path, settings, observers, use_baselines=use_baselines, writer=writer)
    if result.notice:
        _print_notice(f"{path}: {result.notice}")
    if json:
        print_json(result, run)
    else:
        print_tables(result, curves.by_signal, run)
    if result.coverage.is_blind:
        _print_notice(f"{path}: {coverage_sentence(result)}")
    if result.dropped:
        _print_notice(f"{result.dropped} records could not be processed")
    if result.failed_detectors:
        names = ", ".join(result.failed_detectors)
        _print_notice(f"{names} failed, so findings may be missing")
    return result


def _print_notice(text: str) -> None:
    typer.echo(f"sentinel replay: {text}.", err=True)


def _replay_log(
    path: Path,
    settings: Settings,
    observers: list[Callable[[Result], None]],
    *,
    use_baselines: bool = False,
    writer: str = "",
) -> ReplayResult:
    """Replay the log with a progress bar; `observers` get each result.

    The first incident is printed above the bar when it is found.
    """
    from sentinel.cli._progress import ProgressBar
    from sentinel.cli._stored_log import StoredLog, find_database
    from sentinel.pipeline import pipeline
    from sentinel.pipeline.replay import replay_records
    from sentinel.readers.format_detection import open_log

    database = find_database(path)
    source: LogReader | StoredLog = (
        replace(open_log(path), keys=settings.keys, writer=writer)
        if database is None
        else StoredLog(database)
    )
    replayed = pipeline.build(settings)
    memory = _LogBaselines((database or path).resolve(), replayed.engine) if use_baselines else None
    size = _bytes_to_read(path)
    has_incident = False
    with ProgressBar(f"Replaying {path.name}") as bar, _rare_garbage_collection():

        def update(result: Result) -> None:
            nonlocal has_incident
            if bar.is_due:
                fraction = min(source.position / size, 1.0) if size else None
                bar.update(fraction, f"step {result.record.step}")
            if result.notifications and not has_incident:
                has_incident = True
                bar.print(_first_incident_text(result.notifications[0].incident))
            for observer in observers:
                observer(result)

        if memory is not None:
            observers = [*observers, memory.update]
        result = replay_records(source, replayed, update)
    if memory is not None:
        memory.store_log()
    if not result.records:
        raise ValueError("it holds no record of a step")
    return result


def _first_incident_text(incident: Incident) -> str:
    name, severity = incident.key.detector, incident.severity.value
    return f"First incident: {name} ({severity}) at step {incident.opened_step}: " + (
        incident.finding.summary
    )


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Collections visit all objects, and only detectors of users may create cycles per record."""
    former = gc.get_threshold()
    gc.set_threshold(OBJECTS_PER_COLLECTION, *former[1:])
    try:
        yield
    finally:
        gc.set_threshold(*former)


def _bytes_to_read(path: Path) -> int:
    """Size of a log whose reader's position is a number of bytes, else 0."""
    is_counted = path.suffix in _BYTE_POSITIONS and path.is_file()
    return path.stat().st_size if is_counted else 0


class _LogBaselines:
    """The baselines of a log: logs in one folder without a configuration are of one project."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self.path, self.engine = path, engine
        self.memory: BaselineMemory | None = None
        self.last_record: Record | None = None

    def update(self, result: Result) -> None:
        """Choose the baseline at the first result, and update it with each."""
        from sentinel.store.baselines import BaselineMemory, BaselineStore
        from sentinel.transport.paths import home_dir

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
