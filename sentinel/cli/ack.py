"""`sentinel ack`: acknowledge the firing incidents of a run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sentinel.cli._options import (
    DetectorArgument,
    JsonOption,
    ReasonOption,
    RunArgument,
    error_exit,
)
from sentinel.cli._run_database import open_run_database
from sentinel.cli.silence import current_user, print_items

if TYPE_CHECKING:
    from sqlite3 import Connection


def ack(  # noqa: PLR0913, PLR0917 - each is an option
    run: RunArgument,
    detector: DetectorArgument = None,
    reason: ReasonOption = "",
    listed: Annotated[bool, typer.Option("--list", help="List the acknowledgements.")] = False,
    revoke: Annotated[bool, typer.Option("--revoke", help="Revoke the acknowledgement.")] = False,
    json: JsonOption = False,
) -> None:
    """Acknowledge firing incidents: another notification is sent only if the severity rises.

    Exit status: 0 on success, 2 if no incident fires, or the run or an argument is wrong.
    """
    from sentinel.store import silences

    if listed and revoke:
        raise error_exit("ack", "give only one of --list and --revoke.")
    with open_run_database("ack", run, detector) as connection:
        if revoke:
            result = {"revoked": silences.withdraw_acks(connection, detector or "")}
            print_items([result], _format_revoked, json=json)
            return
        names = [] if listed else _acknowledge(connection, run, detector, reason)
        acks = silences.load_acks(connection)
        items = [silences.ack_to_dict(acks[name]) for name in names or acks]
        print_items(items, _format, json=json)
        if not names and not acks and not json:
            print(f"Run {run} has no acknowledged incidents.")


def _acknowledge(connection: Connection, run: str, detector: str | None, reason: str) -> list[str]:
    from sentinel.store import silences

    names = silences.acknowledge(connection, detector or "", time.time(), current_user(), reason)
    if not names:
        incident = f"incident of {detector}" if detector else "incident"
        raise error_exit("ack", f"run {run} has no firing {incident}.")
    return names


def _format(item: dict[str, Any]) -> str:
    from sentinel.cli._terminal import escape_unprintable
    from sentinel.store.silences import with_author

    text = with_author(f"{item['incident']} acknowledged", item["author"], item["comment"])
    return escape_unprintable(text)


def _format_revoked(item: dict[str, Any]) -> str:
    count = item["revoked"]
    return f"{count} acknowledgement{'s' if count != 1 else ''} revoked."
