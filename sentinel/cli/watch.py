"""`sentinel watch`: watch a run from outside, by the log that it writes anyway."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sentinel.agent.main import Agent
    from sentinel.config.settings import Settings
    from sentinel.model.notification import Notification
    from sentinel.pipeline.engine import Result
    from sentinel.transport.ring import ReadPosition

EXIT_CANNOT_READ = 2
_INVALID_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]+")


def watch(
    path: Path = typer.Argument(..., help="Log file, or folder of a run; it may still be to come."),
    run: str | None = typer.Option(None, "--run", help="Name of the run; else that of the log."),
    max_steps: int = typer.Option(0, min=0, help="Last step of the run, if the log says none."),
    config: Path | None = typer.Option(None, help="A sentinel.toml to read."),
) -> None:
    """Follow a log that is being written, judge it as it grows, and page.

    The training is not touched, and need not know. What went wrong and was over before is shown,
    and pages nobody. Begun again, the watch goes on where it was. It ends with the run, where the
    log says that it is over, or with Ctrl-C.
    """
    from sentinel.agent.registration import AlreadyServedError
    from sentinel.config.settings import ConfigError, load_settings
    from sentinel.store.database import NewerSchemaError
    from sentinel.transport.paths import RunIdError

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    path = path.resolve()
    _check_log(path)
    environ = os.environ if config is None else {**os.environ, "SENTINEL_CONFIG": str(config)}
    try:
        # Whose machine the run is on, is not known.
        settings = load_settings({"node_poll_seconds": 0}, environ=environ)
        agent = build_log_agent(path, run or run_name_from_path(path), settings, max_steps)
    except (ConfigError, NewerSchemaError, RunIdError, AlreadyServedError) as error:
        print(f"sentinel watch: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_CANNOT_READ) from None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop_requested.set())
    print(f"Watching {path} as run {agent.run}; Ctrl-C ends it.", flush=True)
    agent.serve()


def _check_log(path: Path) -> None:
    """Leave with one plain line where there is something that is no log."""
    from sentinel.readers.format_detection import open_log

    if not (path.exists() or path.parent.is_file()) or (path.is_file() and not path.stat().st_size):
        return
    if path.is_dir() and not any(path.iterdir()):
        return
    try:
        open_log(path)
    except (OSError, ValueError) as error:
        print(f"sentinel watch: cannot read {path}: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_CANNOT_READ) from None


def run_name_from_path(path: Path) -> str:
    """A name for the run of that log: of its folder and itself, and the same every time.

    >>> name_of(Path("/data/my run/trainer_log.jsonl"))[:-7]
    'my-run-trainer_log'
    """
    words = f"{path.parent.name}-{path.stem if path.suffix else path.name}"
    short = hashlib.sha256(str(path).encode()).hexdigest()[:6]
    return f"{_INVALID_NAME_CHARACTERS.sub('-', words).strip('-.')[:80] or 'log'}-{short}"


def build_log_agent(path: Path, run: str, settings: Settings, max_steps: int = 0) -> Agent:
    """The agent of a run whose log is followed in the place of its ranks' rings.

    Raises what `Agent` does.
    """
    from sentinel.agent.main import Agent
    from sentinel.readers.follow import LogFollower

    class LogAgent(Agent):
        """An agent that reads a log instead of the rings of ranks."""

        def _build_source(self, positions: Mapping[str, ReadPosition]) -> LogFollower:
            self.follower = LogFollower(
                self.run, path, self.counters, positions, self.clock, max_steps
            )
            return self.follower

        def run_once(self) -> None:
            self.processor.notification_policy.is_catching_up = self.follower.is_catching_up
            super().run_once()
            if notice := self.follower.pop_notice():
                print(f"sentinel watch: {path}: {notice}.", file=sys.stderr, flush=True)

    agent = LogAgent(run, settings)
    agent.processor.consumers += (NotificationPrinter(),)
    return agent


class NotificationPrinter:
    """Prints what people are told, each thing once."""

    def __init__(self) -> None:
        self.printed_subjects: dict[str, str] = {}

    def update(self, result: Result) -> None:
        """Print what is news in it."""
        for page in result.case_notifications:
            if _is_new(self.printed_subjects.get(page.incident.name), page):
                print(_format(page), flush=True)
                self.printed_subjects[page.incident.name] = page.subject


def _is_new(printed_subject: str | None, notification: Notification) -> bool:
    """Whether people have not read it yet: a case that only grew is not told again."""
    from sentinel.model.notification import NotificationReason

    return (
        notification.reason is not NotificationReason.UPDATED
        or notification.subject != printed_subject
    )


def _format(notification: Notification) -> str:
    """One case in a line; where its cause has a name, in lines with evidence and remedy."""
    from sentinel.cli._terminal import escape_unprintable
    from sentinel.model.notification import NotificationReason

    incident, known = notification.incident, notification.diagnosis
    words = f"{incident.severity.value} {incident.key.detector} {notification.reason.value}"
    lines = [f"step {notification.step}: {words}: {incident.finding.summary}"]
    if known is not None and notification.reason is not NotificationReason.RESOLVED:
        lines.append(f"behind it: {known.title} ({known.confidence_text})")
        lines += [clue.text_with_step for clue in known.evidence]
        lines.append(f"what to do: {known.remedy}")
        if notification.last_good_step is not None:
            lines.append(f"last checkpoint before: step {notification.last_good_step}")
    return "\n  ".join(map(escape_unprintable, lines))
