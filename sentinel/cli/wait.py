"""`sentinel wait`: returns once a run is unhealthy, finished, at a step, or has no open case."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from sentinel.cli._options import JsonOption, RunArgument, error_exit

if TYPE_CHECKING:
    from sentinel.agent.run_waiting import Waited

EXIT_CODES = {"reached": 0, "unhealthy": 3, "ended": 4, "timeout": 5}
"""Exit status by the outcome of the wait."""


def wait(
    run: RunArgument,
    until: Annotated[
        list[str],
        typer.Option(help="unhealthy, finished, case-resolved or step=N; may be repeated."),
    ],
    timeout: Annotated[
        float | None, typer.Option(min=0.0, help="Seconds after which it returns in any case.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Wait for a run, and print the verdict on it once one of the conditions holds.

    Of an ended run it answers at once. The agent of the run may end or start again meanwhile.

    Exit status: 0 if a condition holds; 3 if the run ended badly while `finished` was waited for,
    or `unhealthy` came first of several; 4 if the run ended before a condition held; 5 after the
    timeout; 2 if there is no such run, or an argument is wrong.
    """
    from sqlite3 import DatabaseError

    from sentinel.agent.run_lookup import UnknownRunError
    from sentinel.agent.run_waiting import wait_for_run
    from sentinel.store.database import NewerSchemaError
    from sentinel.transport.paths import RunIdError

    if sys.stderr.isatty():
        print(f"Waiting for {run}: {' or '.join(until)}. Ctrl-C ends this.", file=sys.stderr)
    try:
        waited = wait_for_run(run, until, timeout)
    except (UnknownRunError, RunIdError, ValueError) as error:
        raise error_exit("wait", str(error)) from None
    except (NewerSchemaError, DatabaseError) as error:
        raise error_exit("wait", f"cannot use the database of {run}: {error}") from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if json:
        print(jsonlib.dumps(waited.to_dict()))
    else:
        for line in _lines(waited):
            print(line)
    raise typer.Exit(EXIT_CODES[waited.end.outcome.value])


def _lines(waited: Waited) -> Iterator[str]:
    from sentinel.cli._terminal import escape_unprintable
    from sentinel.model.quantity_text import format_duration
    from sentinel.store.verdict import verdict_parts

    verdict, after = waited.verdict, format_duration(waited.seconds)
    ends = {
        "ended": f"the run ended before that ({after})",
        "timeout": f"the time is over ({after})",
    }
    end = ends.get(waited.end.outcome.value, f"{waited.end.condition} ({after})")
    yield escape_unprintable(f"{waited.run}: {end}")
    yield escape_unprintable(f"  {verdict['title']}: {verdict['sentence']}")
    yield from (escape_unprintable(f"  {label}: {text}") for label, text in verdict_parts(verdict))
