"""The comparison of runs as JSON, for the page that compares them."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from sentinel.report.compared_results import compared_results
from sentinel.report.comparison import AXES, MAX_RUNS, Axis, ComparedRun, Window, compare
from sentinel.report.own_runs import own_runs
from sentinel.store.database import NewerSchemaError
from sentinel.transport.paths import home_dir
from sentinel.web.responses import RequestError, json_response
from sentinel.web.run_routes import RunView, optional_float, whole_number

log = logging.getLogger(__name__)

_DEFAULT_POINTS, _MAX_POINTS = 300, 5000
_MAX_SIGNALS = 200
_MAX_OWN_SECONDS = 2.0
"""Time for which other runs are read, while a page waits."""


async def answer_comparison(
    request: Request,
    find_view: Callable[[str], RunView | None],
    read: Callable[[Callable[[], Any]], Awaitable[Any]],
) -> Response:
    """The comparison of the runs of the query: run and signals, each several times, and the axis.

    `read` calls a function in a thread for reading.
    """
    try:
        call = partial(_compare, find_view, _parse_query(request))
        return json_response(request, await read(call))
    except TimeoutError:
        raise RequestError(503, "The home directory does not answer.") from None
    except (sqlite3.Error, OSError, NewerSchemaError) as error:
        log.warning("Runs cannot be compared: %s", error)
        raise RequestError(503, f"The data of a run cannot be read: {error}.") from None


@dataclass(frozen=True, slots=True)
class _Query:
    """What is compared, as of the query of the address."""

    runs: Sequence[str]
    signals: Sequence[str]
    axis: Axis
    points: int
    window: Window


def _parse_query(request: Request) -> _Query:
    given = request.query_params
    runs = [*dict.fromkeys(given.getlist("run"))]
    if not 1 <= len(runs) <= MAX_RUNS:
        raise RequestError(400, f"Give 1 to {MAX_RUNS} runs: ?run=a&run=b.")
    axis = next((each for each in AXES if each == given.get("axis", AXES[0])), None)
    if axis is None:
        raise RequestError(400, f"axis must be one of {', '.join(AXES)}.")
    return _Query(
        runs,
        given.getlist("signals")[:_MAX_SIGNALS],
        axis,
        min(max(whole_number(request, "points", _DEFAULT_POINTS), 1), _MAX_POINTS),
        (optional_float(request, "from"), optional_float(request, "to")),
    )


def _compare(find_view: Callable[[str], RunView | None], query: _Query) -> dict[str, Any]:
    compared = []
    for run in query.runs:
        view = find_view(run)
        if view is None:
            raise RequestError(404, f"There is no run {run!r}. It may have been deleted.")
        compared.append(ComparedRun(run, view.reader, view.read_state(), view.directory))
    comparison = compare(
        compared,
        signals=query.signals,
        axis=query.axis,
        points=query.points,
        window=query.window,
    )
    if not query.signals:
        directories = [each.directory for each in compared]
        comparison["insight"] = compared_results(query.runs, directories)
        if len(compared) > 1:
            # Most servers compare no runs, and numpy takes memory.
            from sentinel.report.what_changed import what_changed  # noqa: PLC0415

            own = own_runs(home_dir(), compared[-1].reader.metadata(), _MAX_OWN_SECONDS)
            comparison["what_changed"] = what_changed(compared, own)
    return comparison
