"""The streams of a run on a real server, over a database that grows."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, closing
from math import nan
from threading import Lock

import pytest
import requests
from prometheus_client import CollectorRegistry
from support.event_streams import event_stream, next_event
from support.rank_processes import until
from support.results import NOW, RUN
from support.web_servers import TIMEOUT_SECONDS

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.engine import Result
from sentinel.store.database import connect, transaction
from sentinel.store.history import History
from sentinel.store.run_reader import RunReader
from sentinel.web import run_events
from sentinel.web.agent_site import AgentSite
from sentinel.web.run_events import OpenStreams, RunEvents, TooManyViewersError
from sentinel.web.run_routes import RunView
from sentinel.web.server import WebServer
from sentinel.web.worker_pool import WorkerPool


class GrowingRun:
    """A database to which steps are added, and the server of its page."""

    def __init__(self, path):
        self.path, self.state = path, {"run": RUN, "is_live": True, "step": None}
        self.reads, self._lock = [], Lock()
        reader = RunReader(path)
        read = reader.rows_since

        def rows_since(row_id, limit=5000):
            with self._lock:
                self.reads.append(row_id)
            return read(row_id, limit)

        reader.rows_since = rows_since
        self.view = RunView(RUN, reader, lambda: self.state, path)
        self.server = WebServer(lambda: AgentSite(CollectorRegistry(), self.view))
        self.url = f"http://127.0.0.1:{self.server.start()}/runs/{RUN}/api/events"

    def add_steps(self, first, last, loss=1.0):
        with closing(connect(self.path)) as connection, transaction(connection):
            history = History(connection)
            for step in range(first, last + 1):
                values = {"loss": loss}
                record = Record(RUN, WHOLE_RUN, step, NOW + step, Event.STEP, values, attempt=0)
                history.update(Result(record))


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "sentinel.db"
    connect(path).close()
    run = GrowingRun(path)
    yield run
    run.server.stop()


def test_a_viewer_gets_the_state_and_each_row_once(run):
    run.add_steps(1, 5)
    with event_stream(run.url) as events:
        assert next_event(events, "run").data.items() >= run.state.items()
        run.add_steps(6, 8, loss=nan)
        steps, values = [], []
        while len(steps) < 3:
            rows = next_event(events, "rows").data
            steps += rows["step"]
            values += rows["values"].get("loss", [])

    assert (steps, values) == ([6, 7, 8], [None] * 3)


def test_the_state_is_sent_when_it_changes(run):
    with event_stream(run.url) as events:
        next_event(events, "run")
        run.state = run.state | {"step": 7}
        assert next_event(events, "run").data["step"] == 7


@pytest.mark.parametrize("by", ["header", "query"])
def test_a_viewer_that_returns_continues_where_it_was(run, by):
    run.add_steps(1, 4)
    with event_stream(f"{run.url}?last_event_id=0") as events:
        known = next_event(events, "rows")
    run.add_steps(5, 9)
    headers = {"last-event-id": known.number} if by == "header" else {}
    query = f"?last_event_id={known.number}" if by == "query" else ""
    with event_stream(run.url + query, **headers) as events:
        returned = next_event(events, "rows")

    assert known.data["step"] == [1, 2, 3, 4]
    assert returned.data["step"] == [5, 6, 7, 8, 9]


def test_a_viewer_that_missed_too_much_loads_the_page_again(run, monkeypatch):
    monkeypatch.setattr(run_events, "MAX_ROWS_PER_EVENT", 10)
    run.add_steps(1, 30)
    with event_stream(f"{run.url}?last_event_id=3") as events:
        reset = next_event(events, "reset")
        run.add_steps(31, 31)
        rows = next_event(events, "rows")

    assert (reset.data, reset.number) == ({"last_id": 30}, "30")
    assert rows.data["step"] == [31]


def test_the_ids_of_another_database_are_no_place_to_continue(run):
    """The first one was damaged, and begun anew."""
    run.add_steps(1, 2)
    with event_stream(f"{run.url}?last_event_id=4000") as events:
        assert next_event(events, "reset").number == "2"


def test_a_reset_while_rows_are_read_is_not_lost(run):
    """The import of a log that grew takes the place of the former one at that moment."""
    run.add_steps(1, 2)
    read, resets = run.view.reader.rows_since, []

    def rows_since(row_id, limit=5000):
        rows = read(row_id, limit)
        if not resets:
            resets.append(row_id)
            run.view.events.reset_viewers()
        return rows

    run.view.reader.rows_since = rows_since
    with event_stream(f"{run.url}?last_event_id=0") as events:
        assert next_event(events, "reset").number == "2"
    assert resets == [0]


@pytest.mark.parametrize("given", ["x", "-1", "9" * 30, "²"])
def test_an_id_that_is_none_means_from_now_on(run, given):
    run.add_steps(1, 2)
    with event_stream(f"{run.url}?last_event_id={given}") as events:
        next_event(events, "run")
        run.add_steps(3, 3)
        assert next_event(events, "rows").data["step"] == [3]


def test_the_stream_of_a_run_without_an_agent_ends(run):
    run.state = {"run": RUN, "is_live": False}
    run.add_steps(1, 2)
    with event_stream(f"{run.url}?last_event_id=0") as events:
        names = [event.name for event in events]

    assert names == ["start", "run", "rows", "end"]


def test_the_stream_of_a_run_whose_agent_was_killed_goes_on_with_the_next_one(run):
    run.state = {"run": RUN, "is_live": False, "state": "unfinished"}
    run.add_steps(1, 2)
    with event_stream(f"{run.url}?last_event_id=0") as events:
        assert next_event(events, "rows").data["step"] == [1, 2]
        run.state = {"run": RUN, "is_live": True, "state": "running"}
        assert next_event(events, "run").data["is_live"]
        run.add_steps(3, 4)
        assert next_event(events, "rows").data["step"] == [3, 4]


def test_a_stream_begins_with_the_row_after_which_it_continues(run):
    """A page that returns before any row came to it can say where it was."""
    run.add_steps(1, 4)
    with event_stream(run.url) as events:
        begun = next(events)
    with event_stream(f"{run.url}?last_event_id=2") as events:
        returned = next(events)

    assert (begun.name, begun.number, begun.data) == ("start", "4", {"last_id": 4})
    assert (returned.name, returned.number) == ("start", "2")


def test_viewers_share_one_reading(run):
    with ExitStack() as stack:
        streams = [stack.enter_context(event_stream(run.url)) for _ in range(12)]
        for events in streams:
            next_event(events, "run")
        run.add_steps(1, 3)
        steps = []
        for events in streams:
            got = []
            while len(got) < 3:
                got += next_event(events, "rows").data["step"]
            steps.append(got)

    assert steps == [[1, 2, 3]] * 12
    assert 1 <= len(run.reads) <= 3


def test_there_is_a_limit_of_viewers_and_room_once_one_leaves(run, monkeypatch):
    monkeypatch.setattr(run_events, "MAX_VIEWERS", 2)
    with ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        # Kept, since a stream that nobody can read any more is closed.
        streams = [owner.enter_context(event_stream(run.url)) for owner in (first, stack)]
        for events in streams:
            next_event(events, "run")
        refused = requests.get(run.url, timeout=TIMEOUT_SECONDS)
        assert (refused.status_code, refused.json()["error"][:14]) == (503, "Too many pages")
        first.close()

        def is_accepted():
            with requests.get(run.url, stream=True, timeout=TIMEOUT_SECONDS) as answer:
                return answer.status_code == 200

        until(is_accepted, TIMEOUT_SECONDS, "the place of the viewer that left is free")


def test_the_limit_holds_for_streams_that_were_not_read_yet(run, monkeypatch):
    """Requests that come at the same time are all accepted or refused before one is answered."""
    monkeypatch.setattr(run_events, "MAX_VIEWERS", 2)

    async def open_streams():
        pool, streams = WorkerPool(), OpenStreams()
        events = RunEvents(run.view, pool, streams)
        viewers = [events.open(0) for _ in range(2)]
        with pytest.raises(TooManyViewersError):
            events.open(0)
        events.close(viewers[0])
        viewers[0] = events.open(0)
        for viewer in viewers:
            events.close(viewer)

    asyncio.run(open_streams())


def test_a_viewer_that_does_not_read_is_dropped_and_the_others_are_not(run, monkeypatch):
    monkeypatch.setattr(run_events, "MAX_QUEUED_EVENTS", 2)
    viewer = run_events.Viewer(0)
    sent = [viewer.send(b"event") for _ in range(3)]

    assert sent == [True, True, False]


def test_the_end_of_the_server_ends_the_streams(run):
    with event_stream(run.url) as events:
        next_event(events, "run")
        run.server.stop()
        assert {event.name for event in events} <= {"run"}


def test_an_error_of_the_database_ends_no_stream(run):
    """The next try may succeed."""
    with event_stream(run.url) as events:
        next_event(events, "run")
        aside = run.path.rename(run.path.with_name("aside"))
        run.state = run.state | {"step": 1}
        assert next_event(events, "run").data["step"] == 1
        aside.rename(run.path)
        run.add_steps(1, 1)
        assert next_event(events, "rows").data["step"] == [1]
