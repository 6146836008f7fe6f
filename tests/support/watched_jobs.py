"""Small trainings that start their agent, in the environment of a fault, and their notifications.

Each takes 50 steps a second until it is ended; its loss becomes NaN on request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import requests
from support.decorated_ranks import Job
from support.rank_processes import until
from support.webhook_receiver import Receiver

from sentinel.store.database import connect

TRAINING = """
import os, sys, time
import sentinel

folder = os.environ["JOB_FOLDER"]
pause = float(os.environ.get("STEP_SECONDS", "0.02"))
is_on = lambda name: os.path.exists(os.path.join(folder, name))
BEFORE

@sentinel.monitor(run="job")
def train():
    step = 0
    while not is_on("end"):
        step += 1
        loss = float("nan") if is_on("nan") else 1.0 + 1.0 / step
        sentinel.log({"loss": loss}, step=step)
        if step == 3:
            open(os.path.join(folder, "begun"), "w").write(str(os.getpid()))
        while is_on("spin"):
            pass
        time.sleep(pause)
    open(os.path.join(folder, "steps"), "w").write(str(step))

train()
"""

TIMEOUT_SECONDS = 240.0
"""Timeout of what takes a few seconds on an idle machine."""

QUIET = {
    # The loss is flat, and only faults shall be notified.
    "SENTINEL_DISABLE": "loss_plateau,loss_never_moved",
    "SENTINEL_BASELINES": "false",
    "SENTINEL_RESOLVE_SECONDS": "0",
    "SENTINEL_COOLDOWN_SECONDS": "0",
    "SENTINEL_NODE_POLL_SECONDS": "0",
    "SENTINEL_PORT": "0",
}


class WatchedJob(Job):
    """A job whose agent is started by rank 0; `places` are its home and runtime directory."""

    places: tuple[Path, Path]

    @property
    def home(self) -> Path:
        """The directory of the run, which may not be there yet."""
        return self.places[0] / "runs" / "job"

    @property
    def shared(self) -> Path:
        """The directory of the run in shared memory."""
        return self.places[1] / "job"

    def rank(self) -> psutil.Process:
        """The process of rank 0, once it trains."""
        return psutil.Process(int(self.mark("begun")))

    def registration(self) -> dict[str, Any]:
        """What `agent.json` states; empty without one."""
        for directory in (self.home, self.shared / "state"):
            with suppress(OSError, ValueError):
                found: dict[str, Any] = json.loads((directory / "agent.json").read_text())
                return found
        return {}

    def agent_process(self, other_than: psutil.Process | None = None) -> psutil.Process:
        """The process of the agent; waits for one that is another than that."""

        def find() -> psutil.Process | None:
            with suppress(psutil.NoSuchProcess, KeyError):
                process = psutil.Process(self.registration()["pid"])
                is_new = process.is_running() and process != other_than
                return process if is_new and process.status() != psutil.STATUS_ZOMBIE else None
            return None

        found = until(find, TIMEOUT_SECONDS, f"an agent; {self.text()}")
        assert isinstance(found, psutil.Process)
        return found

    def kill_agent(self) -> None:
        """Kill the agent, and wait for the next one."""
        agent = self.agent_process()
        agent.kill()
        self.agent_process(other_than=agent)

    def get(self, route: str) -> str:
        """The answer of the agent; empty if there is none."""
        with suppress(requests.RequestException, KeyError):
            return requests.get(f"{self.registration()['url']}{route}", timeout=60).text
        return ""

    def step(self) -> int:
        """The newest step that the agent has processed; 0 without one."""
        with suppress(ValueError):
            return json.loads(self.get("/api/run")).get("step") or 0
        return 0

    def until_more_steps(self, number: int = 20) -> None:
        """Wait until the agent has processed so many steps more than now."""
        first = self.step()
        until(
            lambda: self.step() >= first + number,
            TIMEOUT_SECONDS,
            f"{number} steps after {first}; {self.text()}",
        )

    def turn_on(self, name: str) -> None:
        """Create a file that the training looks at: "nan" or "end"."""
        (self.folder / name).touch()

    def turn_off(self, name: str) -> None:
        """Remove such a file."""
        (self.folder / name).unlink()

    def found(self, detector: str, status: str = "firing") -> list[dict[str, Any]]:
        """The accepted notifications of that detector and status, in order."""
        bodies = [request.json for request in self.receiver.accepted]
        return [
            body
            for body in bodies
            if body["commonLabels"]["detector"] == detector and body["status"] == status
        ]

    def until_found(self, detector: str, status: str = "firing") -> dict[str, Any]:
        """The first such notification; waits for it."""
        until(
            lambda: self.found(detector, status),
            TIMEOUT_SECONDS,
            f"{detector} {status}; {self.text()}",
        )
        return self.found(detector, status)[0]

    def detectors(self) -> list[str]:
        """The detector of every accepted notification, in order."""
        return [request.json["commonLabels"]["detector"] for request in self.receiver.accepted]

    def end(self) -> int:
        """End the training and wait for the agent; returns the number of steps."""
        self.turn_on("end")
        assert self.wait() == 0, self.text()
        return int((self.folder / "steps").read_text())

    def stored(self) -> list[int]:
        """Numbers of the stored steps, in order."""
        with closing(connect(self.home / "sentinel.db")) as database:
            query = "select step from step where event = 'step' order by id"
            return [step for (step,) in database.execute(query)]

    def check_nan(self) -> None:
        """A NaN and its end are notified once each."""
        self.turn_on("nan")
        self.until_found("nan_or_inf")
        self.turn_off("nan")
        self.until_found("nan_or_inf", "resolved")

    def check_nan_and_end(self) -> None:
        """A NaN is notified once, and the history has every step when the run has ended."""
        self.check_nan()
        steps = self.end()
        assert self.stored() == list(range(1, steps + 1))
        self.assert_sent_once()

    def assert_sent_once(self) -> None:
        """No notification was sent twice, and the NaN was one incident that was resolved."""
        keys = [request.headers["webhook-id"] for request in self.receiver.accepted]
        assert len(keys) == len(set(keys)), self.detectors()
        found = self.found("nan_or_inf")
        assert {body["groupKey"] for body in found} == {"job/nan_or_inf#1"}, self.text()
        assert len(self.found("nan_or_inf", "resolved")) == 1, self.text()

    def text(self) -> str:
        """The output of the job and the log of its agent, for the message of a failed test."""
        logs = [
            self.output,
            self.shared / "agent.log",
            self.shared / "state" / "agent.log",
            self.home / "agent.log",
        ]
        parts = [self.detectors().__repr__()]
        for path in logs:
            with suppress(OSError):
                parts.append(f"{path}:\n{path.read_text(errors='replace')[-3000:]}")
        return "\n".join(parts)

    def close(self) -> None:
        """End every process of the job."""
        agent = self.registration().get("pid")
        super().close()
        self.turn_on("end")
        for pid in filter(None, {agent, self.registration().get("pid")}):
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                if "agent" in process.cmdline():
                    process.kill()


@contextmanager
def watched_job(
    folder: Path,
    *,
    before: str = "",
    receiver: Receiver | None = None,
    environ: dict[str, str] | None = None,
    **options: Any,
) -> Iterator[WatchedJob]:
    """Starts a job in `folder / "job"`; all its processes end with the block.

    `before` is code of the training before it starts.
    """
    script = TRAINING.replace("BEFORE", before)
    own = {**QUIET, "JOB_FOLDER": str(folder / "job"), **(environ or {})}
    with receiver or Receiver() as opened:
        job = WatchedJob(folder / "job", script, opened, environ=own, **options)
        job.places = (
            Path(own.get("SENTINEL_HOME") or job.folder / "home"),
            Path(own.get("SENTINEL_RUNTIME_DIR") or job.folder / "rings"),
        )
        try:
            yield job
        finally:
            job.close()
