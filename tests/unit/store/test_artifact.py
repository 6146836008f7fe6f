"""Results of insight as files of a run: limits, atomicity, and what others may have written."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from support.stored_homes import write_run

import sentinel
from sentinel.store import artifact
from sentinel.store.artifact import (
    ArtifactError,
    artifact_mark,
    copy_artifacts,
    current_run_directory,
    list_artifacts,
    load_artifact,
    save_artifact,
)
from sentinel.store.stored_runs import delete_run, stored_runs
from sentinel.transport.paths import shared_state_dir


@dataclass
class Result:
    """What a function of insight returns."""

    kind: str = "loss_surface"
    name: str = ""
    step: int | None = 20
    values: dict[str, Any] = field(default_factory=dict)

    def to_json(self):
        return {"kind": self.kind, "step": self.step, **self.values}


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    return path


def write(run, name, text):
    (run / "insight").mkdir(exist_ok=True)
    path = run / "insight" / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def header(**changes):
    return {"version": 1, "id": "x", "kind": "trajectory", "name": "", "title": "T", "step": 1,
            "time": 5.0, "data": {}} | changes  # fmt: skip


def test_a_stored_result_is_listed_and_read_again(run):
    path = save_artifact(run, Result(values={"loss": [[1.5, nan], [inf, 2]]}))

    assert path == run / "insight" / "loss_surface-20.json"
    assert path.stat().st_mode & 0o777 == 0o600
    (listed,) = list_artifacts(run)
    assert listed["title"] == "Loss surface"
    assert (listed["kind"], listed["step"], listed["size"]) == (
        "loss_surface", 20, path.stat().st_size,
    )  # fmt: skip
    found = load_artifact(run, listed["id"])
    assert found["data"]["loss"] == [[1.5, None], [None, 2]]
    assert found["time"] == pytest.approx(time.time(), abs=60)
    json.loads(path.read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("name", "step", "expected"),
    [
        ("policy", None, "loss_surface-policy"),
        ("policy", 4, "loss_surface-policy-4"),
        ("", 4, "loss_surface-4"),
    ],
)
def test_the_id_is_of_kind_name_and_step(run, name, step, expected):
    save_artifact(run, Result(name=name, step=step))

    assert [each["id"] for each in list_artifacts(run)] == [expected]


def test_names_that_are_no_file_names_stay_apart(run):
    names = ["../../x", "a/b", "a b", ".", "x" * 500, "<img src=x>", "a\0b", "\ud800"]
    for name in names:
        assert save_artifact(run, Result(name=name, step=None)) is not None

    assert len(list_artifacts(run)) == len(names)
    assert {each.parent for each in run.rglob("*.json")} == {run / "insight"}
    assert all(len(each.name) < 160 for each in run.rglob("*.json"))


def test_the_same_id_replaces_the_result_and_changes_the_marks(run):
    save_artifact(run, Result(values={"n": 1}))
    first, mark = list_artifacts(run)[0], artifact_mark(run)
    time.sleep(0.02)
    save_artifact(run, Result(values={"n": 2}))

    (second,) = list_artifacts(run)
    assert second["revision"] != first["revision"]
    assert artifact_mark(run) != mark
    assert load_artifact(run, "loss_surface-20")["data"]["n"] == 2


def test_the_oldest_of_the_most_frequent_kind_are_deleted(run):
    save_artifact(run, Result("trajectory", step=None, name="kept"))
    for step in range(artifact.MAX_ARTIFACTS + 5):
        save_artifact(run, Result(step=step))
        os.utime(run / "insight" / f"loss_surface-{step}.json", ns=(step, step))

    steps = {each["step"] for each in list_artifacts(run)}
    assert len(list_artifacts(run)) == artifact.MAX_ARTIFACTS
    assert steps == {None, *range(6, artifact.MAX_ARTIFACTS + 5)}


def test_the_size_of_all_results_is_bounded(run, monkeypatch):
    monkeypatch.setattr(artifact, "MAX_RUN_BYTES", 3000)
    for step in range(5):
        save_artifact(run, Result(step=step, values={"text": "x" * 900}))

    assert [each["step"] for each in list_artifacts(run)] == [3, 4]


def test_a_result_that_is_too_large_is_refused_or_written_with_fewer_digits(run, caplog):
    assert save_artifact(run, Result(values={"text": "x" * artifact.MAX_BYTES})) is None
    assert "more than 4 MiB: use fewer points" in caplog.text
    third = [1 / 3 + 1e-9 * number for number in range(250_000)]
    assert save_artifact(run, Result(values={"x": third})) is not None
    assert load_artifact(run, "loss_surface-20")["data"]["x"][1] == pytest.approx(1 / 3, rel=1e-5)


@pytest.mark.parametrize(
    "result", [Result(kind=""), Result(kind="../x"), {"kind": "a b"}, {}, object(), None]
)
def test_what_is_no_result_is_refused_with_a_warning(run, caplog, result):
    assert save_artifact(run, result) is None
    assert "A result of insight is not stored with the run" in caplog.text
    assert list_artifacts(run) == []


def test_a_directory_that_cannot_be_written_is_a_warning(run, tmp_path, caplog):
    assert save_artifact(tmp_path / "missing", Result()) is None
    (run / "insight").write_text("a file")
    assert save_artifact(run, Result()) is None
    assert caplog.text.count("sentinel doctor") == 2
    assert (list_artifacts(run), artifact_mark(run)) == ([], "")


def test_a_full_disk_leaves_the_former_result_and_no_other_file(run, monkeypatch, caplog):
    save_artifact(run, Result(values={"n": 1}))

    def full(*_args, **_options):
        raise OSError(28, "No space left on device", "x")

    monkeypatch.setattr(os, "rename", full)
    assert save_artifact(run, Result(values={"n": 2})) is None
    assert "No space left on device" in caplog.text
    assert [each.name for each in (run / "insight").iterdir()] == ["loss_surface-20.json"]
    assert load_artifact(run, "loss_surface-20")["data"]["n"] == 1


def test_links_are_not_followed(run, tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps(header(id="secret")))
    (run / "insight").mkdir()
    (run / "insight" / "loss_surface-20.json").symlink_to(secret)
    os.mkfifo(run / "insight" / "pipe.json")

    assert list_artifacts(run) == []
    for name in ("loss_surface-20", "pipe"):
        with pytest.raises(ArtifactError):
            load_artifact(run, name)
    # A result replaces the link, and not what it leads to.
    save_artifact(run, Result())
    assert "secret" in secret.read_text()
    assert len(list_artifacts(run)) == 1

    other = tmp_path / "other"
    other.mkdir()
    (other / "insight").symlink_to(run / "insight")
    assert list_artifacts(other) == []
    assert save_artifact(other, Result(step=21)) is None
    assert len(list_artifacts(run)) == 1


@pytest.mark.parametrize("path", ["", "../x", "a/b", "/etc/passwd", "..", "x" * 500, "a\0b", "A"])
def test_an_id_is_never_a_path(run, path):
    with pytest.raises(ArtifactError, match="no such result"):
        load_artifact(run, path)


def test_the_directory_of_the_run_of_this_process(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "shm"))
    found = []

    @sentinel.monitor(run="mine", agent=False)
    def train():
        found.append(current_run_directory())
        sentinel.log({"loss": 1.0}, step=7)
        assert save_artifact(found[0], Result(step=None)).name == "loss_surface-7.json"
        assert load_artifact(found[0], "loss_surface-7")["data"]["step"] == 7
        # The agent keeps its files in shared memory, since the disk is full.
        (shared_state_dir(found[0].name) / "sentinel.db").touch()
        found.append(current_run_directory())

    train()

    run = found[0].name
    assert found == [tmp_path / "home" / "runs" / run, tmp_path / "shm" / run / "state"]
    assert current_run_directory() is None


DAMAGED = [
    b"", b"{", b"null", b"[]", b"\xff\xfe\x00", b"{}", b'{"version":1}', b"[" * 100_000,
    b'{"version":2,"kind":"a","data":{}}', b'{"version":1,"kind":"../a","data":{}}',
    b'{"version":1,"kind":5,"data":{}}', b'{"version":1,"kind":"a","data":' + b"9" * 6000 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_is_left_out(run, text):
    write(run, "bad.json", text)
    save_artifact(run, Result())

    assert [each["id"] for each in list_artifacts(run)] == ["loss_surface-20"]
    with pytest.raises(ArtifactError):
        load_artifact(run, "bad")


def test_a_file_of_others_is_checked(run):
    hostile = header(id="other", step="9", time=1e300, name={"a": 1}, title=["<script>\n"])
    write(run, "mine.json", json.dumps(hostile))
    write(
        run, "deep.json", json.dumps(header(data={"a": 1})).replace("1}", "[" * 60 + "]" * 60 + "}")
    )
    write(run, "list.json", json.dumps(header(data=[])))
    truncated = save_artifact(run, Result(values={"x": [1, 2, 3]}))
    truncated.write_bytes(truncated.read_bytes()[:-4])
    write(run, "not a name.json", json.dumps(header()))
    write(run, "huge.json", b'{"version":1,"kind":"a",\n' + b" " * (5 << 20) + b"}")

    listed = {each["id"]: each for each in list_artifacts(run)}
    assert (listed["mine"]["step"], listed["mine"]["time"]) == (None, 0.0)
    assert listed["mine"]["title"] == "['<script>\\n']"
    assert load_artifact(run, "mine")["id"] == "mine"
    for name in ("deep", "list", "loss_surface-20", "huge"):
        with pytest.raises(ArtifactError):
            load_artifact(run, name)


def test_results_are_copied_once_to_another_directory(run, tmp_path):
    """As the agent does between shared memory and a file server."""
    target = tmp_path / "target"
    target.mkdir()
    copy_artifacts(run, target)
    assert not (target / "insight").exists()
    # Their sizes differ by the digits of their times.
    paths = [
        save_artifact(run, Result(step=step, values={"text": "x" * 500})) for step in (1, 2, 3)
    ]
    for age, path in enumerate(paths):
        os.utime(path, ns=(age, age))
    copy_artifacts(run, target, sum(path.stat().st_size for path in paths[1:]))
    assert [each["step"] for each in list_artifacts(target)] == [2, 3]

    save_artifact(target, Result(step=3, values={"n": 1}))
    copy_artifacts(run, target)
    assert [each["step"] for each in list_artifacts(target)] == [1, 2, 3]
    assert load_artifact(target, "loss_surface-3")["data"]["n"] == 1


def test_a_deleted_run_loses_its_results(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path))
    database = write_run(tmp_path, run="old", steps=3, sample_every=0, node_every=0)
    run = database.parent
    (run / "outcome.json").write_text("{}")
    path = save_artifact(run, Result(values={"text": "x" * 50_000}))
    later = path.stat().st_mtime + 1e6

    (stored,) = stored_runs(tmp_path, later)
    assert stored.size > 50_000
    assert delete_run(stored, later)
    assert not Path(run).exists()
