"""W&B's offline files and trackio's database: complete, cut off and damaged."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from math import isnan

import pytest
from support.wandb_files import field, framed, row

from sentinel.model.record import Event
from sentinel.readers import trackio, wandb
from sentinel.readers.format_detection import open_log

OFFLINE = """
import wandb
settings = wandb.Settings(x_disable_stats=True, console="off")
with wandb.init(project="p", mode="offline", settings=settings) as run:
    for step in range(1, 41):
        loss = float("nan") if step == 7 else 1.0 / step
        run.log({"train/loss": loss, "train": {"reward": step / 8}, "text": "x" * 3000})
"""

TRACKIO = """
from trackio.sqlite_storage import SQLiteStorage
for name in ("first", "second"):
    rows = [{"train/loss": 1.0 / step, "entropy": float("nan")} for step in range(1, 6)]
    SQLiteStorage.bulk_log("proj", name, rows, steps=list(range(1, 6)))
"""


def steps(records):
    return [(r.step, dict(r.values)) for r in records if r and r.event is Event.STEP]


def drain(following):
    found = []
    while (record := next(following)) is not None:
        found.append(record)
    return found


def python(code, folder, **environ):
    environment = {"WANDB_SILENT": "true", "HF_HUB_OFFLINE": "1", **environ}
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, **environment},
        check=True,
        timeout=240,
    )


@pytest.fixture(scope="module")
def offline(tmp_path_factory):
    """The file of a run recorded by W&B."""
    pytest.importorskip("wandb")
    folder = tmp_path_factory.mktemp("wandb")
    python(OFFLINE, folder, WANDB_DIR=str(folder))
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    return file


@pytest.fixture(scope="module")
def written_project(tmp_path_factory):
    """A project database written by trackio, with two runs; tests use a copy of it."""
    pytest.importorskip("trackio")
    folder = tmp_path_factory.mktemp("trackio")
    python(TRACKIO, folder, TRACKIO_DIR=str(folder))
    return folder


@pytest.fixture
def project(written_project, tmp_path):
    """A project database of the test."""
    return shutil.copytree(written_project, tmp_path, dirs_exist_ok=True) / "proj.db"


def test_an_offline_wandb_run_is_read(offline):
    step_values = steps(open_log(offline.parent))
    assert len(step_values) == 40
    losses = [values["loss"] for _, values in step_values]
    assert isnan(losses[6])
    assert losses[7:] == [pytest.approx(1 / step) for step in range(8, 41)]
    assert [values["reward"] for _, values in step_values] == [step / 8 for step in range(1, 41)]


def test_a_record_in_several_blocks_is_joined(tmp_path):
    path = tmp_path / "run-x.wandb"
    path.write_bytes(framed(*(row(s, s + 0.5, b"x" * 20_000) for s in range(1, 9))))
    reader = wandb.read(path)
    assert [(s, v["loss"]) for s, v in steps(reader)] == [(s, s + 0.5) for s in range(1, 9)]
    assert reader.skipped == 0


def test_a_file_cut_at_any_byte_continues(tmp_path):
    content = framed(*(row(s, s + 0.5) for s in range(1, 4)))
    path = tmp_path / "run-x.wandb"
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        reader = wandb.read(path)
        following = reader.follow()
        first = drain(following)
        with path.open("ab") as file:
            file.write(content[cut:])
        step_values = steps(first + drain(following))
        assert [step for step, _ in step_values] == [1, 2, 3]
        assert reader.skipped == 0


def test_a_damaged_fragment_costs_its_own_record(tmp_path):
    path = tmp_path / "run-x.wandb"
    records = [row(s, s + 0.5, b"x" * 9000) for s in range(1, 12)]
    path.write_bytes(framed(*records, damage={1, 3}))
    reader = wandb.read(path)
    assert [step for step, _ in steps(reader)] == [1, 3, *range(5, 12)]
    assert reader.skipped == 2


def test_other_records_are_ignored_and_invalid_ones_counted(tmp_path):
    path = tmp_path / "run-x.wandb"
    broken = field(2, field(1, field(1, b"a") + field(16, b"{")))
    path.write_bytes(framed(field(17, b"run"), row(1, 2.5), broken, b"\xff" * 9, row(2, 2.5)))
    reader = wandb.read(path)
    assert [step for step, _ in steps(reader)] == [1, 2]
    assert reader.skipped == 2


def test_the_run_that_wrote_last_is_read(project):
    reader = open_log(project)
    step_values = steps(reader)
    assert [(s, v["loss"]) for s, v in step_values] == [(s, 1.0 / s) for s in range(1, 6)]
    assert all(isnan(values["entropy"]) for _, values in step_values)
    assert all(record.time > 1e9 for record in reader)


def test_an_iteration_that_is_left_is_closed_in_another_thread(project):
    """As by the garbage collector, in a server."""
    records = iter(open_log(project))
    with ThreadPoolExecutor(1) as pool:
        # The third record is the first of a row.
        assert pool.submit(lambda: [next(records) for _ in range(3)]).result()
    records.close()


def test_another_run_of_a_project_is_read_by_name(project):
    newest, first = open_log(project), open_log(project / "first")
    assert {r.run for r in first} == {"first"}
    assert len(steps(first)) == len(steps(newest)) == 5
    assert "2 runs (second, first); second, which wrote last" in newest.notice
    assert first.notice == ""
    with pytest.raises(ValueError, match="holds no run 'third'; its runs: second, first"):
        list(open_log(project / "third"))


def test_a_log_of_one_run_accepts_no_run_name(tmp_path):
    (tmp_path / "log").write_text('{"step": 1, "loss": 2.0}\n')
    with pytest.raises(ValueError, match="log is a log of one run: it holds no run 'first'"):
        open_log(tmp_path / "log" / "first")


def test_a_growing_project_is_followed(project):
    following = trackio.read(project).follow()
    assert len(steps(drain(following))) == 5
    with closing(sqlite3.connect(project)) as other, other:
        other.execute(
            "insert into metrics(run_id, timestamp, run_name, step, metrics) "
            "select run_id, timestamp, run_name, 6, '{\"loss\": 0.5}' from metrics where id = 10"
        )
    assert [step for step, _ in steps(drain(following))] == [6]


@pytest.mark.parametrize("step_values", ["{", "[1]", "null", '{"a":' * 5000, "x" * 2**21])
def test_an_invalid_row_of_a_project_is_counted(project, step_values):
    with closing(sqlite3.connect(project)) as other, other:
        other.execute("update metrics set metrics = ? where id = 8", [step_values])
    reader = trackio.read(project)
    assert [step for step, _ in steps(reader)] == [1, 2, 4, 5]
    assert reader.skipped == 1


def test_another_database_is_not_detected_as_a_project(tmp_path):
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("create table metrics(a)")
    head = path.read_bytes()[:4096]
    assert not trackio.can_read(path, head)
    assert not trackio.can_read(path, head[:15])
    path.write_bytes(head[:2000])
    assert not trackio.can_read(path, head)
