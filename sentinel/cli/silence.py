"""`sentinel silence`: withhold the pages of a run, or of one detector of it, for a while."""

from __future__ import annotations

import getpass
import json as jsonlib
import re
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from sqlite3 import Connection, DatabaseError
from typing import Annotated, Any

import typer

EXIT_REFUSED = 2
MAX_SILENCE_SECONDS = 30 * 86400.0
"""Seconds that a silence may last."""
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS_BY_UNIT = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

RunArgument = Annotated[str, typer.Argument(help="Run id, as `sentinel status` shows it.")]
DetectorArgument = Annotated[str | None, typer.Argument(help="Only this detector; by default all.")]
ReasonOption = Annotated[str, typer.Option(help="Why, for the others.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


def silence(  # noqa: PLR0913, PLR0917 - each is an option
    run: RunArgument,
    detector: DetectorArgument = None,
    duration: Annotated[str, typer.Option("--for", help="How long: 90s, 30m, 2h, 1d.")] = "",
    why: ReasonOption = "",
    listed: Annotated[bool, typer.Option("--list", help="Show the silences there are.")] = False,
    end: Annotated[bool, typer.Option("--end", help="End them now.")] = False,
    json: JsonOption = False,
) -> None:
    """Withhold pages for a while. What still fires when it is over is told then."""
    from sentinel.store import silences

    if (bool(duration), listed, end).count(True) != 1:
        raise error_exit("silence", "say one of --for 2h, --list and --end.")
    now = time.time()
    ends = now + (_parse_duration(duration) if duration else 0.0)
    with open_run_database("silence", run, detector) as connection:
        if duration:
            new = silences.Silence(detector or "", now, ends, current_user(), why)
            print_items(
                [silences.silence_to_dict(silences.add_silence(connection, new))],
                _format,
                json=json,
            )
        elif end:
            ended = silences.expire_silences(connection, detector or "", now)
            print_items([{"ended": ended}], lambda told: f"{told['ended']} ended.", json=json)
        else:
            found = [
                silences.silence_to_dict(each) for each in silences.active_silences(connection, now)
            ]
            print_items(found, _format, json=json)
            if not found and not json:
                print(f"Nothing is silenced on run {run}.")


@contextmanager
def open_run_database(command: str, run: str, detector: str | None) -> Iterator[Connection]:
    """The run's database. Leaves with an error where there is none, or no such detector."""
    from sentinel.store.database import NewerSchemaError, connect
    from sentinel.transport.paths import RunIdError, home_dir, validate_run_id

    try:
        path = home_dir() / "runs" / validate_run_id(run) / "sentinel.db"
    except RunIdError as error:
        raise error_exit(command, str(error)) from None
    if not path.is_file():
        there = home_dir() / "runs"
        raise error_exit(
            command, f"there is no run {run!r} under {home_dir()}: `ls {there}` names them."
        )
    if detector is not None:
        _check_detector(command, detector)
    try:
        with closing(connect(path)) as connection:
            yield connection
    except (NewerSchemaError, DatabaseError) as error:
        raise error_exit(command, f"{path} cannot be used: {error}") from None


def _check_detector(command: str, detector: str) -> None:
    from difflib import get_close_matches

    from sentinel.config.plugins import load_modules

    known = sorted(load_modules("detectors"))
    if detector not in known:
        near = get_close_matches(detector, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise error_exit(command, f"no detector is called {detector!r}: {hint}{', '.join(known)}.")


def error_exit(command: str, message: str) -> typer.Exit:
    """Say what is wrong; the way to leave."""
    print(f"sentinel {command}: {message}", file=sys.stderr)
    return typer.Exit(EXIT_REFUSED)


def current_user() -> str:
    """The name of who asks; empty where the machine does not know it, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def print_items(items: list[dict[str, Any]], format_item: Any, *, json: bool) -> None:
    """Print each, for machines or for people."""
    for each in items:
        print(jsonlib.dumps(each) if json else format_item(each))


def _parse_duration(text: str) -> float:
    parts = _DURATION_PART.findall(text)
    seconds = sum(float(number) * _SECONDS_BY_UNIT[unit] for number, unit in parts)
    if "".join(map("".join, parts)) != text or not 0 < seconds <= MAX_SILENCE_SECONDS:
        trouble = f"--for {text!r} is no time: give up to 30d, such as 90s or 1h30m."
        raise error_exit("silence", trouble)
    return seconds


def _format(told: dict[str, Any]) -> str:
    from sentinel.metrics.label import sanitize_label
    from sentinel.store.silences import format_utc_time, with_author

    text = f"{told['detector'] or 'all detectors'} silenced until {format_utc_time(told['ends'])}"
    return with_author(text, sanitize_label(told["author"]), sanitize_label(told["comment"]))
