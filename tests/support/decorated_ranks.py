"""Processes of a decorated training script without torch, with their agent and its receiver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from support.rank_processes import has_ended, until
from support.webhook_receiver import Receiver

from sentinel.model.record import Event, Record
from sentinel.store.database import connect
from sentinel.store.history import History

TIMEOUT_SECONDS = 240.0
"""Timeout of what takes a few seconds on an idle machine."""

SETTINGS = """
linger_seconds = 0.2
hold_seconds = 0
{more}
[sinks.webhook]
url = "{url}"
"""


class Job:
    """The ranks of one run; rank and world size are in their environment, as by a launcher.

    They are children of one process, as of a launcher. `prefix` is a command that starts it as the
    user `user`.
    """

    def __init__(
        self,
        folder: Path,
        script: str,
        receiver: Receiver,
        *,
        world: int = 1,
        run: str | None = "job",
        settings: str = "",
        environ: Mapping[str, str] | None = None,
        rank_environ: Callable[[int], Mapping[str, str]] = lambda _: {},
        prefix: Sequence[str] = (),
        user: int | None = None,
    ) -> None:
        self.folder, self.receiver = folder, receiver
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(script)
        (folder / "sentinel.toml").write_text(SETTINGS.format(url=receiver.url, more=settings))
        if user is not None:
            os.chown(folder, user, user)
        environment = {
            **os.environ,
            "SENTINEL_HOME": str(folder / "home"),
            "SENTINEL_RUNTIME_DIR": str(folder / "rings"),
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
            **({"SENTINEL_RUN_ID": run} if run else {}),
            **(environ or {}),
        }
        self.output = folder.parent / f"{folder.name}.output"
        commands = [
            {"RANK": str(rank), "LOCAL_RANK": str(rank), **rank_environ(rank)}
            for rank in range(world)
        ]
        with self.output.open("w") as output:
            self.launcher = subprocess.Popen(
                [
                    *prefix,
                    sys.executable,
                    "-S",
                    "-c",
                    LAUNCHER,
                    sys.executable,
                    json.dumps(commands),
                ],
                cwd=folder,
                env={name: value for name, value in environment.items() if value},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def home(self) -> Path:
        """The directory of the run; waits for it."""
        runs = self.folder / "home" / "runs"
        (run,) = until(lambda: [*runs.glob("*")], TIMEOUT_SECONDS, "the directory of the run")
        return Path(run)

    def mark(self, name: str) -> str:
        """The text that the script has written to this file of its directory; waits for it."""
        until((self.folder / name).exists, TIMEOUT_SECONDS, f"the file {name}")
        return (self.folder / name).read_text()

    def wait(self) -> int:
        """Exit status of the first rank that failed; waits until the agent has ended too."""
        status = self.launcher.wait(TIMEOUT_SECONDS)
        until(lambda: has_ended(self.home), TIMEOUT_SECONDS, "the agent's end")
        return status

    def agent(self) -> dict[str, Any]:
        """Registration of the agent; waits for it."""
        home = until(lambda: [*(self.folder / "home").glob("runs/*/agent.json")], 240.0, "an agent")
        found: dict[str, Any] = json.loads(home[0].read_text())
        return found

    def steps(self) -> list[Record]:
        """The combined record of every step."""
        return read_steps(self.home)

    def alerts(self) -> list[tuple[str, str, str]]:
        """Detector, severity and summary of every accepted notification."""
        bodies = [request.json for request in self.receiver.accepted]
        return [
            (
                body["commonLabels"]["detector"],
                body["commonLabels"]["severity"],
                body["commonAnnotations"]["summary"],
            )
            for body in bodies
        ]

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.launcher.pid, signal.SIGKILL)
        self.launcher.wait()


def read_steps(run: Path) -> list[Record]:
    """The combined record of every step in the directory of a run."""
    with closing(connect(run / "sentinel.db")) as database:
        return [r for r in History(database).records(run.name) if r.event is Event.STEP]


LAUNCHER = """
import json, os, subprocess, sys
ranks = [
    subprocess.Popen([sys.argv[1], "train.py"], env=os.environ | environment)
    for environment in json.loads(sys.argv[2])
]
sys.exit(max(abs(rank.wait()) for rank in ranks))
"""


@contextmanager
def jobs(folder: Path) -> Iterator[Callable[..., Job]]:
    """Yields a function that starts a Job in a directory of this name; all are ended at the end."""
    with ExitStack() as stack:

        def start(name: str, script: str, **options: Any) -> Job:
            job = Job(folder / name, script, stack.enter_context(Receiver()), **options)
            stack.callback(job.close)
            return job

        yield start
