"""`sentinel watch`: monitor a run from outside, through the log that it writes."""

from __future__ import annotations

import hashlib
import json as jsonlib
import logging
import re
import signal
import sqlite3
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sentinel.cli._options import (
    error_exit,
    logs_of_several_runs,
    settings_environ,
)

if TYPE_CHECKING:
    from sentinel.agent.log_agent import LogAgent
    from sentinel.agent.main import Agent
    from sentinel.config.settings import Settings
    from sentinel.model.notification import Notification
    from sentinel.pipeline.engine import Result
    from sentinel.store.storage_monitor import StorageMonitor

MAX_NAMES_SHOWN = 10
_INVALID_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]+")


def watch(  # noqa: PLR0913, PLR0917 - each is an option
    path: Path = typer.Argument(..., help="Log file, or folder of a run; it need not exist yet."),
    run: str | None = typer.Option(None, "--run", help="Run id; by default, made from the path."),
    max_steps: int = typer.Option(0, min=0, help="Last step, if the log does not state it."),
    config: Path | None = typer.Option(None, help="Settings file (sentinel.toml)."),
    baselines: bool = typer.Option(
        False,
        "--baselines",
        help="Start from stored trajectories of alike healthy runs, and store this one's.",
    ),
    json: bool = typer.Option(False, "--json", help="Print one JSON object per notification."),
) -> None:
    """Follow a growing log: run the detectors, print and send notifications, serve /metrics.

    The training is not touched. Incidents that ended before the watch began are shown, but not
    sent. A watch that is started again continues where the last one ended. It ends when the log
    states the end of the run, or with Ctrl-C.

    Exit status: 0 at the end, 2 if the log, the settings or a directory cannot be used.
    """
    from sentinel.agent.registration import AlreadyServedError
    from sentinel.agent.run_service import RunService
    from sentinel.config.settings import ConfigError, load_settings
    from sentinel.store.database import NewerSchemaError
    from sentinel.transport.paths import RunIdError, describe_error

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    # Before the links are resolved: that of a pipe leads to no file.
    _check_log(path)
    path = path.resolve()
    try:
        # The run may be on another machine, so this one is not polled.
        settings = load_settings(
            {"node_poll_seconds": 0, "baselines": baselines}, environ=settings_environ(config)
        )
        name = run or run_name_from_path(path)
        service = RunService(
            lambda storage, predecessor: build_log_agent(
                path,
                name,
                settings,
                max_steps=max_steps,
                storage=storage,
                predecessor=predecessor,
                as_json=json,
            )
        )
        agent = service.prepare()
    except (ConfigError, NewerSchemaError, RunIdError, AlreadyServedError) as error:
        raise error_exit("watch", str(error)) from None
    except (OSError, sqlite3.Error) as error:
        raise error_exit("watch", describe_error(error)) from None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.request_stop(""))
    if json:
        print(jsonlib.dumps({"type": "start", "run": agent.run, "path": str(path)}), flush=True)
    else:
        print(f"Watching {path} as run {agent.run}; Ctrl-C ends it.", flush=True)
    service.serve()


def _check_log(path: Path) -> None:
    """Exit with an error if there is something at `path` that is not a log."""
    from sentinel.readers.format_detection import open_log

    if not (path.exists() or path.parent.is_file()) or (path.is_file() and not path.stat().st_size):
        return
    if path.is_dir() and not any(path.iterdir()):
        return
    runs = [log.path for log in logs_of_several_runs(path)]
    if len(runs) > 1:
        names = ", ".join(str(each.relative_to(path)) for each in runs[:MAX_NAMES_SHOWN])
        more = ", ..." if len(runs) > MAX_NAMES_SHOWN else ""
        raise error_exit(
            "watch",
            f"{path} holds the logs of {len(runs)} runs: watch one of {names}{more}. "
            f"`sentinel serve {path}` shows all of them, and follows those that are viewed.",
        )
    try:
        open_log(path, is_live=True)
    except (OSError, ValueError) as error:
        from sentinel.readers.log_file import read_error_text

        raise error_exit("watch", f"cannot read {path}: {read_error_text(error)}") from None


