"""`sentinel feedback`: mark the notification of a case as useful or as a false alarm."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from sentinel.cli._options import (
    JsonOption,
    complete_run,
    error_exit,
    exit_on,
    resolve_argument,
    resolve_run,
)
from sentinel.cli._run_database import open_run_database
from sentinel.cli.silence import current_user, print_items


def feedback(
    case: Annotated[
        str,
        typer.Argument(help="Name of the case, as in `sentinel status RUN`, such as kl_blowup#1."),
    ],
    mark: Annotated[str, typer.Argument(help="false (a false alarm) or useful.")],
    comment: Annotated[str, typer.Option(help="Comment, shown to other users.")] = "",
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
    """Mark the notification of a case as useful or as a false alarm, of a live or a past run.

    A new mark replaces the last one. The page of the run and reports show it with its case.

    Exit status: 0 on success, 2 if there is no such case or run, or an argument is wrong.
    """
    from sentinel.store import feedback as store

    if mark not in store.MARKS:
        raise error_exit("feedback", f"the mark must be {' or '.join(store.MARKS)}.")
    if run is None and "/" not in case:
        raise error_exit("feedback", f"give --run RUN, or the whole name: RUN/{case}")
    if run is None:
        start, _, case = case.partition("/")
        run = resolve_run(start)
    with open_run_database("feedback", run) as connection:
        with exit_on("feedback", store.UnknownCaseError):
            name = store.find_case(connection, run, case)
        given = store.Feedback(mark, time.time(), current_user(), comment)
        stored = store.store_feedback(connection, name, given)
    print_items([{"case": name, **stored.to_dict()}], _format, json=json)


def _format(item: dict[str, Any]) -> str:
    from sentinel.cli._terminal import escape_unprintable
    from sentinel.store.feedback import feedback_text

    return escape_unprintable(f"{item['case']}: {feedback_text(item)}")
