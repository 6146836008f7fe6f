"""The commit and the changes of a repository, in every form that git gives a working tree."""

from __future__ import annotations

import os
import subprocess
import time
from threading import Event

import pytest

from sentinel.live.provenance.git_state import (
    NO_CHANGES,
    UNKNOWN,
    changes_of,
    commit_of,
    find_repository,
)


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "core.hooksPath="]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """A repository with one commit of `train.py`."""
    folder = tmp_path_factory.mktemp("origin")
    git(folder, "init", "-q", "-b", "main")
    (folder / "train.py").write_text("lr = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


@pytest.fixture
def changed(origin):
    """The repository with a changed file."""
    yield (origin / "train.py").write_text("lr = 2\n")
    (origin / "train.py").write_text("lr = 1\n")


def changes(folder, **options):
    return changes_of(find_repository(folder), Event(), **options)


def test_a_commit_is_found_from_a_folder_inside_with_and_without_loose_references(origin):
    (origin / "configs").mkdir()
    commit = git(origin, "rev-parse", "HEAD")

    assert commit_of(find_repository(origin / "configs")) == commit
    git(origin, "pack-refs", "--all")
    assert commit_of(find_repository(origin)) == commit
    git(origin, "checkout", "-q", "--detach")
    assert commit_of(find_repository(origin)) == commit
    git(origin, "checkout", "-q", "main")


def test_a_second_working_tree_has_its_own_commit(origin, tmp_path):
    git(origin, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    git(tmp_path / "side", "commit", "-q", "--allow-empty", "-m", "second")

    found = commit_of(find_repository(tmp_path / "side"))

    assert found == git(tmp_path / "side", "rev-parse", "HEAD") != git(origin, "rev-parse", "HEAD")
    assert changes(tmp_path / "side") == NO_CHANGES


def test_no_repository_and_a_damaged_one(tmp_path):
    assert find_repository(tmp_path) is None
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/../../../secret\n")
    assert commit_of(find_repository(tmp_path)) == UNKNOWN
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/unborn\n")
    assert commit_of(find_repository(tmp_path)) == UNKNOWN
    assert changes(tmp_path) == UNKNOWN


def test_the_digest_is_that_of_the_difference(origin, changed):
    first = changes(origin)
    (origin / "train.py").write_text("lr = 3\n")
    second = changes(origin)
    (origin / "train.py").write_text("lr = 2\n")

    assert first == changes(origin)
    assert len({first, second, NO_CHANGES, UNKNOWN}) == 4


def touch(path):
    """Make the file an hour older. git compares whole seconds."""
    os.utime(path, (path.stat().st_mtime - 3600.0,) * 2)


def test_untracked_files_and_files_that_were_only_touched_are_no_changes(origin):
    (origin / "checkpoint.bin").write_bytes(b"1")
    touch(origin / "train.py")

    assert changes(origin) == NO_CHANGES


def test_settings_of_the_repository_start_no_program_and_do_not_change_the_digest(
    origin, changed, tmp_path
):
    expected = changes(origin)
    for key in ("diff.external", "core.fsmonitor", "core.pager", "diff.a.textconv"):
        git(origin, "config", key, f"touch {tmp_path / 'started'}")
    git(origin, "config", "diff.noprefix", "true")

    assert changes(origin) == expected
    assert not (tmp_path / "started").exists()
    for key in ("diff.external", "core.fsmonitor", "core.pager", "diff.a.textconv"):
        git(origin, "config", "--unset", key)
    git(origin, "config", "--unset", "diff.noprefix")


def test_the_index_is_not_written(origin):
    touch(origin / "train.py")
    before = (origin / ".git" / "index").read_bytes()

    changes(origin)

    assert (origin / ".git" / "index").read_bytes() == before
    assert not (origin / ".git" / "index.lock").exists()


def test_a_git_that_hangs_is_ended_and_one_that_is_missing_is_no_error(
    origin, tmp_path, monkeypatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert changes(origin) == UNKNOWN
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\n/bin/sleep 60\n")
    program.chmod(0o700)
    began = time.monotonic()

    assert changes(origin, max_seconds=0.2) == UNKNOWN
    stopping = Event()
    stopping.set()
    assert changes_of(find_repository(origin), stopping) == UNKNOWN
    assert time.monotonic() - began < 5
