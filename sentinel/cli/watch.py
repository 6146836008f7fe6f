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
    from sentinel.agent.main import Agent
    from sentinel.config.settings import Settings
    from sentinel.model.incident import Page
    from sentinel.pipeline.engine import Verdict

CANNOT_READ = 2
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")


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
    from sentinel.config.settings import SettingsError, load
    from sentinel.store.database import NewerSchemaError
    from sentinel.transport.paths import RunIdError

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    path = path.resolve()
    _check(path)
    environ = os.environ if config is None else {**os.environ, "SENTINEL_CONFIG": str(config)}
    try:
        # Whose machine the run is on, is not known.
        settings = load({"machine_seconds": 0}, environ=environ)
        agent = follower(path, run or name_of(path), settings, max_steps)
    except (SettingsError, NewerSchemaError, RunIdError, AlreadyServedError) as error:
        print(f"sentinel watch: {error}", file=sys.stderr)
        raise typer.Exit(CANNOT_READ) from None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stopping.set())
    print(f"Watching {path} as run {agent.run}; Ctrl-C ends it.", flush=True)
    agent.serve()


def _check(path: Path) -> None:
    """Leave with one plain line where there is something that is no log."""
    from sentinel.readers.format_detection import recognised

    if not (path.exists() or path.parent.is_file()) or (path.is_file() and not path.stat().st_size):
        return
    if path.is_dir() and not any(path.iterdir()):
        return
    try:
        recognised(path)
    except (OSError, ValueError) as error:
        print(f"sentinel watch: cannot read {path}: {error}", file=sys.stderr)
        raise typer.Exit(CANNOT_READ) from None


def name_of(path: Path) -> str:
    """A name for the run of that log: of its folder and itself, and the same every time.

    >>> name_of(Path("/data/my run/trainer_log.jsonl"))[:-7]
    'my-run-trainer_log'
    """
    words = f"{path.parent.name}-{path.stem if path.suffix else path.name}"
    short = hashlib.sha256(str(path).encode()).hexdigest()[:6]
    return f"{_NOT_IN_A_NAME.sub('-', words).strip('-.')[:80] or 'log'}-{short}"


def follower(path: Path, run: str, settings: Settings, max_steps: int = 0) -> Agent:
    """The agent of a run whose log is followed in the place of its ranks' rings.

    Raises what `Agent` does.
    """
    from sentinel.agent.main import Agent
    from sentinel.readers.follow import FollowedLog

    class Follower(Agent):
        """Its source gives what a LiveSource gives, of another origin."""

        source: FollowedLog  # type: ignore[assignment]

        def _assemble(self, database: Path) -> None:
            super()._assemble(database)
            self.judge.outlets += (Printer(),)
            known = self.judge.journal.positions()
            self.source = FollowedLog(self.run, path, self.tally, known, self.clock, max_steps)

        def turn(self) -> None:
            self.judge.telling.history = self.source.behind
            super().turn()
            if remark := self.source.remarked():
                print(f"sentinel watch: of {path}, {remark}.", file=sys.stderr, flush=True)

    return Follower(run, settings)


class Printer:
    """Prints what people are told, each thing once."""

    def __init__(self) -> None:
        self.printed: dict[str, str] = {}

    def take(self, verdict: Verdict) -> None:
        """Print what is news in it."""
        for page in verdict.told:
            if _is_news(self.printed.get(page.incident.name), page):
                print(_line(page), flush=True)
                self.printed[page.incident.name] = page.subject


def _is_news(printed: str | None, page: Page) -> bool:
    """Whether people have not read it yet: a case that only grew is not told again."""
    from sentinel.model.incident import Reason

    return page.reason is not Reason.UPDATED or page.subject != printed


def _line(page: Page) -> str:
    """One case in a line; where its cause has a name, in lines with evidence and remedy."""
    from sentinel.cli.status import printable
    from sentinel.model.incident import Reason

    incident, known = page.incident, page.diagnosis
    words = f"{incident.severity.value} {incident.key.detector} {page.reason.value}"
    lines = [f"step {page.step}: {words}: {incident.finding.summary}"]
    if known is not None and page.reason is not Reason.RESOLVED:
        lines.append(f"behind it: {known.title} ({known.belief})")
        lines += [clue.dated for clue in known.evidence]
        lines.append(f"what to do: {known.remedy}")
        if page.last_good_step is not None:
            lines.append(f"last checkpoint before: step {page.last_good_step}")
    return "\n  ".join(map(printable, lines))
