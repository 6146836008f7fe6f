"""`sentinel serve LOGDIR`: logs are imported into a cache, listed, and followed while they grow."""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from dataclasses import replace
from math import isfinite
from subprocess import TimeoutExpired
from threading import Event

import pytest
from support.event_files import event, event_file
from support.log_files import FORMATS
from support.replays import collapse_rows

from sentinel.config.settings import load_replay_settings
from sentinel.metrics.stored_state import stored_state
from sentinel.store.imports import log_cache, log_worker
from sentinel.store.imports.log_cache import CacheEntry, ImportState, LogCache, log_signature
from sentinel.store.imports.log_worker import LogImporter, cached_import
from sentinel.store.run_reader import RunReader
from sentinel.web.home.run_list import RunQuery
from sentinel.web.logs import imports, scanner
from sentinel.web.logs.log_runs import LogRuns

ROWS = [row | {"time": 1.7e9 + row["step"]} for row in collapse_rows()]
# Its onset is known without an estimate, which takes seconds.
FAULTY_ROWS = [{"step": step, "time": 1.7e9 + step, "loss": float("nan")} for step in range(60, 70)]
DEADLINE_SECONDS = 240.0


@pytest.fixture(scope="module")
def settings():
    return load_replay_settings((), {})


@pytest.fixture
def cache(tmp_path):
    root = tmp_path / "cache"
    root.mkdir()
    return LogCache(root)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "logs"
    path.mkdir()
    return path


def write(path, rows=ROWS, age=0.0):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(path, (time.time() - age,) * 2)
    return path


@contextmanager
def serving(folder, settings, cache):
    runs = LogRuns(folder, settings, cache=cache)
    runs.start()
    try:
        yield runs
    finally:
        runs.close()


def listed(runs):
    return {each["run"]: each for each in runs.list_runs(RunQuery())["runs"]}


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


@pytest.fixture
def no_workers(monkeypatch):
    """Processes that would import are only counted."""
    started = []
    monkeypatch.setattr(
        imports, "start_worker", lambda *arguments, **_: started.append(arguments) or _Child()
    )
    return started


class _Child:
    """A process that runs until it is ended, or killed."""

    stdin = stdout = returncode = None

    def __init__(self):
        self.ended = Event()

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        if not self.ended.wait(timeout):
            raise TimeoutExpired("import", timeout)
        return self.returncode

    def kill(self):
        self.end(-9)

    def end(self, returncode):
        self.returncode = returncode
        self.ended.set()


def test_logs_are_listed_imported_and_followed(folder, settings, cache):
    """The one test with real processes: a log that grows, a folder of several, and one refused."""
    growing = write(folder / "growing.jsonl", ROWS[:59])
    write(folder / "old.jsonl", ROWS[:50], age=3600.0)
    for name in ("lr-1", "lr-2"):
        (folder / "tb" / name).mkdir(parents=True)
        event_file(folder / "tb" / name, event(1, "loss", 1.0))
    os.mkfifo(folder / "pipe.jsonl")
    with serving(folder, settings, cache) as runs:
        assert listed(runs).keys() == {"growing", "old", "tb-lr-1", "tb-lr-2", "pipe"}
        assert "it is a pipe" in listed(runs)["pipe"]["worst_case"]["subject"]
        view = runs.view("growing")
        wait_until(lambda: view.reader.signals() and view.state()["log"]["notices"] == [])
        assert (view.state()["state"], view.state()["is_live"]) == ("running", True)
        before = view.reader.rows_since(0)["last_id"]
        with growing.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in FAULTY_ROWS)
        wait_until(lambda: view.reader.rows_since(before)["step"][-1:] == [69])
        assert view.reader.rows_since(before)["step"][0] == 60
        assert {each["detector"] for each in view.state()["incidents"]} >= {"nan_or_inf"}
        # In the background, one at a time.
        assert listed(runs)["old"]["step"] == ROWS[49]["step"]
        wait_until(lambda: listed(runs)["old"]["state"] == "unfinished")
        assert listed(runs)["old"]["step"] == ROWS[49]["step"]
        refused = runs.view("pipe").state()
        assert "it is a pipe" in refused["log"]["notices"][0]["text"]
        assert (refused["is_live"], refused["state"]) == (False, "unknown")
        assert runs.view("nothing") is None


