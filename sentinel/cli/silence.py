"""`sentinel silence`: suppress the notifications of a run, or of one detector, for a period."""

from __future__ import annotations

import getpass
import json as jsonlib
import time
from typing import Annotated, Any

import typer

from sentinel.cli._options import (
    DetectorArgument,
    JsonOption,
    ReasonOption,
    RunArgument,
    error_exit,
)
from sentinel.cli._run_database import open_run_database


def silence(  # noqa: PLR0913, PLR0917 - each is an option
    run: RunArgument,
    detector: DetectorArgument = None,
    duration: Annotated[str, typer.Option("--for", help="Duration: 90s, 30m, 2h, 1d.")] = "",
    reason: ReasonOption = "",
    listed: Annotated[bool, typer.Option("--list", help="List the active silences.")] = False,
    end: Annotated[bool, typer.Option("--end", help="End the active silences.")] = False,
    json: JsonOption = False,
) -> None:
    """Silence notifications for a period; incidents still firing afterwards are sent then.

    Exit status: 0 on success, 2 if the run or an argument is wrong.
    """
    from sentinel.store import silences

    if (bool(duration), listed, end).count(True) != 1:
        raise error_exit("silence", "give exactly one of --for, --list and --end.")
    now = time.time()
    ends_at = now + (_parse_duration(duration) if duration else 0.0)
    with open_run_database("silence", run, detector) as connection:
        if duration:
            new = silences.Silence(detector or "", now, ends_at, current_user(), reason)
            added = silences.add_silence(connection, new)
            print_items([silences.silence_to_dict(added)], _format, json=json)
        elif end:
            result = {"ended": silences.expire_silences(connection, detector or "", now)}
            print_items([result], _format_ended, json=json)
        else:
            active = silences.active_silences(connection, now)
            print_items([silences.silence_to_dict(each) for each in active], _format, json=json)
            if not active and not json:
                print(f"Run {run} has no active silences.")


def current_user() -> str:
    """Name of the user; empty if the machine does not know it, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def print_items(items: list[dict[str, Any]], format_item: Any, *, json: bool) -> None:
    """Print each item in a line, as JSON or as text."""
    for item in items:
        print(jsonlib.dumps(item) if json else format_item(item))


def _parse_duration(text: str) -> float:
    from sentinel.store.silences import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise error_exit("silence", f"--for {error}") from None


def _format(item: dict[str, Any]) -> str:
    from sentinel.cli._terminal import escape_unprintable
    from sentinel.store.silences import format_utc_time, with_author

    detector = item["detector"] or "all detectors"
    text = f"{detector} silenced until {format_utc_time(item['ends_at'])}"
    return escape_unprintable(with_author(text, item["author"], item["comment"]))


def _format_ended(item: dict[str, Any]) -> str:
    count = item["ended"]
    return f"{count} silence{'s' if count != 1 else ''} ended."
