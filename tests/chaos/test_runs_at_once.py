"""Jobs of several users at the same time, and a name that another user took before."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from programs import free_port
from support.decorated_ranks import TIMEOUT_SECONDS, jobs, read_steps
from support.rank_processes import until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

NOBODY = 65534
WORLD = 2

SCRIPT = """
import os, time
import sentinel

@sentinel.monitor(run="same")
def train():
    for step in range(1, 31):
        sentinel.log({"job": float(os.environ["JOB"])}, step=step)
    open(f"half{os.environ['RANK']}", "w").close()
    while not os.path.exists("go on"):
        time.sleep(0.01)

train()
"""


@pytest.fixture
def other_user():
    """The command prefix and uid of another user; of this one without the permission for that.

    The other user may read all files, since those of this test may be in a private directory.
    """
    command = shutil.which("setpriv")
    if os.geteuid() or command is None:
        return [], os.geteuid()
    ids = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    caps = [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
    return [command, *ids, *caps], NOBODY


@pytest.fixture
def folder(other_user):
    """A directory that both users can reach and write."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        if other_user[1] != os.geteuid():
            for rings in Path("/dev/shm").glob(f"sentinel-{other_user[1]}*"):
                shutil.rmtree(rings, ignore_errors=True)


@pytest.mark.fault("T5", "T11")
def test_runs_of_two_jobs_and_of_two_users_are_separate(folder, other_user):
    prefix, uid = other_user
    with jobs(folder) as start:
        # As under torchrun without --rdzv-id.
        launched = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1"}
        shared = {
            "SENTINEL_HOME": str(folder / "home"),
            "SENTINEL_RUNTIME_DIR": str(folder / "rings"),
        }
        own = {"SENTINEL_RUNTIME_DIR": ""} if prefix else {}
        every = [
            start(
                name,
                SCRIPT,
                world=WORLD,
                run=None,
                prefix=prefix if name == "other" else [],
                user=uid if name == "other" else None,
                environ={
                    **launched,
                    **(own if name == "other" else shared),
                    "MASTER_PORT": str(free_port()),
                    "JOB": str(number),
                },
            )
            for number, name in enumerate(("first", "second", "other"))
        ]
        for job in every:
            for rank in range(WORLD):
                job.mark(f"half{rank}")
        homes = [folder / "home", folder / "other" / "home"]

        def registrations():
            found = [path for home in homes for path in home.glob("runs/*/agent.json")]
            return found if len(found) == len(every) else []

        agents = until(registrations, TIMEOUT_SECONDS, "three agents")
        runs = {path.parent for path in agents}
        rings = [*(folder / "rings").glob("*/*.ring")]
        others = Path(f"/dev/shm/sentinel-{uid}") if prefix else folder / "other" / "rings"
        rings += others.glob("*/*.ring")
        assert len(rings) == WORLD * len(every)
        for path in (*runs, *(ring.parent for ring in rings), *rings):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
            is_others = folder / "other" in path.parents or path.is_relative_to("/dev/shm")
            assert path.stat().st_uid == (uid if is_others else os.geteuid())
        urls = {json.loads(path.read_text())["url"] for path in agents}
        assert len(urls) == len(every)
        for job in every:
            (job.folder / "go on").touch()
        for job in every:
            assert job.launcher.wait(TIMEOUT_SECONDS) == 0
        until(lambda: not any(path.exists() for path in agents), TIMEOUT_SECONDS, "the agents' end")
        found = []
        for run in runs:
            records = read_steps(run)
            assert [record.step for record in records] == list(range(1, 31))
            assert {record.spread["job"].count for record in records} == {WORLD}
            found += {(r.spread["job"].min, r.spread["job"].max) for r in records}
        assert sorted(found) == [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0)]


@pytest.mark.full
@pytest.mark.fault("X17")
def test_a_run_whose_name_in_shared_memory_is_taken_is_monitored(folder, other_user):
    """Ranks, agent and commands find the same directory, also when the taken one is removed."""
    prefix, uid = other_user
    if not prefix:
        pytest.skip("only root can take the name of another user's directory")
    taken = Path(f"/dev/shm/sentinel-{uid}")
    taken.mkdir()
    with jobs(folder) as start:
        environ = {"SENTINEL_RUNTIME_DIR": "", "JOB": "1"}
        job = start("other", SCRIPT, world=WORLD, prefix=prefix, user=uid, environ=environ)
        for rank in range(WORLD):
            job.mark(f"half{rank}")
        job.agent()
        assert len([*Path(f"{taken}-1").glob("job/*.ring")]) == WORLD

        def sentinel(*arguments):
            home = {"SENTINEL_HOME": str(folder / "other" / "home")}
            own = {name: text for name, text in os.environ.items() if "SENTINEL" not in name}
            command = [*prefix, sys.executable, "-m", "sentinel", *arguments]
            done = subprocess.run(
                command, env=own | home, cwd="/", capture_output=True, text=True, check=False
            )
            return done.stdout

        doctor = sentinel("doctor", "--quick", "--json")
        assert f"{taken} belongs to another user" in doctor
        for _ in range(2):
            state = json.loads(sentinel("status", "--json"))
            assert (state["run"], state["is_live"]) == ("job", True), state
            shutil.rmtree(taken, ignore_errors=True)
        (job.folder / "go on").touch()
        assert job.wait() == 0
        assert [record.step for record in job.steps()] == list(range(1, 31))
        assert {record.spread["job"].count for record in job.steps()} == {WORLD}
        assert not taken.exists()
