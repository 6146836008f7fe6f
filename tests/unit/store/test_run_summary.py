"""Summaries of runs, and the index of a home directory."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import closing, suppress
from dataclasses import replace
from math import nan
from unittest.mock import Mock

import pytest
from support.results import case_result, make_incident

from sentinel.model.finding import Severity
from sentinel.model.incident import Resolution
from sentinel.model.notification import NotificationReason
from sentinel.store.cases import store_case
from sentinel.store.database import connect
from sentinel.store.run_reader import RunReader
from sentinel.store.run_summary import (
    MAX_SUMMARY_BYTES,
    SUMMARY_NAME,
    RunIndex,
    make_summary,
    read_summary,
    run_entry,
    write_summary,
)
from sentinel.store.verdict import problems_of
from sentinel.transport.paths import AGENT_LOCK, DATABASE_NAME
from sentinel.web.run_routes import RunView

STATE = {
    "run": "grpo-7b",
    "state": "running",
    "step": 40,
    "attempt": 1,
    "last_step_time": 1_700_000_040.0,
    "started": 1_700_000_000.0,
    "ended": nan,
    "host": "gpu-3",
    "project": "math",
    "tags": ["ablation"],
    "metadata": {"framework": "trl", "model": "Qwen3-8B"},
    "cases": [
        {"severity": "critical", "onset_step": 20, "message": {"subject": "The policy collapsed"}}
    ],
    "incidents": [{"severity": "warning"}],
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "shared"))
    return tmp_path / "home"


@pytest.fixture
def add_run(home):
    """Returns a function that writes a run with a summary."""

    def add(run, **changes):
        directory = home / "runs" / run
        directory.mkdir(parents=True)
        write_summary(directory, make_summary(STATE | {"run": run} | changes, ("loss", [1.0], 1.0)))
        return directory

    return add


def no_summary(run, path):
    raise AssertionError(run)


def entries_of(index):
    return {entry.run: entry for entry in index.entries()}


def test_the_summary_has_what_a_list_shows():
    summary = make_summary(STATE, ("reward", [0.123456, None, nan, *range(100)], nan))

    assert summary["health"] == "critical"
    assert summary["worst_case"] == {"subject": "The policy collapsed", "severity": "critical"}
    assert (summary["ended"], summary["last_written"]) == (None, 1_700_000_040.0)
    assert (summary["host"], summary["framework"], summary["tags"]) == (
        "gpu-3",
        "trl",
        ["ablation"],
    )
    assert len(summary["sparkline"]["values"]) == 64
    assert summary["sparkline"]["last"] is None


@pytest.mark.parametrize(
    ("changes", "health"),
    [
        ({"cases": []}, "warning"),
        ({"cases": [], "incidents": [{"severity": "info"}]}, "healthy"),
        ({"cases": [], "incidents": [], "step": None}, "unknown"),
        ({"cases": [], "incidents": [], "state": "died"}, "ended_badly"),
    ],
)
def test_the_health_is_that_of_the_worst_open_incident(changes, health):
    assert make_summary(STATE | changes, ("", [], None))["health"] == health


@pytest.mark.parametrize(
    ("resolutions", "health"),
    [
        ([Resolution.CLEARED], "ended_well"),
        ([Resolution.STAGE_FINISHED], "ended_well"),
        ([Resolution.RUN_FINISHED], "ended_badly"),
        ([Resolution.TRAINING_FINISHED], "ended_badly"),
        ([Resolution.TRAINING_FINISHED, Resolution.STARTED_AGAIN], "ended_badly"),
    ],
)
def test_a_case_counts_after_its_end_if_it_fired_when_the_run_or_its_training_ended(
    tmp_path, resolutions, health
):
    """A stage is followed by others of the same training: what ended with it is over."""
    incident = make_incident()
    for resolution in resolutions:
        incident.resolve(resolution, 399, 1_700_000_399.0)
    result = case_result(NotificationReason.RESOLVED, of=[incident], diagnosis=None)
    with closing(connect(tmp_path / DATABASE_NAME)) as connection:
        store_case(connection, result.case_notifications[0])
        connection.commit()
    state = STATE | {"state": "finished", "step": 900, "cases": [], "incidents": []}

    summary = read_summary(state, RunReader(tmp_path / DATABASE_NAME))
    assert summary["health"] == health
    assert (summary["worst_case"] is None) == (health == "ended_well")


def test_the_worst_case_is_the_most_severe_then_an_open_one_then_the_earliest(tmp_path):
    """The page names the same one."""
    lasted = [
        ("slow", Severity.WARNING, 5),
        ("late", Severity.CRITICAL, 60),
        ("early", Severity.CRITICAL, 30),
    ]
    with closing(connect(tmp_path / DATABASE_NAME)) as connection:
        for detector, severity, onset in lasted:
            incident = replace(make_incident(detector, severity), onset_step=onset)
            incident.resolve(Resolution.RUN_FINISHED, 399, 1_700_000_399.0)
            result = case_result(NotificationReason.RESOLVED, of=[incident], diagnosis=None)
            store_case(connection, result.case_notifications[0])
        connection.commit()
    reader = RunReader(tmp_path / DATABASE_NAME)
    state = STATE | {"state": "finished", "cases": [], "incidents": []}
    view = RunView("grpo-7b", reader, lambda: state, tmp_path / DATABASE_NAME)

    names = [each["name"] for each in problems_of(state, reader.cases())]
    assert [name.rpartition("/")[2].partition("#")[0] for name in names] == [
        "early",
        "late",
        "slow",
    ]
    assert view.read_state()["verdict"]["case"] == names[0]
    open_case = {"name": "open", "severity": "critical", "onset_step": 90}
    assert problems_of(state | {"cases": [open_case]}, reader.cases())[0] == open_case
    # What lasted until an earlier end is no problem of a run that goes on.
    assert problems_of(STATE | {"cases": [], "incidents": []}, reader.cases()) == []


def test_the_longest_texts_fit_into_the_file(tmp_path):
    text = "\U0001f525" * 4000
    state = STATE | {
        "host": text,
        "project": text,
        "tags": [text] * 50,
        "metadata": dict.fromkeys(("framework", "algorithm", "model"), text),
        "cases": [{"severity": "critical", "message": {"subject": text}}],
    }
    write_summary(tmp_path, make_summary(state, (text, [-1.2345e-300] * 64, -1.2345e-300)))

    written = (tmp_path / SUMMARY_NAME).read_bytes()
    assert len(written) <= MAX_SUMMARY_BYTES
    assert json.loads(written)["run"] == "grpo-7b"


def test_a_changed_summary_is_read_again(home, add_run):
    index = RunIndex(no_summary)
    directory = add_run("a")
    index.refresh()
    assert entries_of(index)["a"].step == 40

    write_summary(
        directory, make_summary(STATE | {"run": "a", "step": 50}, ("loss", [1.0, 2.0], 2.0))
    )
    os.utime(directory / SUMMARY_NAME, (1, 1))
    index.refresh()
    assert entries_of(index)["a"].step == 50


def test_a_deleted_run_leaves_the_list(home, add_run):
    index = RunIndex(no_summary)
    directory = add_run("a")
    add_run("b")
    index.refresh()
    (directory / SUMMARY_NAME).unlink()
    directory.rmdir()
    index.refresh()

    assert {*entries_of(index)} == {"b"}


def test_hidden_directories_files_and_empty_ones_are_no_runs(home, add_run):
    add_run(".deleted-x-1")
    add_run("a")
    (home / "runs/empty").mkdir()
    (home / "runs/file").write_text("")
    index = RunIndex(no_summary)
    index.refresh()

    assert {*entries_of(index)} == {"a"}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"step": "x", "tags": 3}', b"\xff"])
def test_a_damaged_summary_is_a_run_of_which_nothing_is_known(home, add_run, body):
    (add_run("a") / SUMMARY_NAME).write_bytes(body)
    index = RunIndex(no_summary)
    index.refresh()
    entry = entries_of(index)["a"]

    assert (entry.state, entry.health, entry.step, entry.tags) == ("unknown", "unknown", -1, ())


def test_a_run_with_a_running_agent_is_live(home, add_run, tmp_path):
    add_run("a", host=os.uname().nodename)
    shared = tmp_path / "shared/a"
    shared.mkdir(parents=True)
    index = RunIndex(no_summary)
    descriptor = os.open(shared / AGENT_LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        index.refresh()
        assert entries_of(index)["a"].is_live
    finally:
        os.close(descriptor)
    index.refresh()
    assert not entries_of(index)["a"].is_live


def test_the_agent_of_another_node_lives_as_long_as_it_writes(home, add_run):
    """The run of this node has none."""
    directory = add_run("far", host="another-node")
    add_run("here", host=os.uname().nodename)
    written = (directory / SUMMARY_NAME).stat().st_mtime
    for age, is_live in ((60.0, True), (600.0, False)):
        index = RunIndex(no_summary, clock=lambda age=age: written + age)
        index.refresh()
        assert (entries_of(index)["far"].is_live, entries_of(index)["here"].is_live) == (
            is_live,
            False,
        )


def test_a_missing_summary_is_made_once_and_the_run_stays_as_old_as_it_is(home):
    directory = home / "runs/old"
    directory.mkdir(parents=True)
    (directory / DATABASE_NAME).write_text("")
    for path in (directory / DATABASE_NAME, directory):
        os.utime(path, (1_600_000_000, 1_600_000_000))
    made = []

    def summarise(run, path):
        made.append(run)
        return make_summary(STATE | {"run": run, "state": "finished"}, ("loss", [1.0], 1.0))

    index = RunIndex(summarise)
    index.refresh()
    assert entries_of(index)["old"].state == "reading"
    assert index.complete_one()
    assert entries_of(index)["old"].state == "finished"
    again = RunIndex(summarise)
    for each in (index, again):
        each.refresh()
        assert not each.complete_one()

    assert made == ["old"]
    assert {path.stat().st_mtime for path in (directory, *directory.iterdir())} == {1_600_000_000}


def test_a_run_that_cannot_be_summarised_is_not_tried_again_and_again(home):
    tried = []
    for name in ("a", "b"):
        directory = home / "runs" / name
        directory.mkdir(parents=True)
        (directory / DATABASE_NAME).write_text("no database")

    def summarise(run, path):
        tried.append(run)
        raise OSError(run)

    index = RunIndex(summarise)
    for _ in range(3):
        index.refresh()
        while index.complete_one():
            pass

    assert sorted(tried) == ["a", "b"]
    assert {name: each.state for name, each in entries_of(index).items()} == {
        "a": "unknown",
        "b": "unknown",
    }


def test_an_end_that_is_written_while_the_list_is_read_is_shown(home, add_run, monkeypatch):
    directory = add_run("a", host=os.uname().nodename)

    def end(path):
        write_summary(
            directory, make_summary(STATE | {"run": "a", "state": "died"}, ("loss", [1.0], 1.0))
        )
        return False

    monkeypatch.setattr("sentinel.store.run_summary.is_agent_running", end)
    index = RunIndex(no_summary)
    index.refresh()

    assert entries_of(index)["a"].state == "died"


@pytest.mark.parametrize("is_writable", [True, False])
def test_an_end_without_a_last_summary_is_read_from_the_database_once(
    home, add_run, monkeypatch, is_writable
):
    directory = add_run("a", host=os.uname().nodename)
    (directory / DATABASE_NAME).write_text("")
    os.utime(directory / SUMMARY_NAME, (1_600_000_000, 1_600_000_000))
    if not is_writable:
        monkeypatch.setattr("sentinel.store.run_summary.add_summary", Mock(side_effect=OSError))
    summarise = Mock(
        return_value=make_summary(STATE | {"run": "a", "state": "died"}, ("loss", [1.0], 1.0))
    )
    index = RunIndex(summarise)
    for _ in range(3):
        index.refresh()
        while index.complete_one():
            pass

    assert entries_of(index)["a"].state == "died"
    assert summarise.call_count == 1


def test_a_home_that_cannot_be_written_is_listed(home, monkeypatch):
    directory = home / "runs/old"
    directory.mkdir(parents=True)
    (directory / DATABASE_NAME).write_text("")

    def refuse(*_):
        raise PermissionError(13, "read-only")

    monkeypatch.setattr("sentinel.store.run_summary.add_summary", refuse)
    index = RunIndex(lambda run, _: make_summary(STATE | {"run": run}, ("loss", [1.0], 1.0)))
    index.refresh()
    with suppress(PermissionError):
        index.complete_one()

    assert entries_of(index)["old"].step == 40


@pytest.mark.parametrize(
    ("state", "former", "health"),
    [
        ("running", "ok", "healthy"),
        ("running", "critical", "critical"),
        ("finished", "ok", "ended_well"),
        ("finished", "warning", "ended_well"),
        ("finished", "critical", "ended_badly"),
        ("failed", "critical", "ended_badly"),
        ("finished", "ended_badly", "ended_badly"),
    ],
)
def test_the_health_in_a_summary_of_an_earlier_version_is_a_status(tmp_path, state, former, health):
    body = json.dumps({"state": state, "health": former, "step": 9}).encode()

    assert run_entry("r", tmp_path, (0, len(body)), body).health == health
