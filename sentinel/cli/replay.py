"""`sentinel replay`: evaluate the log of a training run as the agent would have live."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from sentinel.cli._options import (
    complete_run,
    error_exit,
    exit_on,
    logs_of_several_runs,
    settings_environ,
)

if TYPE_CHECKING:
    from sentinel.cli._replay_report import Curves
    from sentinel.config.settings import Settings
    from sentinel.model.incident import Incident
    from sentinel.model.record import Record
    from sentinel.pipeline.engine import Engine, Result
    from sentinel.pipeline.replay import ReplayResult
    from sentinel.readers.log_folder import LogRun
    from sentinel.store.baselines import BaselineMemory

EXIT_SEVERITY_REACHED = 3
_BYTE_POSITIONS = frozenset({".jsonl", ".log", ".txt", ".wandb", ".out"})
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

    with exit_on("replay", ConfigError):
        settings = load_replay_settings(assignments or (), settings_environ(config))
    replayer = _Replayer(settings, with_curves=not json, use_baselines=baselines)
    runs = logs_of_several_runs(path)
    results: list[ReplayResult] = []
    if len(runs) > 1:
        parts = _replay_runs(path, runs, replayer)
    else:
        parts = _replay_run(runs[0].path if runs else path, replayer)
    for replayed in parts:
        _print_replayed(replayed, json=json)
        results.append(replayed.result)
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


@dataclass(frozen=True)
class _Replayed:
    """What was found in a part of a log, and its curves, empty if they are not shown."""

    part: _Part
    result: ReplayResult
    curves: Curves


@dataclass(frozen=True)
class _Replayer:
    """Replays parts of logs with the same settings; not `is_shown` without a progress bar."""

    settings: Settings
    with_curves: bool
    use_baselines: bool
    is_shown: bool = True

    def replay(self, part: _Part) -> _Replayed:
        """Raises OSError and ValueError if the log cannot be read."""
        from sentinel.cli._replay_report import Curves

        curves = Curves()
        return _Replayed(part, _replay_log(part, self, [curves.update] * self.with_curves), curves)


def _replay_run(path: Path, replayer: _Replayer) -> Iterator[_Replayed]:
    """What was found in each part of the log of one run; exits if it cannot be read."""
    parts = [_Part(path)]
    try:
        for part in parts:
            replayed = replayer.replay(part)
            yield replayed
            if part is parts[0]:
                # Of a log that several processes write in turns, each is replayed by itself.
                parts += [_Part(path, name, name) for name in replayed.result.other_trainings]
    except (OSError, ValueError) as error:
        from sentinel.readers.log_file import read_error_text
        from sentinel.store.run_names import similar_runs_text

        similar = "" if path.exists() else similar_runs_text(str(path))
        text = f"cannot read {path}: {read_error_text(error)}"
        raise error_exit("replay", f"{text}. {similar}" if similar else text) from None


def _replay_runs(path: Path, logs: Sequence[LogRun], replayer: _Replayer) -> Iterator[_Replayed]:
    """What was found in each log below a folder that can be read; exits if none can.

    Each core has a process that replays, unless the baselines of a run are those of the runs before
    it.
    """
    parts = [_Part(log.path, log.run) for log in logs if not log.problem]
    from sentinel.pipeline.parallel import available_cores
    from sentinel.readers.log_file import read_error_text

    cores = 1 if replayer.use_baselines else available_cores()
    if min(cores, len(parts)) > 1:
        replayed = _replay_in_processes(replace(replayer, is_shown=False), parts, cores)
    else:
        replayed = (_try_replay(replayer, part) for part in parts)
    is_any_read = False
    for log in logs:
        each = ValueError(log.problem) if log.problem else next(replayed)
        if isinstance(each, _Replayed):
            is_any_read = True
            yield each
        else:
            _print_notice(f"cannot read {log.path}: {read_error_text(each)}")
    if not is_any_read:
        raise error_exit("replay", f"none of the {len(logs)} logs below {path} can be read.")


def _try_replay(replayer: _Replayer, part: _Part) -> _Replayed | OSError | ValueError:
    try:
        return replayer.replay(part)
    except (OSError, ValueError) as error:
        return error


def _replay_in_processes(
    replayer: _Replayer, parts: Sequence[_Part], cores: int
) -> Iterator[_Replayed | OSError | ValueError]:
    from sentinel.cli._progress import ProgressBar
    from sentinel.pipeline.parallel import map_in_processes

    with ProgressBar(f"Replaying {len(parts)} logs") as bar:
        replayed = map_in_processes(partial(_try_replay, replayer), parts, cores)
        for number, each in enumerate(replayed):
            bar.update(number / len(parts))
            yield each


def _print_replayed(replayed: _Replayed, *, json: bool) -> None:
    """Print what was found; with the name of the run if there are several."""
    from sentinel.cli._replay_report import coverage_sentence, print_json, print_tables

    (path, run, _), result = replayed.part, replayed.result
    if result.notice:
        _print_notice(f"{path}: {result.notice}")
    if json:
        print_json(result, run)
    else:
        print_tables(result, replayed.curves.by_signal, run)
    if result.coverage.is_blind:
        _print_notice(f"{path}: {coverage_sentence(result)}")
    if result.dropped:
        _print_notice(f"{result.dropped} records could not be processed")
    if result.failed_detectors:
        names = ", ".join(result.failed_detectors)
        _print_notice(f"{names} failed, so findings may be missing")


def _print_notice(text: str) -> None:
    typer.echo(f"sentinel replay: {text}.", err=True)


def _replay_log(
    part: _Part, replayer: _Replayer, observers: list[Callable[[Result], None]]
) -> ReplayResult:
    """Replay the log with a progress bar; `observers` get each result.

    The first incident is printed above the bar when it is found.
    """
    from sentinel.cli._progress import ProgressBar
    from sentinel.pipeline import pipeline
    from sentinel.pipeline.replay import rare_garbage_collection, replay_records
    from sentinel.store.stored_log import open_run
    from sentinel.store.stored_runs import named_database

    path, settings = part.path, replayer.settings
    source = open_run(path, settings.keys, part.writer)
    replayed = pipeline.build(settings)
    memory = None
    if replayer.use_baselines:
        database = named_database(path) or path
        memory = _LogBaselines(database.resolve(), replayed.engine)
    size = _bytes_to_read(path)
    has_incident = False
    with ProgressBar(f"Replaying {path.name}") as bar, rare_garbage_collection():

        def update(result: Result) -> None:
            nonlocal has_incident
            if replayer.is_shown and bar.is_due:
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
