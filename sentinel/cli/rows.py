"""`sentinel rows`: the rows of the data set behind a case, by rank."""

from __future__ import annotations

import json as jsonlib
from typing import TYPE_CHECKING, Annotated

import typer

from sentinel.cli._options import (
    JsonOption,
    complete_run,
    error_exit,
    exit_on,
    resolve_argument,
    resolve_run,
)
from sentinel.cli._run_database import run_database_path

if TYPE_CHECKING:
    from sentinel.store.incident_rows import IncidentRows

_ROWS_PER_LINE = 16


def rows(
    case: Annotated[
        str,
        typer.Argument(
            help="Name of the case, as in `sentinel status RUN`, or of an incident of it."
        ),
    ],
    run: Annotated[
        str | None,
        typer.Option(
            help="Run id; by default, the start of the name of the case.",
            autocompletion=complete_run,
            callback=resolve_argument,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show the rows of the data set that each rank drew for the step of a spike, NaN or explosion.

    Rows are the indices that the sampler of the DataLoader drew. With --json, one object for each
    rank and step; one with a "gap" names a reason why there are no rows, or none of some ranks.

    Exit status: 0 on success, also without rows; 2 if there is no such case or run.
    """
    from contextlib import closing
    from sqlite3 import DatabaseError

    from sentinel.store.database import NewerSchemaError, connect_read_only
    from sentinel.store.feedback import UnknownCaseError, find_case
    from sentinel.store.incident_rows import case_incidents, load_incident_rows

    if run is None and "/" not in case:
        raise error_exit("rows", f"give --run RUN, or the whole name: RUN/{case}")
    if run is None:
        start, _, case = case.partition("/")
        run = resolve_run(start)
    path = run_database_path("rows", run)
    try:
        with closing(connect_read_only(path)) as connection:
            name = f"{run}/{case}"
            found = load_incident_rows(connection, [name])
            if not found:
                with exit_on("rows", UnknownCaseError):
                    name = find_case(connection, run, case)
                found = load_incident_rows(connection, case_incidents(connection, name))
    except (NewerSchemaError, DatabaseError, FileNotFoundError) as error:
        raise error_exit("rows", f"cannot read {path}: {error}") from None
    for incident, stored in found.items():
        _print(name, incident, stored, as_json=json)
    if not found:
        gap = "no incident of the case is a spike, a NaN or an explosion of a step"
        if json:
            print(jsonlib.dumps({"case": name, "incident": None, "gap": gap}))
        else:
            print(f"Case {name} has no rows: {gap}.")


def _print(case: str, incident: str, stored: IncidentRows, *, as_json: bool) -> None:
    if as_json:
        for each in stored.ranks:
            fields = {"case": case, "incident": incident, **each.to_dict()}
            print(jsonlib.dumps(fields, allow_nan=False))
        if stored.gap:
            print(jsonlib.dumps({"case": case, "incident": incident, "gap": stored.gap}))
        return
    from sentinel.cli._terminal import escape_unprintable

    shown = escape_unprintable(incident)
    if not stored.ranks:
        print(f"{shown} has no rows: {stored.gap}.")
        return
    print(f"{shown}: rows of step {stored.ranks[0].step}")
    for each in stored.ranks:
        further = each.drawn - len(each.rows)
        more = f", of which {further} are not stored" if further else ""
        plural = "" if each.drawn == 1 else "s"
        print(f"\nstep {each.step}, rank {each.rank}: {each.drawn} row{plural}{more}")
        for row, loss in each.top:
            print(f"  row {row}: loss {loss:.4g}")
        for first in range(0, len(each.rows), _ROWS_PER_LINE):
            print("  " + " ".join(map(str, each.rows[first : first + _ROWS_PER_LINE])))
    if stored.gap:
        print(f"\nFurther rows are missing: {stored.gap}.")
