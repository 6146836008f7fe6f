"""The commands planned for the ranks of this node, one row for each case that triggered one."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from sentinel.transport.command_page import ACTIONS, Command

_ACTION_TEXTS = {"checkpoint": "a checkpoint", "stop": "a stop", "call": "a call of your function"}


@dataclass(frozen=True, slots=True)
class PlannedCommand:
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
        "insert into command(incident, number, attempt, ready_from_index, due_step_index, step,"
        " actions, cause) values(?, ?, ?, ?, ?, ?, ?, ?)",
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
        "insert into command(incident, refusal) values(?, ?)", (incident_name, refusal)
    )


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
    if refusal is not None:
        return f"No command was sent to the run, because {refusal}."
    return "" if actions is None else _format_request(frozenset(actions.split()), step)


def _format_request(actions: frozenset[str], step: int) -> str:
    texts = [_ACTION_TEXTS[action] for action in ACTIONS if action in actions]
    *first, last = texts
    joined = f"{', '.join(first)} and {last}" if first else last
    verb = "were" if first else "was"
    return f"{joined[0].upper()}{joined[1:]} {verb} requested for step {step}."
