"""`sentinel ack`: say that somebody has in hand what fires now."""

from __future__ import annotations

import time
from sqlite3 import Connection
from typing import Annotated, Any

import typer

from sentinel.cli.silence import (
    DetectorArgument,
    JsonOption,
    ReasonOption,
    RunArgument,
    current_user,
    error_exit,
    open_run_database,
    print_items,
)


def ack(  # noqa: PLR0913, PLR0917 - each is an option
    run: RunArgument,
    detector: DetectorArgument = None,
    why: ReasonOption = "",
    listed: Annotated[bool, typer.Option("--list", help="Show who has what in hand.")] = False,
    end: Annotated[bool, typer.Option("--end", help="Give it back.")] = False,
    json: JsonOption = False,
) -> None:
    """Take in hand what fires: it is paged again only if it gets louder."""
    from sentinel.store import silences

    if listed and end:
        raise error_exit("ack", "say one of --list and --end.")
    with open_run_database("ack", run, detector) as connection:
        if end:
            given = {"given_back": silences.withdraw_acks(connection, detector or "")}
            print_items([given], lambda told: f"{told['given_back']} given back.", json=json)
            return
        named = [] if listed else _acknowledge(connection, run, detector, why)
        found = silences.load_acks(connection)
        print_items([_to_dict(found[name]) for name in named or found], _format, json=json)


def _acknowledge(connection: Connection, run: str, detector: str | None, why: str) -> list[str]:
    from sentinel.store import silences

    named = silences.acknowledge(connection, detector or "", time.time(), current_user(), why)
    if not named:
        of = f" of {detector}" if detector else ""
        raise error_exit("ack", f"nothing{of} fires on run {run}.")
    return named


def _to_dict(told: Any) -> dict[str, Any]:
    severity = told.severity.value
    words = {"author": told.author, "comment": told.comment}
    return {"incident": told.incident, "severity": severity, "time": told.time, **words}


def _format(told: dict[str, Any]) -> str:
    from sentinel.metrics.label import sanitize_label
    from sentinel.store.silences import with_author

    return with_author(
        f"{told['incident']} acknowledged", sanitize_label(told["author"]), sanitize_label(told["comment"])
    )
