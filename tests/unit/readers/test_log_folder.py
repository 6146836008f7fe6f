"""Which logs are found below a folder, and what their runs are called."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from contextlib import closing

import pytest
from support.event_files import event, event_file
from support.log_files import FORMATS, trackio, trainer_state
from support.wandb_files import framed, row

from sentinel.notify.trackers.tensorboard import FILE_PATTERN
from sentinel.readers.format_detection import open_log
from sentinel.readers.log_folder import MAX_NAME_CHARS, find_logs
from sentinel.transport.paths import validate_run_id

ROWS = [{"step": n, "time": 1.7e9 + n, "loss": 2.0} for n in range(1, 4)]


def names(folder):
    return [log.run for log in find_logs(folder)]


def lines(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_logs_of_every_format_are_found(tmp_path, name):
    (tmp_path / "logs").mkdir()
    path = FORMATS[name](tmp_path / "logs", ROWS)
    (log,) = find_logs(tmp_path / "logs")
    assert log.format
    assert not log.problem
    assert [*open_log(log.path)][-1].values == [*open_log(path)][-1].values
    assert log.last_written >= path.stat().st_mtime - 10
    assert validate_run_id(log.run) == log.run


def test_a_tensorboard_folder_of_several_runs(tmp_path):
    for name in ("lr-1", "lr-2", "deep/a run (2)"):
        (tmp_path / name).mkdir(parents=True)
        event_file(tmp_path / name, event(1, "loss", 1.0))
    # Parts of a run are no runs.
    for part in ("train", "1.2", "curves_a"):
        event_file(tmp_path / "lr-1" / part, event(1, "curves", 1.0))
    event_file(tmp_path / "lr-1" / "another", event(1, "loss", 1.0))
    assert names(tmp_path) == ["deep-a-run-2", "lr-1", "lr-1-another", "lr-2"]


def test_a_run_that_is_split_into_parts_is_one(tmp_path):
    (tmp_path / "run").mkdir()
    for part in ("train", "eval"):
        event_file(tmp_path / "run" / part, event(1, "loss", 1.0))
    assert names(tmp_path) == ["run"]


def test_wandb_folders_without_their_link(tmp_path):
    for name in ("offline-run-1", "offline-run-2"):
        (tmp_path / "wandb" / name / "logs").mkdir(parents=True)
        (tmp_path / "wandb" / name / "run-x.wandb").write_bytes(framed(row(1, 2.0)))
        lines(tmp_path / "wandb" / name / "files" / "wandb-summary.json", {"loss": 1, "_step": 3})
    (tmp_path / "wandb" / "latest-run").symlink_to(tmp_path / "wandb" / "offline-run-2")
    assert names(tmp_path) == ["wandb-offline-run-1", "wandb-offline-run-2"]


def test_an_output_directory_is_one_run(tmp_path):
    output = tmp_path / "output"
    (output / "checkpoint-2").mkdir(parents=True)
    trainer_state(output / "checkpoint-2", ROWS)
    trainer_state(output, ROWS)
    lines(output / "trainer_log.jsonl", *ROWS)
    lines(output / "completions" / "completions_1.jsonl", {"step": 1, "reward": 1.0})
    (output / "runs").mkdir()
    event_file(output / "runs" / "host", event(1, "loss", 1.0))
    assert names(tmp_path) == ["output"]


def test_data_sets_samples_and_other_files_are_no_logs(tmp_path):
    lines(tmp_path / "data.jsonl", {"question": "?", "answer": 4})
    lines(tmp_path / "chat.jsonl", {"messages": [], "reward": 1.0})
    lines(tmp_path / "12.jsonl", {"step": 12, "reward": 1.0})
    lines(tmp_path / "config.json", {"hidden_size": 12})
    lines(tmp_path / ".hidden" / "log.jsonl", *ROWS)
    (tmp_path / "table.csv").write_text("name,age\nx,3\n")
    (tmp_path / "notes.txt").write_text("step by step\n")
    (tmp_path / "model.safetensors").write_bytes(bytes(100))
    (tmp_path / "empty.jsonl").write_text("")
    assert names(tmp_path) == []


def test_a_file_that_is_named_is_a_run_in_any_case(tmp_path):
    path = lines(tmp_path / "data.jsonl", {"answer": 4})
    assert names(path) == ["data"]
    (tmp_path / "notes.txt").write_text("nothing\n")
    (log,) = find_logs(tmp_path / "notes.txt")
    assert "its format is not known" in log.problem


def test_every_run_of_a_trackio_project(tmp_path):
    path = trackio(tmp_path, ROWS)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("insert into metrics select null, 'second', timestamp, step, metrics"
                           " from metrics")  # fmt: skip
    logs = find_logs(tmp_path)
    assert [log.run for log in logs] == ["project.db-run", "project.db-second"]
    assert len({*(len([*open_log(log.path)]) for log in logs)}) == 1
    assert [log.run for log in find_logs(path / "second")] == ["second"]
    assert find_logs(path / "missing")[0].problem


def test_refusals_keep_their_reasons(tmp_path):
    os.mkfifo(tmp_path / "live.jsonl")
    (tmp_path / "old.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
    (tmp_path / "ok.jsonl.gz").write_bytes(gzip.compress(b'{"step": 1, "loss": 2.0}\n'))
    (tmp_path / "damaged.jsonl").write_text("not JSON\n{\n")
    (tmp_path / "tail.jsonl").write_text('": 1, "loss": 2.5}\n{"step": 2, "loss": 2.0}\n')
    (tmp_path / "empty.jsonl").write_text("\n")
    problems = {log.run: log.problem for log in find_logs(tmp_path)}
    assert "its format is not known" in problems.pop("damaged")
    assert problems.pop("tail") == "", "only the first line is damaged"
    assert "pipe" in problems["live"]
    assert "zstd" in problems["old"]
    assert problems["ok"] == ""
    assert problems.keys() == {"live", "old", "ok"}


def test_names_are_unique_and_short(tmp_path):
    rows = ROWS[:1]
    for path in ("a/b.jsonl", "a-b.jsonl", "c.jsonl", "x" * 120 + ".jsonl", "é.jsonl"):
        lines(tmp_path / path, *rows)
    (tmp_path / "c.csv").write_text("step,loss\n1,2\n")
    found = find_logs(tmp_path)
    assert len({log.run for log in found}) == len(found) == 6
    assert {"c.csv", "c.jsonl"} <= {log.run for log in found}
    assert all(len(validate_run_id(log.run)) <= MAX_NAME_CHARS + 9 for log in found)
    assert found == find_logs(tmp_path)


def test_links_in_a_circle_end(tmp_path):
    lines(tmp_path / "a" / "log.jsonl", *ROWS)
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert names(tmp_path) == ["a-log"]


def test_a_folder_that_is_missing_or_empty(tmp_path):
    assert find_logs(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        find_logs(tmp_path / "missing" / "folder")


def test_a_link_to_a_folder_above_does_not_lead_out(tmp_path):
    lines(tmp_path / "other/a.jsonl", *ROWS)
    lines(tmp_path / "logs/b.jsonl", *ROWS)
    (tmp_path / "logs/loop").symlink_to("..")

    assert names(tmp_path / "logs") == ["b"]


@pytest.mark.parametrize("own", [["sentinel.db"], ["import.json", "used"]])
def test_the_own_files_of_sentinel_are_no_logs(tmp_path, own):
    lines(tmp_path / "run/summary.json", *ROWS)
    lines(tmp_path / "log.jsonl", *ROWS)
    for name in own:
        (tmp_path / "run" / name).touch()

    assert names(tmp_path) == ["log"]


def test_links_are_followed_within_the_folder_only(tmp_path):
    lines(tmp_path / "other/a.jsonl", *ROWS)
    lines(tmp_path / "logs/b.jsonl", *ROWS)
    (tmp_path / "logs/out").symlink_to("../other")
    (tmp_path / "logs/out.jsonl").symlink_to("../other/a.jsonl")
    (tmp_path / "logs/gone").symlink_to("gone")

    assert names(tmp_path / "logs") == ["b"]


@pytest.mark.parametrize("own", ["home", "cache/sentinel"])
def test_the_folders_of_sentinel_are_not_searched(tmp_path, monkeypatch, own):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lines(tmp_path / own / "runs/a/metrics.jsonl", *ROWS)
    lines(tmp_path / "log.jsonl", *ROWS)

    assert names(tmp_path) == ["log"]
    assert names(tmp_path / own / "runs") == ["a-metrics"]


def test_what_sentinel_writes_beside_a_tensorboard_log_is_none(tmp_path):
    event_file(tmp_path / "run", event(1, "loss", 2.0))
    written = event_file(tmp_path / "run/sentinel", event(1, "text", 2.0))
    own = written.rename(written.with_name("events.out.tfevents.1700000000.sentinel"))

    assert own.match(FILE_PATTERN)
    assert names(tmp_path) == ["run"]
