"""The runs of a home directory: live ones by their agents, past ones by their databases."""

from __future__ import annotations

import shutil
from contextlib import closing
from threading import Event as Flag
from time import monotonic

import pytest
from support.rank_processes import until
from support.results import NOW

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.engine import Result
from sentinel.store.database import connect, transaction
from sentinel.store.history import History
from sentinel.store.run_summary import RunIndex
from sentinel.transport.paths import DATABASE_NAME
from sentinel.web.home import home_runs
from sentinel.web.home.home_runs import HomeRuns
from sentinel.web.home.run_list import RunQuery
from sentinel.web.responses import RequestError

LONG_SECONDS = 60.0


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "shared"))
    return tmp_path / "home"


@pytest.fixture
def add_run(home):
    """Returns a function that stores some steps of a run; returns its directory."""

    def add(run, steps=3, outcome="finished"):
        directory = home / "runs" / run
        directory.mkdir(parents=True, exist_ok=True)
        with closing(connect(directory / DATABASE_NAME)) as connection, transaction(connection):
            history = History(connection)
            events = [(0, Event.START, {}, {"framework": "trl", "host": "gpu-3"})]
            events += [(step, Event.STEP, {"loss": 1 / step}, {}) for step in range(1, steps + 1)]
            events += [(steps, Event.STOP, {}, {"outcome": outcome})] if outcome else []
            for step, event, values, texts in events:
                record = Record(
                    run, WHOLE_RUN, step, NOW + step, event, values, attributes=texts, attempt=0
                )
                history.update(Result(record))
        return directory

    return add


@pytest.fixture
def start(home):
    """Returns a function that starts to read the home; `ask` stands for its agents."""
    started = []

    def begin(ask=lambda _: {}):
        started.append(HomeRuns(ask, clock=lambda: NOW + 60.0))
        started[-1].start()
        return started[-1]

    yield begin
    for runs in started:
        runs.close()


def listed(runs):
    return {run["run"]: run for run in runs.list_runs(RunQuery())["runs"]}


def until_listed(runs, condition):
    deadline = monotonic() + LONG_SECONDS
    while not condition(found := listed(runs)):
        assert monotonic() < deadline, found
        Flag().wait(0.05)
    return found


def test_a_run_of_long_ago_is_listed_as_its_database_holds_it(start, add_run):
    add_run("grpo-7b")
    run = until_listed(start(), lambda found: found["grpo-7b"]["state"] == "finished")["grpo-7b"]

    assert (run["step"], run["framework"], run["host"]) == (3, "trl", "gpu-3")
    assert run["health"] == "ended_well"
    assert (run["started"], run["ended"], run["age"]) == (NOW, NOW + 3, 57.0)
    assert run["sparkline"] == {"name": "loss", "values": [1.0, 0.5, 0.3333], "last": 0.3333}


def test_a_run_without_an_outcome_is_unfinished(start, add_run):
    add_run("killed", outcome="")
    state = start().view("killed").read_state()

    assert (state["state"], state["active"], state["is_live"]) == ("unfinished", False, False)


def test_the_state_of_a_live_run_is_that_of_its_agent(start, add_run):
    directory = add_run("live", outcome="")
    asked = []

    def ask(where):
        asked.append(where)
        return {"run": "live", "state": "running", "step": 99, "is_live": True, "cluster": {}}

    view = start(ask).view("live")

    assert view.read_state()["step"] == 99
    assert (view.ended, asked) == (False, [directory])
    assert view.suppression.why_not() == ""


def test_an_agent_that_does_not_answer_is_not_asked_each_time(start, add_run):
    add_run("live", outcome="")
    asked = []
    view = start(asked.append).view("live")
    states = [view.read_state()["step"] for _ in range(5)]

    assert states == [3] * 5
    assert len(asked) == 1


def test_an_agent_that_begins_to_listen_is_asked_soon(start, add_run, monkeypatch):
    add_run("live", outcome="")
    monkeypatch.setattr(home_runs, "SILENT_AGENT_SECONDS", 0.05)
    answers = [None, {"run": "live", "state": "running", "step": 99, "is_live": True}]
    view = start(lambda _: answers.pop(0)).view("live")
    assert view.read_state()["step"] == 3
    Flag().wait(0.1)
    assert view.read_state()["step"] == 99


def test_nothing_of_a_run_without_an_agent_can_be_silenced(start, add_run):
    add_run("old")
    view = start().view("old")

    with pytest.raises(RequestError, match="No agent serves run old"):
        view.suppression.silence(b'{"for": "2h"}', "", "127.0.0.1")


