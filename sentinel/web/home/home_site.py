"""What `sentinel serve` serves: the list of runs, and the page and data of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sentinel.web.home.compare_routes import answer_comparison
from sentinel.web.home.importance_routes import MAX_RUNS, ImportanceJobs, answer_importance
from sentinel.web.home.run_list import (
    DEFAULT_ROWS,
    DEFAULT_SORT,
    GROUPS,
    MAX_COLUMNS,
    MAX_ROWS,
    SETTING,
    SORT_KEYS,
    RunQuery,
)
from sentinel.web.responses import RequestError, json_response
from sentinel.web.run_routes import RunRoutes, RunView, whole_number
from sentinel.web.static_files import StaticFiles
from sentinel.web.worker_pool import WorkerPool

Read = TypeVar("Read")

LIST_THREADS = 4
_MAX_FILTER_CHARS = 200


class RunSource(Protocol):
    """Where the runs come from: a home directory, or a folder of logs."""

    def list_runs(self, query: RunQuery) -> dict[str, Any]:
        """A page of the list, see `query_runs`."""

    def list_settings(self, words: str) -> dict[str, Any]:
        """The settings of the runs that a filter selects, see `describe_settings`."""

    def view(self, run: str) -> RunView | None:
        """The view of a run; None if there is none of that id."""

    def path(self, run: str) -> Path | None:
        """The database or the log of a run; None if there is none of that id."""


class HomeSite:
    """The list at `/`, the page of each run at `/runs/<run>/`."""

    def __init__(self, runs: RunSource) -> None:
        self._runs = runs
        self._run_routes: RunRoutes | None = None
        # Its own threads: those that read runs may all be busy.
        self._pool = WorkerPool(LIST_THREADS)
        self._importance = ImportanceJobs()

    def routes(self, write_token: str) -> list[BaseRoute]:
        """All routes but those of every server."""
        static = StaticFiles()
        run_routes = self._run_routes = RunRoutes(self._find_view, write_token, static)
        return [
            Route("/", static.page("runs.html")),
            Route("/compare", static.page("compare.html")),
            Route("/api/runs", self._answer_runs),
            Route("/api/settings", self._answer_settings),
            Route("/api/compare", self._answer_comparison),
            Route("/importance", static.page("importance.html")),
            Route("/api/importance", self._answer_importance),
            Route("/static/{path:path}", static.serve),
            *run_routes.page_routes(),
        ]

    def check(self) -> None:
        """It is ready as soon as it listens."""

    def close(self) -> None:
        """End the streams of events, and what is being worked out."""
        self._importance.close()
        if self._run_routes is not None:
            self._run_routes.streams.close()

    async def _answer_runs(self, request: Request) -> Response:
        query = _parse_query(request)
        return await self._pooled(lambda: json_response(request, self._runs.list_runs(query)))

    async def _answer_settings(self, request: Request) -> Response:
        words = request.query_params.get("filter", "")[:_MAX_FILTER_CHARS]
        return json_response(request, await self._pooled(lambda: self._runs.list_settings(words)))

    async def _answer_comparison(self, request: Request) -> Response:
        assert self._run_routes is not None
        return await answer_comparison(request, self._runs.view, self._run_routes.pool.run)

    async def _answer_importance(self, request: Request) -> Response:
        return await answer_importance(request, self._importance, self._find_paths, self._pooled)

    def _find_paths(self, names: list[str], words: str) -> dict[str, Path]:
        """The paths of these runs, or of all that a filter selects."""
        if not names:
            listed = self._runs.list_runs(RunQuery(filter=words, limit=MAX_RUNS + 1))["runs"]
            names = [str(each["run"]) for each in listed]
        paths = {name: self._runs.path(name) for name in names}
        if missing := [name for name, path in paths.items() if path is None]:
            raise RequestError(404, f"There is no run {missing[0]!r}. It may have been deleted.")
        return {name: path for name, path in paths.items() if path is not None}

    async def _find_view(self, request: Request) -> RunView:
        run = str(request.path_params["run"])
        try:
            view = await self._pooled(partial(self._runs.view, run))
        except RequestError as error:
            raise HTTPException(error.status, str(error)) from None
        if view is None:
            raise HTTPException(404, "There is no such run. It may have been deleted.")
        view.is_listed = True
        return view

    async def _pooled(self, call: Callable[[], Read]) -> Read:
        try:
            return await self._pool.run(call)
        except TimeoutError:
            raise RequestError(503, "The home directory does not answer.") from None


def _parse_query(request: Request) -> RunQuery:
    given = request.query_params
    query = RunQuery(
        filter=given.get("filter", "")[:_MAX_FILTER_CHARS],
        sort=given.get("sort") or DEFAULT_SORT,
        group=given.get("group", ""),
        offset=whole_number(request, "offset", 0),
        limit=min(whole_number(request, "limit", DEFAULT_ROWS), MAX_ROWS),
        columns=tuple(dict.fromkeys(given.getlist("column")))[:MAX_COLUMNS],
    )
    setting = f"or {SETTING}NAME for a setting"
    sort = query.sort.removeprefix("-")
    if sort not in SORT_KEYS and not sort.startswith(SETTING):
        names = ", ".join(SORT_KEYS)
        raise RequestError(400, f"sort must be one of {names}, {setting}, with - for descending.")
    if query.group and query.group not in GROUPS and not query.group.startswith(SETTING):
        raise RequestError(400, f"group must be one of {', '.join(GROUPS)}, {setting}.")
    return query