def test_an_empty_folder_says_what_it_waits_for(folder, settings, cache, no_workers):
    with serving(folder, settings, cache) as runs:
        answer = runs.list_runs(RunQuery())
        assert (answer["total"], "interval is not 0" in answer["notice"]) == (0, True)
        write(folder / "log.jsonl")
        wait_until(lambda: listed(runs).keys() == {"log"})
        assert runs.list_runs(RunQuery())["notice"] == ""
    with serving(folder / "missing", settings, cache) as runs:
        assert "nothing at" in runs.list_runs(RunQuery())["notice"]


def test_one_hundred_logs_are_listed_at_once(folder, settings, cache, no_workers):
    for number in range(100):
        write(folder / f"{number}-log.jsonl", ROWS[:2], age=float(number))
    with serving(folder, settings, cache) as runs:
        assert len(listed(runs)) == 100
        # The newest is the first to be imported, and nothing else meanwhile.
        wait_until(lambda: no_workers)
        time.sleep(0.5)
        ((jobs,),) = no_workers
        assert [job.run for job in jobs[:3]] == ["0-log", "1-log", "2-log"]
        assert len(jobs) == imports.LOGS_PER_WORKER


def test_an_import_is_used_until_the_log_changes(folder, settings, cache, monkeypatch):
    monkeypatch.setattr(log_worker, "LogCache", lambda: cache)
    path = write(folder / "log.jsonl", ROWS[:50], age=3600.0)
    first = cached_import(path, settings)
    assert cached_import(path, settings) == first
    assert cached_import(path, load_replay_settings(["disable=loss_plateau"], {})) != first
    write(path, ROWS[:51], age=3600.0)
    second = cached_import(path, settings)
    assert second != first
    # Whoever reads the older one has time to change to the newer one.
    assert first.exists()
    write(path, ROWS[:52], age=3600.0)
    assert cached_import(path, settings).exists()
    assert not first.exists()
    path.write_text("nothing\n")
    with pytest.raises(ValueError, match="format"):
        cached_import(path, settings)


def test_a_log_that_was_left_before_its_end_is_imported_again(folder, settings, cache, monkeypatch):
    """Its last row was held back: it could have been incomplete."""
    monkeypatch.setattr(log_worker, "LogCache", lambda: cache)
    path = event_file(folder / "run", *[event(step, "loss", 2.0) for step in range(1, 6)]).parent
    entry = cache.entry(path, "run", settings)
    entry.prepare()
    with entry.lock():
        LogImporter(entry, path, "run", settings).run(lambda _: False)
        assert not entry.read().is_ended

    def count(state):
        return RunReader(entry.database(state)).signals()[0]["count"]

    assert count(entry.read()) == 4
    for file in path.iterdir():
        os.utime(file, (time.time() - 3600.0,) * 2)
    entry.write(replace(entry.read(), signature=log_signature(path)))
    cached_import(path, settings, run="run")
    assert (count(entry.read()), entry.read().is_ended) == (5, True)


