"""Runs of the home directory that resemble another one; those that cannot be read are left out."""

from __future__ import annotations

import os

import pytest
from support.stored_homes import write_run

from sentinel.report.own_runs import own_runs
from sentinel.store.run_reader import RunReader


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    small = {"steps": 3, "ranks": 1, "sample_every": 0, "node_every": 0}
    paths = [
        write_run(folder, run="older", **small),
        write_run(folder, run="newer", **small),
        write_run(folder, run="other", metadata={"algorithm": "dpo"}, **small),
    ]
    for age, path in enumerate(reversed(paths)):
        os.utime(path, (1e9 - age, 1e9 - age))
    (folder / "runs" / "damaged").mkdir()
    (folder / "runs" / "damaged" / "sentinel.db").write_bytes(b"no database" * 100)
    (folder / "runs" / "empty").mkdir()
    return folder


def names(home, **options):
    metadata = RunReader(home / "runs" / "newer" / "sentinel.db").metadata()
    return [run.name for run in own_runs(home, metadata, **options)]


def test_alike_runs_newest_first(home):
    assert names(home) == ["newer", "older"]


def test_no_run_is_read_after_the_deadline(home):
    assert names(home, max_seconds=-1.0) == []


def test_without_a_home_there_are_none(tmp_path):
    assert [*own_runs(tmp_path / "none", {"framework": "trl"})] == []
