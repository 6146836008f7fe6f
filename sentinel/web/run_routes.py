"""The page of one run and its data, for a live run and for one from long ago.

The agent serves them for its run, `sentinel serve` for every run of a home directory.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import quote
from zlib import crc32

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from sentinel.model.evidence_text import capitalized
from sentinel.model.json_safe import JsonObject
from sentinel.model.run_states import ACTIVE_STATES, STATES_WITHOUT_OUTCOME
from sentinel.notify.report_process import ReportError, build_report, report_file_name
from sentinel.store.artifact import (
    ArtifactError,
    artifact_mark,
    list_artifacts,
    load_artifact,
    shown_data,
)
from sentinel.store.database import NewerSchemaError, change_mark, wait_for_commit
from sentinel.store.notes import NOTE_NAME
from sentinel.store.run_reader import RunReader
from sentinel.store.series.run_series import ignore
from sentinel.store.verdict import health
from sentinel.store.wait_conditions import check_conditions, find_end
from sentinel.web.auth import peer_of
from sentinel.web.feedback_api import FeedbackApi
from sentinel.web.note_api import NoteApi
from sentinel.web.responses import (
    REVALIDATED,
    EncodedJson,
    RequestError,
    body_response,
    is_unchanged,
    json_response,
    json_text,
)
from sentinel.web.run_events import OpenStreams, RunEvents, TooManyViewersError, Viewer
from sentinel.web.static_files import StaticFiles
from sentinel.web.suppression_api import SuppressionApi
from sentinel.web.worker_pool import WorkerPool

log = logging.getLogger(__name__)

RUN_PAGE = "run.html"
DEFAULT_SAMPLE_LIMIT = 20
DEFAULT_POINTS, MAX_POINTS = 800, 5000
DEFAULT_COLUMNS, MAX_COLUMNS = 240, 1000
DEFAULT_LIMIT, MAX_LIMIT = 200, 2000
MAX_SIGNALS = 200
AXES = ("step", "time", "tokens")
_MAX_NUMBER_DIGITS = 18
"""Maximum length of a number in a query: it fits into a 64-bit integer."""
_VALUE_LISTS = ("mean", "min", "max", "rank_min", "rank_max")
_MAX_SEARCH_CHARS = 200
MAX_WAIT_SECONDS, WAIT_LOOK_SECONDS = 60.0, 1.0
"""Longest time until a request that waits is answered, and how often it looks at the run."""
CASES_SECONDS = 5.0
"""Interval at which the cases are read again of a run whose open cases are the same."""
LAYERS_CHECK_SECONDS = 5.0
"""Interval of the look for the first statistics of layers."""
MAX_READS_PER_RUN = 3
"""Threads that read one run at a time: the first reading of a long one takes seconds."""

Read = TypeVar("Read")


@dataclass(eq=False)
class RunView:
    """One run as its page shows it.

    `state` returns what `/api/run` answers. `suppression` stores acknowledgements and silences.
    `database` is the file whose changes mean new rows. `report` gets the errors of the reader.
    `note_path` is the file of the note, by default in the directory of the run. `is_listed` if the
    server has a list of runs, to which the page links. `clock` returns seconds since the epoch.
    """

    run: str
    reader: RunReader
    state: Callable[[], JsonObject]
    database: Path
    suppression: SuppressionApi | None = None
    report: Callable[[Exception], object] = ignore
    note_path: Path | None = None
    clock: Callable[[], float] = time.time
    events: RunEvents | None = field(default=None, init=False)
    ended: bool = field(default=False, init=False)
    is_listed: bool = field(default=False, init=False)
    _known_cases: tuple[object, list[JsonObject]] = field(default=(None, []), init=False)
    _are_layers_known: bool = field(default=False, init=False)
    _layers_at: float = field(default=0.0, init=False)
    reads: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(MAX_READS_PER_RUN), init=False
    )

    @property
    def directory(self) -> Path:
        """The directory of the run."""
        return self.database.parent

    @property
    def notes(self) -> NoteApi:
        """Reads and writes the note about the run."""
        return NoteApi(self.run, self.note_path or self.directory / NOTE_NAME)

    def read_state(self) -> JsonObject:
        """The state of the run.

        `insight` differs once a result of insight was stored; `layers` if gradient flow is stored.
        `verdict` is what the run is like now, see `health`, and `note` what people wrote, see
        `Note`, if there is one.
        """
        state = self.state()
        cases = self._read_cases(state)
        state = _with_feedback(state, cases)
        # Another server may show the answer of the agent, which is newer than what is stored.
        state = state | {"verdict": state.get("verdict") or health(state, cases, self.clock())}
        if note := self.notes.read():
            state = state | {"note": note}
        # A run that was killed, or whose agent was, may go on.
        is_open = state.get("state") in STATES_WITHOUT_OUTCOME
        self.ended = not state.get("is_live", True) and not is_open
        if mark := artifact_mark(self.directory):
            state = state | {"insight": mark}
        if self._has_layers():
            state = state | {"layers": True}
        return state | {"is_listed": True} if self.is_listed else state

    def store_feedback(self, body: bytes, user: str, peer: str) -> JsonObject:
        """Store what a person thinks of a case, see `FeedbackApi`. Raises RequestError."""
        stored = FeedbackApi(self.run, self.database, self.report).store(body, user, peer)
        self._known_cases = (None, [])
        return stored

    def _read_cases(self, state: JsonObject) -> list[JsonObject]:
        """Every case; of a run whose rows change at each step, at most `CASES_SECONDS` old."""
        shown = [each["name"] for each in state.get("cases", [])]
        is_active = state.get("state") in ACTIVE_STATES
        age = int(monotonic() / CASES_SECONDS) if is_active else self.change_mark()
        mark = (state.get("state"), shown, age)
        # In one object, since several threads read the state.
        known, cases = self._known_cases
        if mark == known:
            return cases
        # The state is shown all the same if the stored cases are damaged.
        with suppress(OSError, sqlite3.Error, NewerSchemaError, KeyError, ValueError, TypeError):
            if not is_active and state.get("is_live") and not state.get("is_log"):
                # The agent shows the end before it commits which cases lasted until then. A server
                # that may only read has the verdict of the agent.
                with suppress(sqlite3.Error):
                    wait_for_commit(self.database)
            cases = self.reader.cases()
            self._known_cases = (mark, cases)
            return cases
        return []

    def _has_layers(self) -> bool:
        now = monotonic()
        if not self._are_layers_known and now >= self._layers_at:
            with suppress(FileNotFoundError):
                self._are_layers_known = bool(self.reader.has_layers())
            # Now: another thread that asks meanwhile must not answer before it is known.
            self._layers_at = now + LAYERS_CHECK_SECONDS
        return self._are_layers_known

    def change_mark(self) -> object:
        """What differs once there are new rows."""
        return change_mark(self.database)

    def last_row(self) -> int:
        """The id of the newest row; 0 without rows."""
        return int(self.reader.series([])["last_id"])


ViewFinder = Callable[[Request], Awaitable[RunView]]
"""The view that a request is about. Raises HTTPException if there is no such run."""
Answer = Callable[[RunView, Request], Any]
Change = Callable[[bytes, str, str], JsonObject]
"""Stores a change: body, user and address of a request."""


class RunRoutes:
    """The routes of the run that `find_view` returns, relative to its address."""

    def __init__(self, find_view: ViewFinder, write_token: str, static: StaticFiles) -> None:
        self._find_view, self._write_token = find_view, write_token
        self.pool, self.streams = WorkerPool(), OpenStreams()
        self._report_lock = asyncio.Lock()
        self._page = static.page(RUN_PAGE)

    def page_routes(self) -> list[BaseRoute]:
        """The page, below `runs/<run>`, and all of `routes`."""
        return [
            Route("/runs/{run}", _redirect_to_folder),
            Route("/runs/{run}/", self._answer_page),
            Route("/runs/{run}/report.html", self._answer_report),
            *self.routes("/runs/{run}"),
        ]

    def routes(self, prefix: str = "") -> list[BaseRoute]:
        """The data below `<prefix>/api`, and what changes something."""
        answers: dict[str, Answer] = {
            "signals": lambda view, _: view.reader.signals(),
            "series": _series,
            "ranks": _ranks,
            "thresholds": lambda view, request: view.reader.thresholds(_names(view, request)),
            "timeline": lambda view, _: view.reader.timeline(),
            "incidents": lambda view, _: view.reader.incidents(),
            "cases": lambda view, _: view.reader.cases(),
            "samples": _samples,
            "sample-steps": lambda view, _: view.reader.sample_steps(),
            "deliveries": lambda view, request: view.reader.deliveries(_limit(request)),
            "media": _media,
            "layers": _layers,
            "set-up": lambda view, _: view.reader.set_up(),
            "insight": lambda view, _: list_artifacts(view.directory),
            "note": lambda view, _: view.notes.read(),
        }
        changes: dict[str, Callable[[RunView], Change | None]] = {
            "acknowledge": lambda view: view.suppression.acknowledge if view.suppression else None,
            "silence": lambda view: view.suppression.silence if view.suppression else None,
            "note": lambda view: view.notes.write,
            # A log is imported again after each change.
            "feedback": lambda view: view.store_feedback if view.note_path is None else None,
        }
        return [
            Route(f"{prefix}/api/run", self._answer_state),
            *(Route(f"{prefix}/api/{name}", self._reading(read)) for name, read in answers.items()),
            Route(f"{prefix}/api/media/{{id:int}}", self._answer_media),
            Route(f"{prefix}/api/insight/{{id}}", self._reading(_artifact)),
            Route(f"{prefix}/api/events", self._answer_events),
            Route(f"{prefix}/api/wait", self._answer_wait),
            Route(f"{prefix}/api/write-token", self._answer_token),
            *(
                Route(f"{prefix}/api/{name}", self._changing(find_change), methods=["POST"])
                for name, find_change in changes.items()
            ),
        ]

    async def read(self, view: RunView, call: Callable[[], Read]) -> Read:
        """What `call` returns. Raises RequestError if the data cannot be read.

        A few calls of a run at a time: others wait, but not those of other runs.
        """
        async with view.reads:
            return await self._read(view, call)

    async def _read(self, view: RunView, call: Callable[[], Read]) -> Read:
        try:
            return await self.pool.run(call)
        except TimeoutError:
            raise RequestError(503, "The storage of this run does not answer.") from None
        except FileNotFoundError:
            raise RequestError(404, "The data of this run were deleted.") from None
        except (sqlite3.Error, OSError, NewerSchemaError) as error:
            view.report(error)
            log.warning("The data of run %s cannot be read: %s", view.run, error)
            raise RequestError(503, f"The data of this run cannot be read: {error}.") from None

    def _reading(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            view = await self._find_view(request)
            # The thread writes the JSON too: a second of work for the longest answers.
            return await self.read(view, lambda: json_response(request, answer(view, request)))

        return respond

    def _changing(
        self, find_change: Callable[[RunView], Change | None]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            body, user = await request.body(), request.scope["state"]["user"]
            change = find_change(await self._find_view(request))
            if change is None:
                raise RequestError(409, "No agent serves this run.")
            stored = await run_in_threadpool(change, body, user, peer_of(request.scope))
            return json_response(request, stored)

        return respond

    async def _answer_page(self, request: Request) -> Response:
        await self._find_view(request)
        return await run_in_threadpool(self._page, request)

    async def _answer_report(self, request: Request) -> Response:
        """The report as a download, so that it is never a page of this server."""
        view = await self._find_view(request)
        try:
            body = await self._build_report(view)
        except (ReportError, OSError) as error:
            log.warning("No report of run %s: %s", view.run, error)
            raise RequestError(503, "The report cannot be made.") from None
        name = report_file_name(view.run)
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return body_response(request, body, "text/html; charset=utf-8", headers=headers)

    async def _build_report(self, view: RunView) -> bytes:
        """The report, one at a time."""
        if self._report_lock.locked():
            raise RequestError(503, "Another report is being made. Try again soon.")
        async with self._report_lock:
            if not await run_in_threadpool(view.database.is_file):
                raise RequestError(404, "Nothing is stored of this run yet.")
            return await run_in_threadpool(build_report, view.run, view.database)

    async def _answer_state(self, request: Request) -> Response:
        """Without a wait for what is read of the same run, which may take long."""
        view = await self._find_view(request)
        return json_response(request, await self._read(view, view.read_state))

    async def _answer_token(self, request: Request) -> Response:
        await self._find_view(request)
        return json_response(request, {"token": self._write_token})

    async def _answer_media(self, request: Request) -> Response:
        number = request.path_params["id"]
        view = await self._find_view(request)
        # The same number is another image in the next import of a log.
        etag = f'"{number}-{crc32(bytes(view.database)):x}"'
        headers = {"cache-control": REVALIDATED, "etag": etag}
        if is_unchanged(request, etag):
            return Response(None, 304, headers)
        try:
            kind, body = await self.read(view, lambda: view.reader.media_body(number))
        except (KeyError, ValueError):
            # A file that the row refers to may hold something else by now.
            raise HTTPException(404) from None
        return body_response(request, body, kind, headers=headers)

    async def _answer_events(self, request: Request) -> Response:
        """The stream after the row in the query, or in the header of a browser that returns."""
        known = request.query_params.get("last_event_id", "")
        given = request.headers.get("last-event-id") or known
        after = int(given) if _is_whole_number(given) else None
        view = await self._find_view(request)
        if view.events is None:
            view.events = RunEvents(view, self.pool, self.streams)
        if after is None:
            after = await self.read(view, view.last_row)
        try:
            viewer = view.events.open(after)
        except TooManyViewersError:
            text = "Too many pages show live values: this one has to poll."
            raise RequestError(503, text) from None
        return _EventResponse(view.events, viewer)

    async def _answer_wait(self, request: Request) -> Response:
        """The verdict, once a condition `until` of the query holds, or after `seconds` at most.

        Without `seconds` at once.
        """
        conditions = request.query_params.getlist("until")
        try:
            if conditions:
                check_conditions(conditions)
            until = monotonic() + min(optional_float(request, "seconds") or 0.0, MAX_WAIT_SECONDS)
            with self.streams.place():
                while True:
                    # The database of a run is another file once its agent has ended.
                    view = await self._find_view(request)
                    verdict = (await self._read(view, view.read_state))["verdict"]
                    is_due = monotonic() >= until or self.streams.is_closed
                    is_due = is_due or await request.is_disconnected()
                    if is_due or find_end(conditions, verdict):
                        return json_response(request, {"verdict": verdict})
                    await asyncio.sleep(min(WAIT_LOOK_SECONDS, max(until - monotonic(), 0.0)))
        except ValueError as error:
            raise RequestError(400, capitalized(str(error))) from None
        except TooManyViewersError:
            raise RequestError(503, "Too many requests wait: try again.") from None


class _EventResponse(StreamingResponse):
    """The stream of a viewer, whose place is free at its end, even if nothing was sent."""

    def __init__(self, events: RunEvents, viewer: Viewer) -> None:
        headers = {"content-type": "text/event-stream", "x-accel-buffering": "no"}
        super().__init__(viewer.chunks(), headers=headers)
        self._events, self._viewer = events, viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._events.close(self._viewer)


def _with_feedback(state: JsonObject, cases: list[JsonObject]) -> JsonObject:
    """The state whose open cases have what people think of them, as all cases have."""
    given = {each["name"]: each["feedback"] for each in cases if each.get("feedback")}
    if not given:
        return state
    shown = [each | {"feedback": given.get(each["name"])} for each in state.get("cases", [])]
    return state | {"cases": shown}


def _redirect_to_folder(request: Request) -> Response:
    # Relative: a proxy may serve it below another path.
    return RedirectResponse(f"{quote(request.path_params['run'], safe='')}/", 307)


def _series(view: RunView, request: Request) -> JsonObject | EncodedJson:
    axis = request.query_params.get("axis", AXES[0])
    if axis not in AXES:
        raise RequestError(400, f"axis must be one of {', '.join(AXES)}.")
    points = whole_number(request, "points", DEFAULT_POINTS)
    found = view.reader.series(
        _names(view, request),
        points=min(max(points, 1), MAX_POINTS),
        axis=axis,
        start=optional_float(request, "from"),
        end=optional_float(request, "to"),
    )
    if request.query_params.get("exact") == "1":
        return found
    series = [f"{json_text(name)}:{_shortened(each)}" for name, each in found["series"].items()]
    rest = json_text({key: each for key, each in found.items() if key != "series"} | {"series": {}})
    return EncodedJson(f"{rest[:-2]}{','.join(series)}}}}}")


def _shortened(series: JsonObject) -> str:
    """The series as JSON with seven digits: half the bytes of the answer, and half the time."""
    lists = {key: series[key] for key in _VALUE_LISTS if series[key] is not None}
    rest = json_text({key: each for key, each in series.items() if key not in lists})
    texts = [rest[:-1]]
    for key, values in lists.items():
        numbers = ["null" if value is None else f"{value:.7g}" for value in values]
        texts.append(f',"{key}":[{",".join(numbers)}]')
    return "".join([*texts, "}"])


def _ranks(view: RunView, request: Request) -> JsonObject:
    return view.reader.rank_grid(request.query_params.get("signal", ""), **_columns(request))


def _layers(view: RunView, request: Request) -> JsonObject:
    return view.reader.layers(request.query_params.get("statistic", ""), **_columns(request))


def _columns(request: Request) -> dict[str, Any]:
    """The number of columns of a heat map, and its range of steps."""
    columns = whole_number(request, "columns", DEFAULT_COLUMNS)
    return {
        "columns": min(max(columns, 1), MAX_COLUMNS),
        "start": optional_float(request, "from"),
        "end": optional_float(request, "to"),
    }


def _artifact(view: RunView, request: Request) -> JsonObject:
    try:
        found = load_artifact(view.directory, request.path_params["id"])
    except ArtifactError as error:
        raise RequestError(404, str(error)) from None
    return found | {"data": shown_data(found["data"])}


def _samples(view: RunView, request: Request) -> list[JsonObject]:
    return view.reader.samples(
        _optional_number(request, "step"),
        _limit(request, DEFAULT_SAMPLE_LIMIT),
        request.query_params.get("search", "")[:_MAX_SEARCH_CHARS],
        _optional_number(request, "before"),
    )


def _media(view: RunView, request: Request) -> list[JsonObject]:
    return view.reader.media(request.query_params.get("kind") or None, _limit(request))


def _names(view: RunView, request: Request) -> list[str]:
    """The signals of the query, each by a parameter of its own or separated by commas."""
    known = {signal["name"] for signal in view.reader.signals()}
    names: list[str] = []
    for given in request.query_params.getlist("signals"):
        # The name of a logged key may contain a comma.
        names += [given] if given in known else given.split(",")
    return [name for name in dict.fromkeys(names) if name in known][:MAX_SIGNALS]


def _limit(request: Request, default: int = DEFAULT_LIMIT) -> int:
    return min(whole_number(request, "limit", default), MAX_LIMIT)


def whole_number(request: Request, name: str, default: int) -> int:
    """The number in the query, or the default. Raises RequestError."""
    number = _optional_number(request, name)
    return default if number is None else number


def _optional_number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name, "")
    if text and not _is_whole_number(text):
        raise RequestError(400, f"{name} must be a whole number, such as {name}=20.")
    return int(text) if text else None


def _is_whole_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_NUMBER_DIGITS


def optional_float(request: Request, name: str) -> float | None:
    """The number in the query; None without it. Raises RequestError."""
    text = request.query_params.get(name, "")
    try:
        number = float(text) if text else None
    except ValueError:
        number = float("nan")
    if number is not None and not isfinite(number):
        raise RequestError(400, f"{name} must be a number, such as {name}=20.")
    return number
