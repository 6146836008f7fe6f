"""`sentinel ack`: say that somebody has in hand what fires now."""

from __future__ import annotations

import time
from sqlite3 import Connection
from typing import Annotated, Any

import typer

from sentinel.cli.silence import Json, Run, Which, Why, opened, refusal, tell, whoever


def ack(  # noqa: PLR0913, PLR0917 - each is an option
    run: Run,
    detector: Which = None,
    why: Why = "",
    listed: Annotated[bool, typer.Option("--list", help="Show who has what in hand.")] = False,
    end: Annotated[bool, typer.Option("--end", help="Give it back.")] = False,
    json: Json = False,
) -> None:
    """Take in hand what fires: it is paged again only if it gets louder."""
    from sentinel.store import silences

    if listed and end:
        raise refusal("ack", "say one of --list and --end.")
    with opened("ack", run, detector) as connection:
        if end:
            given = {"given_back": silences.give_back(connection, detector or "")}
            tell([given], lambda told: f"{told['given_back']} given back.", json=json)
            return
        named = [] if listed else _taken(connection, run, detector, why)
        found = silences.acks(connection)
        tell([_plain(found[name]) for name in named or found], _shown, json=json)


def _taken(connection: Connection, run: str, detector: str | None, why: str) -> list[str]:
    from sentinel.store import silences

    named = silences.acknowledge(connection, detector or "", time.time(), whoever(), why)
    if not named:
        of = f" of {detector}" if detector else ""
        raise refusal("ack", f"nothing{of} fires on run {run}.")
    return named


def _plain(told: Any) -> dict[str, Any]:
    severity = told.severity.value
    words = {"by": told.by, "why": told.why}
    return {"incident": told.incident, "severity": severity, "time": told.time, **words}


def _shown(told: dict[str, Any]) -> str:
    from sentinel.metrics.label import label
    from sentinel.store.silences import signed

    return signed(f"{told['incident']} acknowledged", label(told["by"]), label(told["why"]))