def test_an_unchanged_log_is_imported_once_though_it_was_read_before_it_was_settled(
    folder, settings, cache, monkeypatch
):
    """Its end is judged once the log is settled, without reading it again."""
    monkeypatch.setattr(log_worker, "LogCache", lambda: cache)
    path = write(folder / "log.jsonl", [{"step": n, "loss": 1.0} for n in range(50)])
    first = cached_import(path, settings, run="log")
    entry = cache.entry(path, "log", settings)
    state = entry.read()
    assert (state.is_ended, stored_state(first)["ended"]) == (False, None)
    later = state.at(time.time() + 601.0)
    ended = entry.database(later)
    assert (later.is_ended, later.is_of(log_signature(path))) == (True, True)
    assert stored_state(ended)["ended"] is not None
    assert RunReader(ended).signals() == RunReader(first).signals()
    # Another import would have another database; what is not needed any more goes with the next.
    now = time.time()
    monkeypatch.setattr(log_cache.time, "time", lambda: now + 601.0)
    assert cached_import(path, settings, run="log") == ended
    assert not entry.has_newer_import(entry.read())


def test_the_settings_of_imported_logs_are_listed(folder, settings, cache, no_workers, monkeypatch):
    monkeypatch.setattr(log_worker, "LogCache", lambda: cache)
    for name, rate in (("slow", 9e-6), ("fast", 1e-5)):
        path = folder / name / "log.jsonl"
        path.parent.mkdir()
        write(path, [{"step": n, "loss": 1.0} for n in range(50)], age=3600.0)
        (path.parent / "args.json").write_text(json.dumps({"learning_rate": rate}))
        cached_import(path, settings, run=f"{name}-log")
    with serving(folder, settings, cache) as runs:
        query = RunQuery(sort="setting:learning_rate", columns=("learning_rate",))

        def read():
            found = [each["settings"] for each in runs.list_runs(query)["runs"]]
            return found if len(found) == 2 and all(each["learning_rate"] for each in found) else 0

        assert wait_until(read) == [{"learning_rate": 9e-6}, {"learning_rate": 1e-5}]


def test_a_log_is_followed_once_it_changes(folder, settings, cache, no_workers, monkeypatch):
    """A view starts no process for a log that is as it was when it was imported."""
    path = write(folder / "log.jsonl", ROWS[:50])
    monkeypatch.setattr(log_worker, "LogCache", lambda: cache)
    cached_import(path, settings, run="log")
    monkeypatch.setattr(imports, "CHECK_SECONDS", 0.0)
    with serving(folder, settings, cache) as runs:
        view = runs.view("log")
        state = view.read_state()
        assert (no_workers, state["log"]["notices"], state["state"]) == ([], [], "running")
        # The background, which may import the log itself, looks at it once a minute.
        wait_until(lambda: isfinite(runs._scanner.find("log").background_at))
        write(path, ROWS[:51])
        view.read_state()
        assert len(no_workers) == 1


def test_a_view_goes_on_with_the_next_import(folder, settings, cache, no_workers, monkeypatch):
    path = write(folder / "log.jsonl", ROWS[:50], age=3600.0)
    monkeypatch.setattr(log_worker, "LogCache", lambda: cache)
    first = cached_import(path, settings, run="log")
    with serving(folder, settings, cache) as runs:
        view = runs.view("log")
        assert view.reader.rows_since(0)["step"][-1] == ROWS[49]["step"]
        write(path, ROWS[:55], age=3600.0)
        second = cached_import(path, settings, run="log")
        assert view.reader.rows_since(0)["step"][-1] == ROWS[54]["step"]
        assert view.database == second != first


def test_a_folder_without_viewers_did_not_fail_to_answer(
    folder, settings, cache, no_workers, monkeypatch
):
    now = time.time()
    path = write(folder / "log.jsonl", ROWS[:50])
    runs = LogRuns(folder, settings, cache=cache, clock=lambda: now)
    runs.start()
    try:
        assert listed(runs)["log"]["state"] == "reading"
        entry = runs._scanner.find("log").entry
        entry.state = "running"
        # On a busy machine, the list may have been old enough to ask for another one.
        wait_until(lambda: runs._age._asked_at is None)
        # There is no request for 15 minutes, and the folder hangs at the next one.
        monkeypatch.setattr(
            scanner, "find_logs", lambda *_: wait_until(lambda: runs._changes.is_stopped)
        )
        now += 900.0
        age = runs._age
        age._clock = lambda: time.monotonic() + 900.0
        answer = runs.list_runs(RunQuery())
        assert answer["read_seconds_ago"] >= 900.0
        assert answer["unanswered_seconds"] < 60.0
        assert answer["runs"][0]["state"] == "unfinished"
        assert path.exists()
    finally:
        runs.close()


