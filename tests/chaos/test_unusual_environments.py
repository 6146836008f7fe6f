"""Trainings in unusual environments: a NaN is notified, and every step is stored.

A scheduler or a container decides the files, limits, variables and namespaces of a job. The agent
inherits them from the trainer.
"""

from __future__ import annotations

import os

import pytest
from support.namespaces import other_user, shell, unshared
from support.watched_jobs import TIMEOUT_SECONDS, watched_job

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

DELETED_DIRECTORY = """
os.environ["SENTINEL_CONFIG"] = os.path.join(folder, "sentinel.toml")
os.mkdir("gone")
os.chdir("gone")
os.rmdir("../gone")
"""

CLOSED_FILES = """
# As a library in C does that reports an error.
for descriptor in (1, 2):
    try:
        os.write(descriptor, b"x" * 5000)
    except OSError:
        pass
"""

DENIED_PIDFDS = """
import ctypes, struct

# A filter of system calls in which pidfd_open (434) fails with EPERM, as by Docker before 20.10.
load, compare = (0x20, 0, 0, 0), (0x15, 0, 1, 434)
deny, permit = (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000)
program = b"".join(struct.pack("=HBBI", *each) for each in (load, compare, deny, permit))
text = ctypes.create_string_buffer(program)
filters = struct.pack("=HxxxxxxQ", 4, ctypes.addressof(text))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.create_string_buffer(filters), 0, 0) == 0, ctypes.get_errno()
try:
    os.pidfd_open(os.getpid())
    raise SystemExit("pidfd_open is not denied")
except PermissionError:
    pass
"""

C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.full
@pytest.mark.fault("P15", "P16", "P17", "P18", "P19", "P20")
@pytest.mark.parametrize(
    ("prefix", "environ", "before"),
    [
        (shell("exec <&- >&- 2>&-"), {}, CLOSED_FILES),
        ([], {}, DELETED_DIRECTORY),
        ([], C_LOCALE, ""),
        (shell("ulimit -s 256"), {}, ""),
        ([], {}, DENIED_PIDFDS),
        (shell("umask 0"), {}, ""),
    ],
    ids=["closed-files", "deleted-directory", "locale", "small-stack", "no-pidfds", "umask"],
)
def test_a_training_in_an_unusual_environment_is_watched(tmp_path, prefix, environ, before):
    with watched_job(tmp_path, prefix=prefix, environ=environ, before=before) as job:
        job.until_more_steps()
        job.check_nan_and_end()


@pytest.mark.full
@pytest.mark.fault("P16")
def test_an_agent_is_started_again_although_the_working_directory_was_deleted(tmp_path):
    """A scratch directory is cleaned while the job in it goes on."""
    environ = {"SENTINEL_CONFIG": str(tmp_path / "job" / "sentinel.toml")}
    before = 'os.mkdir("work"); os.chdir("work")'
    with watched_job(tmp_path, environ=environ, before=before) as job:
        job.until_more_steps()
        (job.folder / "work").rmdir()
        job.kill_agent()
        job.check_nan_and_end()


@pytest.mark.full
@pytest.mark.fault("P17")
def test_directories_whose_names_are_no_utf_8(tmp_path):
    """As of an account that was made with another encoding."""
    folder = tmp_path / os.fsdecode("größe".encode("latin-1"))
    folder.mkdir()
    environ = {
        "SENTINEL_HOME": str(folder / "home"),
        "SENTINEL_RUNTIME_DIR": str(folder / "rings"),
    }
    with watched_job(tmp_path, environ=environ) as job:
        job.until_more_steps()
        job.kill_agent()
        job.check_nan_and_end()


@pytest.mark.full
@pytest.mark.fault("P19")
def test_a_killed_rank_is_reported_although_pidfds_are_denied(tmp_path):
    with watched_job(tmp_path, before=DENIED_PIDFDS) as job:
        job.until_more_steps()
        job.rank().kill()
        assert job.until_found("run_died")["commonLabels"]["severity"] == "critical"


@pytest.mark.full
@pytest.mark.fault("P21")
def test_a_user_without_a_name_and_a_home_directory(tmp_path):
    """As a container that runs with an arbitrary user id: the run stays in shared memory."""
    prefix, uid = other_user()
    environ = {
        "HOME": "",
        "SENTINEL_HOME": "",
        "XDG_STATE_HOME": "",
        "XDG_CACHE_HOME": "",
        "USER": "",
    }
    with watched_job(tmp_path, prefix=prefix, user=uid, environ=environ) as job:
        job.until_found("storage")
        job.until_more_steps()
        job.check_nan()
        job.turn_on("end")
        assert job.launcher.wait(TIMEOUT_SECONDS) == 0
        assert job.output.read_text() == ""


RENAMED_HOST = """
import socket, threading

def rename():
    while not is_on("rename"):
        time.sleep(0.05)
    socket.sethostname("renamed")
    open(os.path.join(folder, "renamed"), "w").close()

threading.Thread(target=rename, daemon=True).start()
"""


@pytest.mark.full
@pytest.mark.fault("P27")
def test_the_name_of_the_host_changes_during_the_run(tmp_path):
    """As by a DHCP client: the next agent has another name than the registration of the last."""
    prefix = unshared("--uts", needs_root=True)
    with watched_job(tmp_path, prefix=prefix, before=RENAMED_HOST) as job:
        job.until_more_steps()
        job.turn_on("rename")
        job.mark("renamed")
        job.kill_agent()
        job.check_nan_and_end()
        assert set(job.detectors()) == {"nan_or_inf"}


@pytest.mark.full
@pytest.mark.fault("P24")
def test_root_in_a_container_without_rights(tmp_path):
    """In a namespace of users, root has no rights over the files of others and no devices."""
    prefix = [*unshared("--user", "--map-root-user", "--pid", "--fork", "--mount-proc")]
    with watched_job(tmp_path, prefix=prefix) as job:
        job.mark("begun")
        job.turn_on("nan")
        job.until_found("nan_or_inf")
        job.turn_off("nan")
        job.until_found("nan_or_inf", "resolved")
        job.turn_on("end")
        assert job.launcher.wait(TIMEOUT_SECONDS) == 0
        job.assert_sent_once()
