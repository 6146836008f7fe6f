"""A training process and its agent, whose home directory is made unusable meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.rank_processes import until
from support.webhook_receiver import Receiver

from sentinel.transport.paths import is_agent_running

TIMEOUT_SECONDS = 240.0

TRAINER = """
import os, sys, time
import sentinel

folder, agent = sys.argv[1], sys.argv[2] == "agent"
step = 0
entered = time.monotonic()
with sentinel.monitor(run="home", agent=agent):
    print("entered", time.monotonic() - entered, flush=True)
    while not os.path.exists(folder + "/stop"):
        step += 1
        broken = os.path.exists(folder + "/nan")
        sentinel.log({"loss": float("nan") if broken else 1.0 + 1.0 / step}, step=step)
        time.sleep(0.01)
print("steps", step, flush=True)
"""

AGENT = """
import json, sys, threading
from sentinel.agent import home_sync, run_directory
from sentinel.transport import mounts

plan = json.loads(sys.argv[1])
run_directory.CHECK_INTERVAL_SECONDS = 0.1
home_sync.SYNC_INTERVAL_SECONDS = 0.2
home_sync.MAX_PAUSE_SECONDS = 1.0
if plan["hangs"]:
    # A busy machine takes as long for a copy; elsewhere that must not count as a disk that hangs.
    home_sync.HANG_SECONDS = 1.0
    run_directory.SEED_TIMEOUT_SECONDS = run_directory.FINAL_COPY_SECONDS = 3.0
if plan["remote"] == "stops":
    copy = home_sync.copy_run_directory

    def copy_unless_stopped(source, home, replace):
        while home_sync.Path(home.parents[1]).with_name("stopped").exists():
            threading.Event().wait(0.05)
        copy(source, home, replace)

    home_sync.copy_run_directory = copy_unless_stopped
elif plan["remote"]:
    # As a file server; with "hanging", one that never answers.
    find = run_directory.find_mount
    run_directory.find_mount = lambda path: mounts.Mount(7, str(path), "nfs4")
if plan["remote"] == "hanging":
    run_directory.run_dir = lambda run: threading.Event().wait()
    run_directory.home_dir().joinpath("runs").mkdir(parents=True)
from sentinel.cli.main import app
sys.argv = ["sentinel", "agent", "--run", plan["run"]]
app()
"""


@dataclass
class HomeRun:
    """A run that logs a hundred steps a second; `home` is its home directory."""

    folder: Path
    home: Path
    receiver: Receiver
    ranks: list[subprocess.Popen[str]]
    agent: subprocess.Popen[bytes] | None

    @property
    def trainer(self) -> subprocess.Popen[str]:
        """Its first rank."""
        return self.ranks[0]

    def until_seen(self, text: str, status: str = "firing") -> dict[str, Any]:
        """The first notification of that status whose headline contains the text."""
        return until(lambda: self.find(text, status), TIMEOUT_SECONDS, f"{status} {text!r}")

    def find(self, text: str, status: str = "firing") -> dict[str, Any] | None:
        """That notification, if it has arrived."""
        found = (each.json for each in self.receiver.accepted)
        return next(
            (each for each in found if each["status"] == status and text in json.dumps(each)), None
        )

    def end(self) -> int:
        """End the training; returns its number of steps once the agent has exited."""
        steps = self.end_training()
        if self.agent is not None:
            assert self.agent.wait(TIMEOUT_SECONDS) == 0
        return steps

    def end_training(self) -> int:
        """End the training; returns its number of steps."""
        (self.folder / "stop").touch()
        assert self.trainer.stdout is not None
        out = self.trainer.stdout.read()
        assert self.trainer.wait(TIMEOUT_SECONDS) == 0, out
        return int(out.split("steps ")[1])


@contextmanager
def home_run(
    folder: Path,
    *,
    home: Path | None = None,
    remote: str = "",
    hangs: bool = False,
    starts_agent: bool = False,
    world: int = 1,
) -> Iterator[HomeRun]:
    """Starts the training, and its agent with short intervals, or lets the training start it.

    `remote` is "working" or "hanging" for a home directory on a file server, and "stops" for a disk
    that stops to respond while there is a file `stopped` beside it. If it `hangs`, the agent counts
    a disk that takes a second as one that does not respond.
    """
    home = home or folder / "home"
    with Receiver() as receiver:
        environ = os.environ | {
            "SENTINEL_HOME": str(home),
            "SENTINEL_RUNTIME_DIR": str(folder / "shm"),
            "SENTINEL_RUN_ID": "home",
            "SENTINEL_SINKS__WEBHOOK__URL": receiver.url,
            "SENTINEL_LINGER_SECONDS": "0",
            "SENTINEL_NODE_POLL_SECONDS": "0",
            "SENTINEL_HOLD_SECONDS": "0",
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
        }
        command = [sys.executable, "-c", TRAINER, str(folder), "agent" if starts_agent else "none"]
        ranks = [
            subprocess.Popen(
                command,
                env=environ | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        processes: list[subprocess.Popen[Any]] = [*ranks]
        try:
            for rank in ranks:
                assert rank.stdout is not None
                assert rank.stdout.readline().startswith("entered")
            agent = None
            if not starts_agent:
                plan = json.dumps({"run": "home", "remote": remote, "hangs": hangs})
                with (folder / "output").open("wb") as output:
                    agent = subprocess.Popen(
                        [sys.executable, "-c", AGENT, plan],
                        env=environ,
                        stdout=output,
                        stderr=output,
                    )
                processes.append(agent)
            yield HomeRun(folder, home, receiver, ranks, agent)
        finally:
            shared = folder / "shm" / "home"
            if starts_agent and is_agent_running(shared):
                os.kill(int((shared / "agent.lock").read_text()), signal.SIGKILL)
            for process in processes:
                process.kill()
                process.communicate()


def database(directory: Path) -> Path:
    """The database of the run below a home directory."""
    return directory / "runs" / "home" / "sentinel.db"


def is_served_from(home: Path) -> Callable[[], bool]:
    """Whether the agent works in that home directory."""
    return lambda: database(home).exists() and (database(home).parent / "agent.json").exists()
