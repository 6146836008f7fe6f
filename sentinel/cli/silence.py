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

REFUSED = 2
LONGEST = 30 * 86400.0
"""Seconds that a silence may last."""
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

Run = Annotated[str, typer.Argument(help="Run id, as `sentinel status` shows it.")]
Which = Annotated[str | None, typer.Argument(help="Only this detector; by default all.")]
Why = Annotated[str, typer.Option(help="Why, for the others.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


def silence(  # noqa: PLR0913, PLR0917 - each is an option
    run: Run,
    detector: Which = None,
    lasting: Annotated[str, typer.Option("--for", help="How long: 90s, 30m, 2h, 1d.")] = "",
    why: Why = "",
    listed: Annotated[bool, typer.Option("--list", help="Show the silences there are.")] = False,
    end: Annotated[bool, typer.Option("--end", help="End them now.")] = False,
    json: Json = False,
) -> None:
    """Withhold pages for a while. What still fires when it is over is told then."""
    from sentinel.store import silences

    if (bool(lasting), listed, end).count(True) != 1:
        raise refusal("silence", "say one of --for 2h, --list and --end.")
    now = time.time()
    ends = now + (_duration(lasting) if lasting else 0.0)
    with opened("silence", run, detector) as connection:
        if lasting:
            new = silences.Silence(detector or "", now, ends, whoever(), why)
            tell([silences.plain(silences.enter(connection, new))], _shown, json=json)
        elif end:
            ended = silences.end(connection, detector or "", now)
            tell([{"ended": ended}], lambda told: f"{told['ended']} ended.", json=json)
        else:
            found = [silences.plain(each) for each in silences.lasting(connection, now)]
            tell(found, _shown, json=json)
            if not found and not json:
                print(f"Nothing is silenced on run {run}.")


@contextmanager
def opened(verb: str, run: str, detector: str | None) -> Iterator[Connection]:
    """The run's database. Leaves with an error where there is none, or no such detector."""
    from sentinel.store.database import NewerSchemaError, connect
    from sentinel.transport.paths import RunIdError, checked, home

    try:
        path = home() / "runs" / checked(run) / "sentinel.db"
    except RunIdError as error:
        raise refusal(verb, str(error)) from None
    if not path.is_file():
        there = home() / "runs"
        raise refusal(verb, f"there is no run {run!r} under {home()}: `ls {there}` names them.")
    if detector is not None:
        _check(verb, detector)
    try:
        with closing(connect(path)) as connection:
            yield connection
    except (NewerSchemaError, DatabaseError) as error:
        raise refusal(verb, f"{path} cannot be used: {error}") from None


def _check(verb: str, detector: str) -> None:
    from difflib import get_close_matches

    from sentinel.config.plugins import modules

    known = sorted(modules("detectors"))
    if detector not in known:
        near = get_close_matches(detector, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise refusal(verb, f"no detector is called {detector!r}: {hint}{', '.join(known)}.")


def refusal(verb: str, trouble: str) -> typer.Exit:
    """Say what is wrong; the way to leave."""
    print(f"sentinel {verb}: {trouble}", file=sys.stderr)
    return typer.Exit(REFUSED)


def whoever() -> str:
    """The name of who asks; empty where the machine does not know it, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def tell(found: list[dict[str, Any]], shown: Any, *, json: bool) -> None:
    """Print each, for machines or for people."""
    for each in found:
        print(jsonlib.dumps(each) if json else shown(each))


def _duration(text: str) -> float:
    parts = _PART.findall(text)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if "".join(map("".join, parts)) != text or not 0 < seconds <= LONGEST:
        trouble = f"--for {text!r} is no time: give up to 30d, such as 90s or 1h30m."
        raise refusal("silence", trouble)
    return seconds


def _shown(told: dict[str, Any]) -> str:
    from sentinel.metrics.label import label
    from sentinel.store.silences import moment, signed

    text = f"{told['detector'] or 'all detectors'} silenced until {moment(told['ends'])}"
    return signed(text, label(told["by"]), label(told["why"]))
