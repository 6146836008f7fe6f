"""`sentinel watch`: a growing log is followed, and each notification is sent once."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest
from prometheus_client import generate_latest
from support.clocks import FakeClock
from support.followed_logs import (
    append_rows,
    loss_rows,
    make_follower,
    next_heartbeat,
    step_attempts,
)
from typer.testing import CliRunner

from sentinel.causes._evidence import symptom_evidence
from sentinel.cli.main import app
from sentinel.cli.watch import build_log_agent, run_name_from_path
from sentinel.config.settings import load_settings
from sentinel.detectors.run_stalled import RunStalled
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.readers.follow import INITIAL_MAX_GAP_SECONDS
from sentinel.store.database import connect
from sentinel.transport.paths import current_run_dir


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def clock():
    return FakeClock(1.8e9)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.jsonl"


def test_rows_that_exist_are_a_backlog_and_new_rows_are_not(path, clock):
    append_rows(path, *loss_rows(1, 4))
    source = make_follower(path, clock)
    assert source.is_catching_up
    records = source.poll()
    assert step_attempts(records) == [(1, 0), (2, 0), (3, 0)]
    assert {(r.run, r.rank) for r in records} == {("mine", WHOLE_RUN)}
    assert not source.is_catching_up
    append_rows(path, *loss_rows(4, 5))
    assert step_attempts(source.poll()) == [(4, 0)]


def test_a_log_need_not_exist_yet(path, clock):
    source = make_follower(path, clock)
    assert source.poll() == []
    assert source.ranks_expected
    append_rows(path, *loss_rows(1, 2))
    assert step_attempts(source.poll()) == [(1, 0)]


def test_the_next_follower_continues_where_the_last_one_stopped(path, clock):
    append_rows(path, *loss_rows(1, 4, **{"train/reward": 1.0}))
    first = make_follower(path, clock)
    first.poll()
    append_rows(path, *loss_rows(4, 6, **{"train/reward": 1.0}))
    second = make_follower(path, clock, first.positions())
    assert not second.is_catching_up, "rows that came in between are new"
    records = second.poll()
    assert step_attempts(records) == [(4, 0), (5, 0)]
    assert records[0].values["reward"] == 1.0


def test_console_output_is_followed_from_its_first_lines_without_a_step(tmp_path, clock):
    path = tmp_path / "nohup.out"
    path.write_text("Loading 8 shards\n")
    source = make_follower(path, clock)
    assert source.poll() == []
    with path.open("a") as file:
        file.write("{'loss': 2.0, 'step': 1}\nsaved\n{'loss': 1.9, 'step': 2}\n{'loss'")
    assert step_attempts(source.poll()) == [(1, 0), (2, 0)]
    with path.open("a") as file:
        file.write(": 1.8, 'step': 3}\n")
    assert step_attempts(source.poll()) == [(3, 0)]

    second = make_follower(path, clock, source.positions())
    with path.open("a") as file:
        file.write("{'loss': 1.7, 'step': 4}\n")
    assert step_attempts(second.poll()) == [(4, 0)]


@pytest.mark.parametrize("is_followed", [True, False])
def test_a_log_that_starts_over_is_the_next_attempt(path, clock, is_followed):
    append_rows(path, *loss_rows(1, 9))
    source = make_follower(path, clock)
    source.poll()
    path.unlink()
    append_rows(path, *loss_rows(1, 3))
    if not is_followed:
        source = make_follower(path, clock, source.positions())
    records = source.poll() + source.poll()
    assert step_attempts(records) == [(1, 1), (2, 1)]
    assert step_attempts(source.poll()) == []


def test_a_log_that_may_have_ended_is_not_stalled(path, clock):
    append_rows(path, *loss_rows(1, 50))
    source = make_follower(path, clock)
    source.poll()
    assert "ranks_running" not in next_heartbeat(source, clock, 1e6).values


def test_a_stall_is_detected_by_the_arrival_of_rows(path, clock):
    """Rows with timestamps a second apart can arrive together every two minutes."""
    rows = [{**row, "time": 1.7e9 + row["step"]} for row in loss_rows(1, 60, max_steps=500)]
    append_rows(path, *rows)
    source, stalled = make_follower(path, clock), RunStalled()
    for record in source.poll():
        stalled.update(record)
    assert stalled.update(next_heartbeat(source, clock, 4 * INITIAL_MAX_GAP_SECONDS)) == Clear()
    output = stalled.update(next_heartbeat(source, clock, 2 * INITIAL_MAX_GAP_SECONDS))
    assert isinstance(output, Finding)
    assert output.severity is Severity.WARNING


def test_a_log_ends_at_its_last_step(path, clock):
    append_rows(path, *loss_rows(1, 50, max_steps=50))
    source = make_follower(path, clock)
    source.poll()
    assert not source.ended
    append_rows(path, *loss_rows(50, 51, max_steps=50))
    stops = [r for r in source.poll() if r.event is Event.STOP]
    assert [(r.step, r.attributes["outcome"]) for r in stops] == [(50, "finished")]
    assert source.ended
    assert next_heartbeat(source, clock).attributes["state"] == "finished"


def test_a_backlog_is_read_in_batches(path, clock):
    append_rows(path, *loss_rows(1, 31))
    source = make_follower(path, clock)
    batches = []
    while source.is_catching_up:
        batches.append(step_attempts(source.poll(max_records=10)))
    assert max(map(len, batches)) <= 10
    assert [step for batch in batches for step, _ in batch] == list(range(1, 31))


def test_a_growing_checkpoint_folder_is_followed(tmp_path, clock):
    folder = tmp_path / "out"

    def save(step):
        (folder / f"checkpoint-{step}").mkdir(parents=True)
        history = [{"step": s, "loss": 2.5} for s in range(1, step + 1)]
        state = {"log_history": history, "max_steps": 40}
        (folder / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps(state))

    save(5)
    source = make_follower(folder, clock)
    assert step_attempts(source.poll())[-1] == (5, 0)
    save(10)
    (folder / "checkpoint-5" / "trainer_state.json").unlink()
    (folder / "checkpoint-5").rmdir()
    records = source.poll()
    assert step_attempts(records) == [(step, 0) for step in range(6, 11)]
    assert [r.step for r in records if r.event is Event.SAVE] == [10]
    resumed = make_follower(folder, clock, source.positions())
    assert step_attempts(resumed.poll()) == []
    save(15)
    assert step_attempts(resumed.poll()) == [(step, 0) for step in range(11, 16)]


def queued_notifications():
    with closing(connect(current_run_dir("mine") / "sentinel.db")) as database:
        rows = database.execute("select * from outbox").fetchall()
    return [row for row in rows if "nan_or_inf" in str(row)]


def make_agent(path, **options):
    sinks = {"webhook": {"url": "http://127.0.0.1:9/unreachable"}}
    settings = {"linger_seconds": 0.0, "port": 0, "sinks": sinks, "node_poll_seconds": 0}
    return build_log_agent(path, "mine", load_settings(settings), **options)


def test_an_incident_of_the_backlog_is_sent_only_if_it_is_still_firing(path, capsys, monkeypatch):
    for name in ("RESOLVE", "COOLDOWN"):
        monkeypatch.setenv(f"SENTINEL_{name}_SECONDS", "0")
    resolved = [*loss_rows(1, 20), *loss_rows(20, 30, "NaN"), *loss_rows(30, 300)]
    append_rows(path, *resolved, *loss_rows(300, 330, "NaN"))
    first = make_agent(path)
    while first.log.is_catching_up:
        first.run_once()
    first.run_once()
    assert len(queued_notifications()) == 1
    assert capsys.readouterr().out.count("nan_or_inf opened") == 2
    append_rows(path, *loss_rows(330, 340, "NaN"))
    first.run_once()
    first.stop_requested.set()
    first.serve()
    second = make_agent(path)
    second.run_once()
    append_rows(path, *loss_rows(340, 400))
    second.run_once()
    assert second.processor.history.latest_records("mine")
    second.stop_requested.set()
    second.serve()
    assert len(queued_notifications()) == 2, "opened and resolved"


def test_a_case_is_printed_as_json(path, capsys):
    append_rows(path, *loss_rows(1, 20), *loss_rows(20, 30, "NaN"))
    watch = make_agent(path, as_json=True)
    watch.run_once()
    watch.stop_requested.set()
    watch.serve()
    first, *_ = map(json.loads, capsys.readouterr().out.splitlines())

    assert (first["type"], first["notification"]) == ("notification", "opened")
    assert (first["detector"], first["severity"]) == ("nan_or_inf", "warning")
    assert first["onset_step"] == 20
    assert first["remedy"]


def test_a_case_is_printed_when_it_opens_and_when_its_cause_is_found(path, capsys, monkeypatch):
    class Rot:
        title, severity, explains = "rot", None, frozenset({"nan_or_inf", "step_regression"})

        def evidence(self, context):
            if "nan_or_inf" in context.symptoms:
                yield from symptom_evidence(context.earliest("step_regression"), 0.7)

        def remedy(self, _):
            return "Clean\x1b[2J up."

    monkeypatch.setattr("sentinel.pipeline.pipeline.build_causes", lambda: {"rot": Rot()})
    append_rows(path, *loss_rows(1, 20), *loss_rows(20, 30, "NaN"))
    watch = make_agent(path)
    watch.run_once()
    first = capsys.readouterr().out
    append_rows(path, *loss_rows(15, 18, "NaN"))
    watch.run_once()
    second = capsys.readouterr().out
    watch.stop_requested.set()
    watch.serve()

    assert ("nan_or_inf opened" in first, "cause: " in first) == (True, False)
    assert "cause: rot (probably, 70 %)" in second
    assert "since step 15: " in second
    assert "what to do: Clean\\x1b[2J up." in second


def test_the_choice_of_one_of_several_runs_is_printed_once(tmp_path, capsys):
    path = tmp_path / "project.db"
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("create table metrics(id, run_name, timestamp, step, metrics)")
        rows = [(n, f"run{n % 2}", "2026-01-01T00:00:00", n, '{"loss": 2.5}') for n in range(9)]
        other.executemany("insert into metrics values(?, ?, ?, ?, ?)", rows)
    watch = make_agent(path)
    watch.run_once()
    watch.run_once()
    output = capsys.readouterr().err
    assert output.count("it holds 2 runs (run0, run1); run0, which wrote last") == 1
    watch.stop_requested.set()
    watch.serve()


def test_trainings_of_one_log_that_are_not_evaluated_are_printed_once(path, capsys):
    append_rows(path, *({"step": n, "loss": 1.0, "trial": k} for n in range(1, 9) for k in (1, 2)))
    watch = make_agent(path)
    watch.run_once()
    watch.run_once()
    watch.stop_requested.set()
    watch.serve()

    assert capsys.readouterr().err.count("only the first one is evaluated") == 1


def test_what_is_not_monitored_is_printed_once_and_shown(path, capsys):
    append_rows(path, *({"step": step, "vl": 1.0, "tl": 2.0} for step in range(1, 60)))
    watch = make_agent(path)
    watch.run_once()
    watch.run_once()
    state = watch.processor.exposition.state()
    metrics = generate_latest(watch.processor.exposition.registry).decode()
    watch.stop_requested.set()
    watch.serve()

    errors = capsys.readouterr().err
    assert errors.count("nothing of this run is monitored") == 1
    assert '"vl", "tl"; map them in the settings: [keys]' in errors
    assert "nothing of this run is monitored" in state["coverage"]
    assert (state["monitored"], len(state["unmonitored"])) == ([], 2)
    assert 'sentinel_monitored_signals{run="mine"} 0.0' in metrics
    assert 'sentinel_unmonitored_keys{run="mine"} 2.0' in metrics


def test_settings_in_a_log_are_metadata_of_the_run(path):
    (path.parent / "args.json").write_text('{"learning_rate": 0.5, "beta": 0.1, "optim": "sgd"}')
    append_rows(path, *loss_rows(1, 9))
    watch = make_agent(path)
    watch.run_once()
    watch.stop_requested.set()
    watch.serve()
    with closing(connect(current_run_dir("mine") / "sentinel.db")) as database:
        metadata = dict(database.execute("select key, value from run_metadata"))
    assert (metadata["learning_rate"], metadata["beta"], metadata["optim"]) == (0.5, 0.1, "sgd")


def test_the_watch_ends_with_the_log(path):
    append_rows(path, *loss_rows(1, 50))
    watch = make_agent(path)
    watch.run_once()
    append_rows(path, *loss_rows(50, 51), {"step": 50, "train_runtime": 12.5, "train_loss": 2.0})
    watch.serve()
    outcome = json.loads((current_run_dir("mine") / "outcome.json").read_text())
    assert outcome["outcome"] == "finished"
    assert queued_notifications() == []


@pytest.mark.parametrize("content", [b"hello\n", b"\x1f\x8b\x08\x00"])
def test_a_file_that_is_not_a_log_is_one_line_and_exit_2(tmp_path, content):
    path = tmp_path / "some.txt"
    path.write_bytes(content)
    result = CliRunner().invoke(app, ["watch", str(path)])
    assert result.exit_code == 2
    assert str(path) in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_run_id_is_made_from_the_path_and_is_always_the_same(tmp_path):
    path = tmp_path / "a b" / "log.jsonl"
    assert (
        run_name_from_path(path)
        == run_name_from_path(path)
        != run_name_from_path(tmp_path / "log.jsonl")
    )
    assert run_name_from_path(path).startswith("a-b-log-")


def test_directories_that_are_both_unusable_are_one_line(path, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "file"))
    append_rows(path, *loss_rows(1, 4))
    result = CliRunner().invoke(app, ["watch", str(path)])

    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"sentinel watch: cannot use {tmp_path / 'file'} (File exists)")