def test_the_state_is_read_again_after_a_change(start, add_run):
    add_run("a", steps=2, outcome="")
    view = start().view("a")
    assert view.read_state()["step"] == 2
    add_run("a", steps=9)
    assert (view.read_state()["step"], view.read_state()["state"]) == (9, "finished")


@pytest.mark.parametrize("run", ["..", "../x", "a/b", ".hidden", "", "a\0b", "x" * 200, "nothing"])
def test_what_is_no_run_has_no_page(start, home, add_run, run):
    add_run("a")
    (home / "runs/.hidden").mkdir()
    (home / "x").mkdir()
    (home / "x" / DATABASE_NAME).write_text("")

    assert start().view(run) is None


def test_a_run_that_is_deleted_while_it_is_viewed_is_gone(start, add_run):
    directory = add_run("a")
    runs = start()
    view = runs.view("a")
    view.reader.signals()
    while directory.exists():
        # The server may be writing the index of the log of writes meanwhile.
        shutil.rmtree(directory, ignore_errors=True)

    assert runs.view("a") is None
    with pytest.raises(FileNotFoundError):
        view.reader.signals()
    assert "a" not in until_listed(runs, lambda found: not found)


def test_a_run_that_moved_to_another_directory_is_read_there(start, add_run, tmp_path):
    """As that of an agent whose home directory became unusable."""
    add_run("a")
    runs = start()
    first = runs.view("a")
    shared = tmp_path / "shared/a/state"
    shared.mkdir(parents=True)
    shutil.copy(first.database, shared / DATABASE_NAME)

    assert runs.view("a").database == shared / DATABASE_NAME
    assert runs.view("a") is runs.view("a")


def test_few_readers_stay_in_memory(start, add_run, monkeypatch):
    monkeypatch.setattr(home_runs, "MAX_VIEWS", 2)
    for name in "abc":
        add_run(name)
    runs = start()
    first = runs.view("a")
    for name in "abc":
        runs.view(name)

    assert len(runs._views) == 2
    assert runs.view("a") is not first


def test_a_home_that_hangs_is_listed_as_it_was(start, add_run, monkeypatch):
    add_run("a")
    runs = start()
    until_listed(runs, lambda found: found["a"]["state"] == "finished")
    hangs, released = Flag(), Flag()
    read = RunIndex.refresh

    def refresh(index):
        hangs.set()
        released.wait(LONG_SECONDS)
        read(index)

    monkeypatch.setattr(RunIndex, "refresh", refresh)
    monkeypatch.setattr(home_runs, "REFRESH_SECONDS", 0.0)
    runs.list_runs(RunQuery())
    assert hangs.wait(LONG_SECONDS)
    Flag().wait(0.05)
    began = monotonic()
    answer = runs.list_runs(RunQuery())
    waited = monotonic() - began
    released.set()

    assert [run["run"] for run in answer["runs"]] == ["a"]
    assert answer["read_seconds_ago"] >= 0.0
    # It waits for no longer than `MAX_LIST_WAIT_SECONDS`; with much room for a slow machine.
    assert waited < LONG_SECONDS / 2


def test_a_damaged_database_is_listed_and_says_so(start, home, add_run):
    add_run("a")
    directory = home / "runs/broken"
    directory.mkdir()
    (directory / DATABASE_NAME).write_bytes(b"no database" * 1000)
    found = until_listed(start(), lambda found: found.get("a", {}).get("state") == "finished")

    assert found["broken"]["state"] == "unknown"


def test_the_settings_of_runs_are_read_when_a_list_shows_them(start, add_run):
    add_run("a")
    add_run("b")
    runs = start()
    until_listed(runs, lambda found: all(run["state"] == "finished" for run in found.values()))
    query = RunQuery(sort="-setting:framework", columns=("framework", "other"))

    def read():
        answer = runs.list_runs(query)
        return answer["unread_settings"] == 0 and answer["runs"][0]["settings"]["framework"]

    assert until(read, LONG_SECONDS, "the settings") == "trl"
    (setting,) = runs.list_settings("a")["settings"]
    assert setting == {"name": "framework", "runs": 1, "values": 1, "text": "trl"}
    # A changed run is read again.
    add_run("c")
    until_listed(runs, lambda found: found.get("c", {}).get("state") == "finished")
    assert until(lambda: len(runs.list_settings("c")["settings"]), LONG_SECONDS, "run c") == 1
