"""The commands for the ranks of this node, one row for each case or person that wants one.

A row is a request until the agent has planned the command for a step, or refused it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from typing import NamedTuple

from sentinel.transport.command_page import ACTIONS, Command

_ACTION_TEXTS = {"checkpoint": "a checkpoint", "stop": "a stop", "call": "a call of your function"}


REQUEST_PREFIX = "request/"
"""Start of the name of a request that no case made."""
SHADOW = "the mode of actions is shadow"
"""Refusal of a command that is only stored, with its actions and step."""


class ActionRequest(NamedTuple):
    """A command that is to be planned: the case, or `REQUEST_PREFIX` and a time, and why."""

    name: str
    actions: frozenset[str]
    cause: str = ""


class PlannedCommand(NamedTuple):
    """A command, the attempt of the run it is meant for, and the training step it is due at."""

    command: Command
    attempt: int
    step: int


def store_command(
    connection: sqlite3.Connection, incident_name: str, planned: PlannedCommand
) -> None:
    """Store the command of a case in the caller's transaction."""
    command = planned.command
    connection.execute(
        "insert or replace into command(incident, number, attempt, ready_from_index,"
        " due_step_index, step, actions, cause) values(?, ?, ?, ?, ?, ?, ?, ?)",
        (
            incident_name,
            command.number,
            planned.attempt,
            command.ready_from_index,
            command.due_step_index,
            planned.step,
            " ".join(sorted(command.actions)),
            command.cause,
        ),
    )


def store_refusal(connection: sqlite3.Connection, incident_name: str, refusal: str) -> None:
    """Store why a case triggered no command; `refusal` follows "because"."""
    connection.execute(
        "insert or replace into command(incident, refusal) values(?, ?)", (incident_name, refusal)
    )


def store_shadow(connection: sqlite3.Connection, request: ActionRequest, step: int) -> None:
    """Store the command that a case would have triggered for that step in another mode."""
    row = (request.name, " ".join(sorted(request.actions)), step, request.cause, SHADOW)
    connection.execute(
        "insert or replace into command(incident, actions, step, cause, refusal)"
        " values(?, ?, ?, ?, ?)",
        row,
    )


def shadow_stop_step(connection: sqlite3.Connection, incident_name: str) -> int | None:
    """The step at which the case would have stopped the run, if its command was not sent."""
    row = connection.execute(
        "select actions, step from command where incident = ? and refusal = ?",
        [incident_name, SHADOW],
    ).fetchone()
    return None if row is None or "stop" not in row[0].split() else int(row[1])


def store_request(connection: sqlite3.Connection, request: ActionRequest) -> None:
    """Store a request, which the agent of the run plans or refuses soon, if it runs."""
    row = (request.name, " ".join(sorted(request.actions)), request.cause)
    connection.execute("insert into command(incident, actions, cause) values(?, ?, ?)", row)


def newest_row(connection: sqlite3.Connection) -> int:
    """Number of the newest row; 0 without one."""
    return int(connection.execute("select coalesce(max(rowid), 0) from command").fetchone()[0])


def waiting_requests(connection: sqlite3.Connection, after_row: int) -> list[ActionRequest]:
    """The requests after that row that are neither planned nor refused, the oldest first."""
    rows = connection.execute(
        "select incident, actions, cause from command where rowid > ? and number is null"
        " and refusal is null order by rowid",
        [after_row],
    )
    return [ActionRequest(name, frozenset(actions.split()), cause) for name, actions, cause in rows]


def outcome(connection: sqlite3.Connection, name: str) -> tuple[int | None, str | None]:
    """The step that the command of a request is due at, and why it is refused, once known."""
    query = "select step, refusal from command where incident = ?"
    step, refusal = connection.execute(query, [name]).fetchone()
    return step, refusal


def is_planned(connection: sqlite3.Connection, incident_name: str) -> bool:
    """Whether a command, or a refusal, is stored for the case."""
    query = "select 1 from command where incident = ?"
    return connection.execute(query, [incident_name]).fetchone() is not None


def latest_command(connection: sqlite3.Connection) -> PlannedCommand | None:
    """The stored command of the highest number."""
    row = connection.execute(
        "select number, ready_from_index, due_step_index, actions, incident, cause, attempt, step"
        " from command where number is not null order by number desc, rowid limit 1"
    ).fetchone()
    if row is None:
        return None
    number, ready_from_index, due_step_index, actions, incident_name, cause, attempt, step = row
    command = Command(
        number, ready_from_index, due_step_index, frozenset(actions.split()), incident_name, cause
    )
    return PlannedCommand(command, attempt, step)


def command_note(connection: sqlite3.Connection, incident_name: str) -> str:
    """A sentence about the command of a case, for its notification; empty if there is none."""
    row = connection.execute(
        "select actions, step, refusal from command where incident = ?", [incident_name]
    ).fetchone()
    if row is None:
        return ""
    actions, step, refusal = row
    if refusal == SHADOW:
        return f"Shadow mode: {_format_request(actions.split(), step, 'would have been')}"
    if refusal is not None:
        return f"No command was sent to the run, because {refusal}."
    if actions is None:
        return ""
    text = _format_request(actions.split(), step)
    return f"{text[0].upper()}{text[1:]}"


def _format_request(actions: Collection[str], step: int | None, verb: str = "") -> str:
    texts = [_ACTION_TEXTS[action] for action in ACTIONS if action in actions]
    *first, last = texts
    joined = f"{', '.join(first)} and {last}" if first else last
    verb = verb or ("were" if first else "was")
    due = "" if step is None else f" for step {step}"
    return f"{joined} {verb} requested{due}."
