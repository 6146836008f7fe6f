"""The installation of sentinel is deleted, replaced or of another version while a run goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.rank_processes import until
from support.watched_jobs import TIMEOUT_SECONDS, watched_job
from support.webhook_receiver import Receiver

pytestmark = [pytest.mark.chaos, pytest.mark.full, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
OLD_VERSION = "8e94be9"
"""Commit of 0.1.0, whose rings and databases have an older format."""


@pytest.fixture
def installation(tmp_path):
    """A copy of the package, as in an environment of its own."""
    folder = tmp_path / "site"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "sentinel", folder / "sentinel", ignore=ignored)
    return folder


@pytest.mark.fault("A24")
def test_an_installation_that_is_deleted_ends_no_watch(tmp_path, installation):
    """As by `conda remove`, or a clean-up of scratch: what is not imported yet is gone."""
    with watched_job(tmp_path, environ={"PYTHONPATH": str(installation)}) as job:
        job.until_more_steps()
        shutil.rmtree(installation)
        job.check_nan_and_end()
        assert job.output.read_text() == ""


@pytest.mark.fault("A24")
def test_an_agent_that_cannot_start_starts_when_it_is_installed_again(tmp_path, installation):
    """As while an environment is rebuilt; the ring has what is logged meanwhile."""
    with watched_job(tmp_path, environ={"PYTHONPATH": str(installation)}) as job:
        job.until_more_steps()
        agent = job.agent_process()
        installation.rename(tmp_path / "away")
        (installation / "sentinel").mkdir(parents=True)
        (installation / "sentinel" / "__init__.py").write_text("raise ImportError('half built')")
        agent.kill()
        until(lambda: "agent failed" in job.output.read_text(), TIMEOUT_SECONDS, "a failed start")
        shutil.rmtree(installation)
        (tmp_path / "away").rename(installation)
        job.agent_process(other_than=agent)
        job.check_nan_and_end()


@pytest.mark.fault("A25")
def test_an_installation_that_is_upgraded_during_the_run_ends_no_watch(tmp_path, installation):
    """Every module that is imported later is one of a version that the agent does not know."""
    with watched_job(tmp_path, environ={"PYTHONPATH": str(installation)}) as job:
        job.until_more_steps()
        for path in (installation / "sentinel").rglob("*.py"):
            path.write_text("raise ImportError('cannot import name: another version')\n")
        job.check_nan_and_end()


def tree_of(commit: str, folder: Path) -> Path:
    """The package at that commit. Skips the test where the history is not there."""
    folder.mkdir()
    archive = ["git", "-C", str(ROOT), "archive", commit, "sentinel"]
    with subprocess.Popen(archive, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as git:
        unpack = ["tar", "-x", "-C", str(folder)]
        done = subprocess.run(unpack, stdin=git.stdout, stderr=subprocess.DEVNULL, check=False)
    if git.returncode or done.returncode:
        pytest.skip(f"the commit {commit} is not in this clone")
    return folder


OLD_TRAINING = """
import os, time
import sentinel

assert sentinel.__version__ == "0.1.0"

@sentinel.monitor(run="job", agent=False)
def train():
    step = 0
    while not os.path.exists("end"):
        step += 1
        sentinel.log({"loss": 1.0 + 1.0 / step}, step=step)
        if step == 5:
            open("begun", "w").close()
        time.sleep(0.02)

train()
"""


@pytest.mark.fault("A26")
def test_an_upgrade_during_a_run_refuses_the_ring_of_the_older_client(tmp_path):
    """The trainer goes on with the code that it has imported; its next agent is a newer one."""
    folder = tmp_path / "job"
    folder.mkdir()
    old = tree_of(OLD_VERSION, tmp_path / "old")
    own = {
        "SENTINEL_HOME": str(folder / "home"),
        "SENTINEL_RUNTIME_DIR": str(folder / "rings"),
        "SENTINEL_RUN_ID": "job",
        "SENTINEL_PORT": "0",
        "SENTINEL_LINGER_SECONDS": "0",
        "SENTINEL_NODE_POLL_SECONDS": "0",
    }
    environ = os.environ | own | {"PYTHONPATH": str(old)}
    with Receiver() as receiver, (folder / "agent.out").open("w") as output:
        trainer = subprocess.Popen([sys.executable, "-c", OLD_TRAINING], cwd=folder, env=environ)
        sink = {"SENTINEL_SINKS__WEBHOOK__URL": receiver.url}
        agent = subprocess.Popen(
            [sys.executable, "-m", "sentinel", "agent", "--run", "job"],
            env=os.environ | own | sink,
            stdout=output,
            stderr=output,
        )
        try:
            until((folder / "begun").exists, TIMEOUT_SECONDS, "the training")
            until(
                lambda: "A rank is not monitored" in (folder / "agent.out").read_text(),
                TIMEOUT_SECONDS,
                "the refusal",
            )
            assert agent.poll() is None
            assert trainer.poll() is None
            (folder / "end").touch()
            assert trainer.wait(TIMEOUT_SECONDS) == 0
            assert receiver.requests == []
        finally:
            for process in (trainer, agent):
                process.kill()
                process.wait()