def test_what_an_import_left_that_was_killed_is_removed(folder, settings, cache):
    path = write(folder / "log.jsonl", ROWS[:50], age=3600.0)
    entry = cache.entry(path, "log", settings)
    entry.prepare()
    (entry.directory / "123.db").write_bytes(b"half")
    (entry.directory / "123.db-wal").write_bytes(b"half")
    entry.write(ImportState("123.db", log_signature(path), is_complete=False))
    assert not entry.is_importing()
    with entry.lock() as is_free:
        assert is_free
        assert entry.is_importing()
        with CacheEntry(entry.directory).lock() as is_free_too:
            assert not is_free_too
        LogImporter(entry, path, "log", settings).run()
    state = entry.read()
    assert state.is_complete
    assert [file.name for file in entry.directory.glob("*.db*")] == [state.database]
    (entry.directory / "import.json").write_text("{damaged")
    assert entry.read() == ImportState()


def test_what_was_read_is_shown_until_the_next_import_is_complete(folder, settings, cache):
    path = write(folder / "log.jsonl", ROWS[:50], age=3600.0)
    entry = cache.entry(path, "log", settings)
    entry.prepare()
    LogImporter(entry, path, "log", settings).run()
    before = entry.read()
    write(path, ROWS, age=3600.0)
    LogImporter(entry, path, "log", settings)
    assert entry.read() == before
    assert entry.database(before) is not None


def test_the_cache_is_bounded_and_private(folder, settings, cache, monkeypatch, tmp_path):
    for number in range(5):
        entry = cache.entry(folder / str(number), "log", settings)
        entry.prepare()
        (entry.directory / "1.db").write_bytes(bytes(1000))
        os.utime(entry.directory / "used", (number, number))
    cache.prune(max_bytes=2500, max_entries=10)
    assert len([*cache.root.iterdir()]) == 2
    cache.prune(max_bytes=10**6, max_entries=1)
    assert len([*cache.root.iterdir()]) == 1
    # One that was used a short time ago stays.
    cache.prune(max_bytes=0, max_entries=0, now=5.0)
    (entry,) = cache.root.iterdir()
    assert entry.stat().st_mode & 0o077 == 0
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    root = LogCache().root
    assert root == tmp_path / "user" / "sentinel" / "logs"
    assert root.stat().st_mode & 0o077 == 0
    root.chmod(0o777)
    assert LogCache().root != root


def test_a_process_that_breaks_off_is_not_started_again(folder, settings, cache, no_workers):
    path = write(folder / "log.jsonl", ROWS[:50])
    with serving(folder, settings, cache) as runs:
        wait_until(lambda: no_workers)
        wait_until(lambda: runs._imports.current_logs)
        runs._imports._workers[""].child.end(-9)
        wait_until(lambda: not runs._imports.current_logs)
        view = runs.view("log")
        assert "broke off" in view.state()["log"]["notices"][0]["text"]
        assert len(no_workers) == 1
        assert path.exists()


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_damaged_logs_are_shown_with_a_reason_or_in_part(folder, settings, cache, name):
    path = FORMATS[name](folder, ROWS[:20])
    for file in [path] if path.is_file() else [*path.rglob("*")]:
        data = bytearray(file.read_bytes())
        for at in range(0, len(data), 37):
            data[at] ^= at % 251
        file.write_bytes(data)
    entry = cache.entry(path, "log", settings)
    entry.prepare()
    LogImporter(entry, path, "log", settings).run()
    state = entry.read()
    assert state.is_complete
    assert state.problem or state.records
