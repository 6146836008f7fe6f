"""A run of real processes whose database a test damages: a script with the decorator, its agent.

The agents are forked from a server that has imported them, so that each starts in milliseconds.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Self

from support.rank_processes import until

PAGE_SIZE = 4096
RUN = "live"

SCRIPT = """
import pathlib, sys, time
import sentinel

folder = pathlib.Path(sys.argv[1])


@sentinel.monitor(agent=False)
def train():
    step = 0
    while not (folder / "end").exists():
        step += 1
        loss = 2.0 + 0.01 * (step * 7919 % 13)
        if (folder / "nan").exists():
            loss = float("nan")
        sentinel.log({"loss": loss, "grad_norm": 1.0 + 0.01 * (step * 31 % 7)}, step=step)
        # An agent has a low priority: beside other work it must keep up with these steps.
        time.sleep(0.02)


train()
"""


def serve_agent(environ: dict[str, str], log_path: str) -> None:
    """Serve the run as `sentinel agent` does, in a forked process."""
    os.environ.clear()
    os.environ.update(environ)
    descriptor = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.argv = ["sentinel", "agent", "--run", RUN]
    from sentinel.cli.main import app

    app()


def agent_context() -> Any:
    """The server of forked agents."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["support.damaged_runs", "sentinel.agent.run_service"])
    return context


class DamagedRun:
    """One run in `folder`, with its own directories, that sends to `url`."""

    def __init__(self, folder: Path, url: str, **settings: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        (folder / "train.py").write_text(SCRIPT)
        self.environ = {
            **{name: text for name, text in os.environ.items() if not name.startswith("SENTINEL_")},
            "SENTINEL_HOME": str(folder / "home"),
            "SENTINEL_RUNTIME_DIR": str(folder / "shm"),
            "SENTINEL_LINGER_SECONDS": "0",
            "SENTINEL_NODE_POLL_SECONDS": "0",
            "SENTINEL_SINKS__WEBHOOK__URL": url,
            "SENTINEL_HOLD_SECONDS": "0",
            "SENTINEL_RESOLVE_SECONDS": "0",
            "SENTINEL_COOLDOWN_SECONDS": "0",
            "SENTINEL_BASELINES": "false",
            # The loss is flat, and only NaN shall be notified.
            "SENTINEL_DISABLE": "loss_plateau,loss_never_moved",
            "SENTINEL_RUN_ID": RUN,
            **settings,
        }
        self.trainer: subprocess.Popen[bytes] | None = None
        self.agent: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        (self.folder / "end").touch()
        if self.agent is not None:
            self.agent.kill()
            self.agent.join()
        if self.trainer is not None:
            self.trainer.kill()
            self.trainer.wait()

    @property
    def directory(self) -> Path:
        """Where the files of the run are: in shared memory until it has ended."""
        shared = self.folder / "shm" / RUN / "state"
        return shared if (shared / "sentinel.db").exists() else self.home

    @property
    def home(self) -> Path:
        return self.folder / "home" / "runs" / RUN

    @property
    def database(self) -> Path:
        return self.directory / "sentinel.db"

    def start_trainer(self) -> None:
        self.trainer = subprocess.Popen(
            [sys.executable, str(self.folder / "train.py"), str(self.folder)], env=self.environ
        )

    def start_agent(self) -> None:
        self.agent = agent_context().Process(
            target=serve_agent, args=(self.environ, str(self.folder / "agent.log"))
        )
        self.agent.start()

    def kill_agent(self) -> None:
        os.kill(self.agent.pid, signal.SIGKILL)
        self.agent.join()

    def read(self, path: str) -> str:
        """The answer of the agent."""
        url = json.loads((self.directory / "agent.json").read_text())["url"]
        with urllib.request.urlopen(f"{url}{path}", timeout=240) as response:
            return str(response.read().decode())

    def metrics(self) -> str:
        return self.read("/metrics")

    def status(self) -> str:
        """What `sentinel status` prints."""
        command = [sys.executable, "-m", "sentinel", "status"]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, check=True)
        return done.stdout

    def state(self) -> dict[str, Any]:
        """`/api/run`; empty while no agent answers."""
        with suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads(self.read("/api/run"))
            return found
        return {}

    def step(self) -> int:
        """The newest step that the agent processed; 0 without one."""
        return self.state().get("step") or 0

    def wait_for_steps(self, number: int, seconds: float = 60.0) -> int:
        """Wait for so many steps more than now."""
        start = self.step()
        until(lambda: self.step() >= start + number, seconds, f"{number} more steps")
        return self.step()

    def stored_steps(self) -> int:
        """The number of steps in the history; 0 while it cannot be read."""
        with suppress(sqlite3.Error):
            return int(self.query("select count(*) from step where event = 'step'")[0][0])
        return 0

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as connection:
            return connection.execute(sql).fetchall()

    def checkpoint(self) -> None:
        """Move the write-ahead log into the database, while no agent runs."""
        with closing(sqlite3.connect(self.database)) as connection:
            connection.execute("pragma wal_checkpoint(truncate)").fetchall()

    def page_count(self) -> int:
        return self.database.stat().st_size // PAGE_SIZE

    def overwrite(self, pages: Iterable[int], path: Path | None = None) -> None:
        """Overwrite these pages, counted from 1, with random bytes."""
        random_ = random.Random(0)
        with (self.database if path is None else path).open("r+b") as file:
            for page in pages:
                file.seek((page - 1) * PAGE_SIZE)
                file.write(random_.randbytes(PAGE_SIZE))

    def root_page(self, name: str) -> int:
        return int(self.query(f"select rootpage from sqlite_schema where name = '{name}'")[0][0])

    def begin_nan(self) -> None:
        (self.folder / "nan").touch()

    def end_nan(self) -> None:
        (self.folder / "nan").unlink()

    def end(self, seconds: float = 120.0) -> None:
        """End the script; wait for the agent."""
        (self.folder / "end").touch()
        assert self.trainer is not None
        assert self.trainer.wait(seconds) == 0
        self.agent.join(seconds)
        assert self.agent.exitcode == 0, self.agent_log()[-3000:]

    def agent_log(self) -> str:
        return (self.folder / "agent.log").read_text(errors="replace")