def run_name_from_path(path: Path) -> str:
    """A run id made from the path of its log; the same every time.

    >>> run_name_from_path(Path("/data/my run/trainer_log.jsonl"))[:-7]
    'my-run-trainer_log'
    """
    name = f"{path.parent.name}-{path.stem if path.suffix else path.name}"
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:6]
    return f"{_INVALID_NAME_CHARACTERS.sub('-', name).strip('-.')[:80] or 'log'}-{digest}"


def build_log_agent(  # noqa: PLR0913 - an agent, and what it follows
    path: Path,
    run: str,
    settings: Settings,
    *,
    max_steps: int = 0,
    storage: StorageMonitor | None = None,
    predecessor: Agent | None = None,
    as_json: bool = False,
) -> LogAgent:
    """The agent that follows the log, and prints its notifications and notices."""
    from sentinel.agent.log_agent import LogAgent

    def print_notice(notice: str) -> None:
        print(f"sentinel watch: {path}: {notice}.", file=sys.stderr, flush=True)

    return LogAgent(
        run,
        path,
        settings,
        NotificationPrinter(as_json=as_json),
        print_notice,
        max_steps=max_steps,
        storage=storage,
        predecessor=predecessor,
    )


class NotificationPrinter:
    """Prints notifications to stdout, each state of a case once."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.printed_subjects: dict[str, str] = {}

    def update(self, result: Result) -> None:
        """Print the new notifications of a result."""
        for notification in result.case_notifications:
            name = notification.incident.name
            if _is_new(self.printed_subjects.get(name), notification):
                format_one = _format_json if self.as_json else _format
                print(format_one(notification), flush=True)
                self.printed_subjects[name] = notification.subject


def _is_new(printed_subject: str | None, notification: Notification) -> bool:
    """Whether it reports more than what was printed; an update does if the subject changed."""
    from sentinel.model.notification import NotificationReason

    return (
        notification.reason is not NotificationReason.UPDATED
        or notification.subject != printed_subject
    )


def _format(notification: Notification) -> str:
    """A case in one line; with evidence and remedy on further lines if its cause is known."""
    from sentinel.cli._terminal import escape_unprintable
    from sentinel.model.diagnosis import describe_possible_causes
    from sentinel.model.notification import NotificationReason

    incident, diagnosis = notification.incident, notification.diagnosis
    event = f"{incident.key.detector} {notification.reason.value.replace('_', ' ')}"
    summary = incident.finding.summary
    lines = [f"step {notification.step}: {incident.severity.value} {event}: {summary}"]
    if diagnosis is not None and notification.reason is not NotificationReason.RESOLVED:
        lines.append(f"cause: {diagnosis.title} ({diagnosis.confidence_text})")
        lines += [each.text_with_step for each in diagnosis.evidence]
        lines.append(f"what to do: {diagnosis.remedy}")
        if notification.last_good_step is not None:
            lines.append(f"last good checkpoint: step {notification.last_good_step}")
    lines += describe_possible_causes(notification.possible_causes)
    return "\n  ".join(map(escape_unprintable, lines))


def _format_json(notification: Notification) -> str:
    """The same as one JSON object."""
    incident, diagnosis = notification.incident, notification.diagnosis
    return jsonlib.dumps(
        {
            "type": "notification",
            "notification": notification.reason.value,
            "case": incident.name,
            "detector": incident.key.detector,
            "severity": incident.severity.value,
            "step": notification.step,
            "onset_step": notification.onset_step,
            "last_good_step": notification.last_good_step,
            "summary": incident.finding.summary,
            "cause": None if diagnosis is None else diagnosis.cause,
            "confidence": None if diagnosis is None else diagnosis.confidence,
            "evidence": [] if diagnosis is None else [e.text_with_step for e in diagnosis.evidence],
            "possible_causes": [asdict(each) for each in notification.possible_causes],
            "remedy": notification.remedy,
        }
    )
