"""The directories of a user are private, and those that others decide on are refused."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from contextlib import closing
from grp import getgrgid

import pytest

from sentinel.agent.registration import AgentRegistration
from sentinel.doctor.check_result import Grade
from sentinel.doctor.directories import check_directories
from sentinel.store.database import connect
from sentinel.transport import paths
from sentinel.transport.paths import UnsafeDirectoryError, home_dir, ring_dir, run_dir

FOREIGN = 12345


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.fault("X14")
def test_rings_and_runs_are_of_this_user_only():
    from sentinel.transport.identity import Identity
    from sentinel.transport.ring import RingWriter

    ring = paths.ring_path("run", 0, 0)
    RingWriter(ring, Identity("run"), 1 << 16)
    with closing(connect(run_dir("run") / "sentinel.db")):
        pass

    assert {mode(ring.parent), mode(run_dir("run")), mode(home_dir() / "runs")} == {0o700}
    assert mode(ring) == 0o600
    if os.geteuid() == 0:
        # As another user of this machine.
        read = f"import os; os.setuid(65534); open({str(ring)!r}, 'rb')"
        done = subprocess.run([sys.executable, "-c", read], capture_output=True, check=False)
        assert b"PermissionError" in done.stderr


@pytest.mark.fault("X14")
@pytest.mark.parametrize("variable", ["SENTINEL_HOME", "SENTINEL_RUNTIME_DIR"])
def test_a_root_of_another_user_is_refused(variable, tmp_path, monkeypatch):
    root = tmp_path / "root"
    root.mkdir()
    if os.geteuid() == 0:
        os.chown(root, 65534, -1)
    (tmp_path / "link").symlink_to(root)
    monkeypatch.setattr(paths.os, "geteuid", lambda: FOREIGN)
    for path in (root, tmp_path / "link"):
        monkeypatch.setenv(variable, str(path))
        with pytest.raises(UnsafeDirectoryError, match="belongs to another user"):
            (run_dir if variable == "SENTINEL_HOME" else ring_dir)("run")


@pytest.mark.fault("X14")
@pytest.mark.parametrize("permissions", [0o777, 0o775])
def test_a_root_that_others_may_write_is_reported_with_its_remedy(permissions):
    home_dir().mkdir()
    home_dir().chmod(permissions)
    found = {each.subject: each for each in check_directories()}["state directory"]

    assert found.grade is Grade.WARN
    assert f"chmod go-w {home_dir()}" in found.remedy
    home_dir().chmod(0o1777)
    found = {each.subject: each for each in check_directories()}["state directory"]
    assert found.grade is not Grade.WARN


@pytest.mark.fault("X14")
def test_targets_are_private_unless_a_group_may_read_them(tmp_path):
    group = getgrgid(os.getegid()).gr_name
    for name in ("", group):
        home = tmp_path / (name or "private")
        home.mkdir(mode=0o700)
        (home / "run").mkdir()
        registration = AgentRegistration("run", home / "targets", name)
        registration.set_directory(home / "run")
        registration.register("127.0.0.1", 1, "own token")
        registration.publish_target()
        target = home / "targets" / "run.json"
        assert json.loads(target.read_text())[0]["targets"] == ["127.0.0.1:1"]
        modes = [mode(home), mode(home / "targets")]
        assert modes == ([0o710, 0o750] if name else [0o700, 0o700])
        assert not name or mode(target) & 0o040
        assert mode(home / "run" / "agent.json") == 0o600, "it has the token"
        registration.release()


def test_an_unknown_group_is_named(tmp_path):
    registration = AgentRegistration("run", tmp_path / "targets", "no-such-group")
    with pytest.raises(OSError, match="no group 'no-such-group'"):
        registration.publish_target()


@pytest.fixture
def shared_memory(tmp_path, monkeypatch):
    """A directory in place of /dev/shm, and no setting of another one."""
    monkeypatch.delenv("SENTINEL_RUNTIME_DIR")
    monkeypatch.setattr(paths, "SHARED_MEMORY", tmp_path)
    return tmp_path


def squat(path, kind):
    """Take a name, as another user can do."""
    if kind == "link":
        (path.parent / "elsewhere").mkdir(exist_ok=True)
        path.symlink_to(path.parent / "elsewhere")
    elif kind == "file":
        path.touch()
    else:
        path.mkdir()
        path.chmod(0o777)
        if os.geteuid() == 0:
            os.chown(path, 65534, -1)


@pytest.mark.fault("X17")
@pytest.mark.parametrize("kind", ["directory", "link", "file"])
def test_a_name_that_another_user_took_is_passed_over_by_every_process(shared_memory, kind):
    default = shared_memory / f"sentinel-{os.geteuid()}"
    squat(default, kind)
    own = default.with_name(f"{default.name}-1")

    assert ring_dir("run") == own / "run"
    # As of a command that creates nothing, and one that runs after the remedy was applied.
    assert paths.shared_run_dir("run") == own / "run"
    found = {each.subject: each for each in check_directories()}["shared memory"]
    assert found.grade is Grade.WARN
    assert f"{default} belongs to another user" in found.message
    assert f"rm -r {default}" in found.remedy
    default.rename(shared_memory / "moved")
    assert paths.shared_run_dir("run") == ring_dir("run") == own / "run"
    assert {each.subject: each for each in check_directories()}["shared memory"].grade is Grade.OK


@pytest.mark.fault("X17")
def test_the_home_directory_is_used_when_every_name_is_taken(shared_memory, monkeypatch):
    default = shared_memory / f"sentinel-{os.geteuid()}"
    squat(default, "file")
    for number in range(1, 10):
        squat(shared_memory / f"sentinel-{os.geteuid()}-{number}", "link")

    assert ring_dir("run") == paths.shared_run_dir("run") == home_dir() / "shared" / "run"
    (home_dir() / "shared" / "run").rmdir()
    (home_dir() / "shared").rmdir()
    monkeypatch.setattr(paths, "is_home_remote", lambda: True)
    with pytest.raises(UnsafeDirectoryError, match=f"{default} is not a directory"):
        ring_dir("run")
