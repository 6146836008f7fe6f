"""A run id never leads out of the directories of sentinel, and no link is followed there."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.transport.paths import (
    RunIdError,
    UnsafeDirectoryError,
    home_dir,
    ring_dir,
    run_dir,
    shared_state_dir,
    validate_run_id,
)

HOSTILE_IDS = (
    "", ".", "..", "../x", "..\\x", "a/b", "/etc", "%2e%2e", "a\0b", "a\nb", ".hidden", "a" * 129,
    "\u202ex", "\uff0e\uff0e", "~", "$HOME", "x y",
)  # fmt: skip


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))


@pytest.mark.fault("X10")
@pytest.mark.parametrize("make", [validate_run_id, run_dir, ring_dir, shared_state_dir])
@pytest.mark.parametrize("run", HOSTILE_IDS)
def test_a_run_id_that_is_no_plain_name_is_refused(make, run, tmp_path):
    with pytest.raises(RunIdError):
        make(run)
    assert {path.name for path in tmp_path.iterdir()} <= {"home", "rings"}


@pytest.mark.fault("S2", "X10")
@pytest.mark.parametrize("make", [run_dir, ring_dir])
def test_a_link_in_place_of_the_directory_of_a_run_is_refused(make, tmp_path):
    directory = make("run")
    directory.rmdir()
    (tmp_path / "elsewhere").mkdir()
    directory.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(UnsafeDirectoryError, match="is not a directory"):
        make("run")


@pytest.mark.fault("P21")
def test_the_home_directory_of_a_user_without_a_name(monkeypatch):
    def refuse():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("SENTINEL_HOME")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", refuse)

    assert home_dir() == Path("/.local/state/sentinel")
