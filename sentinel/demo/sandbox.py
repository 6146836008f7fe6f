"""Runs apart from real ones: files, environment and agent, and the training of the demo."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from sentinel.agent.discovery import DiscoveredRun, query_agent
from sentinel.client.spawn import agent_environment
from sentinel.demo.scenario import FAULTS

NUM_RANKS = 4
STOP_TIMEOUT_SECONDS = 10.0
"""Seconds between SIGTERM and SIGKILL."""
_PACKAGE = Path(__file__).resolve().parents[1]
_SCRIPTS = (
    _PACKAGE / "demo" / "script" / "train.py",
    _PACKAGE.parent / "examples" / "demo" / "train.py",
)
"""Paths of the training script in an installation and in a checkout."""


def training_script() -> Path | None:
    """Path of the training script; None if it is not installed."""
    return next((path for path in _SCRIPTS if path.is_file()), None)


def missing_requirement() -> str | None:
    """A requirement of the demo that is not met, with its remedy; None if all are."""
    if find_spec("torch") is None:
        return "PyTorch is not installed. Install it: pip install torch"
    if training_script() is None:
        return "the training script is not installed. Run `make demo` in a checkout"
    return None


@dataclass
class IsolatedRun:
    """A run whose files are all below `folder`, apart from those of real runs."""

    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which its processes find these files."""
        return {
            "SENTINEL_HOME": str(self.folder / "home"),
            "SENTINEL_RUNTIME_DIR": str(self.folder / "rings"),
        }

    @property
    def run_directory(self) -> Path:
        """The directory of the run; it does not exist before the run has started."""
        runs = self.folder / "home" / "runs"
        return next(runs.glob("[!.]*"), runs / "none")

    @property
    def agent(self) -> psutil.Process | None:
        """The process of its agent, if it runs."""
        with suppress(OSError, ValueError, psutil.Error):
            process = psutil.Process(int((self.run_directory / "agent.lock").read_text()))
            if "agent" in process.cmdline():
                return process
        return None

    @property
    def is_registered(self) -> bool:
        """Whether the agent has registered, and not ended since."""
        return (self.run_directory / "agent.json").exists()

    def query(self) -> DiscoveredRun:
        """The run as its agent answers; without a state if it does not."""
        return query_agent(self.run_directory / "agent.json")


@dataclass
class Sandbox(IsolatedRun):
    """Processes and files of one demo."""

    seed: int = 0
    trainer: subprocess.Popen[bytes] | None = field(default=None, init=False)
    url: str = field(default="", init=False)
    """Address of the agent; empty before it has answered."""
    run_metadata: dict[str, Any] = field(default_factory=dict, init=False)
    case_causes: dict[str, str] = field(default_factory=dict, init=False)
    """Last cause of each case by its name; "" is none."""

    def configure(self, receiver_url: str, secret: str) -> None:
        """Write the settings that send every notification to the receiver."""
        secret_file = self.folder / "webhook.secret"
        secret_file.touch(mode=0o600)
        secret_file.write_text(secret)
        (self.folder / "sentinel.toml").write_text(
            "linger_seconds = 2.0\n\n"
            f'[sinks.slack]\nurl = "{receiver_url}/slack"\n\n'
            f'[sinks.webhook]\nurl = "{receiver_url}/webhook"\nsecret_file = "{secret_file}"\n'
        )

    def start(self) -> None:
        """Start the training with its faults by torchrun."""
        (self.folder / "checkpoints").mkdir()
        with (self.folder / "training.log").open("wb") as log:
            self.trainer = subprocess.Popen(  # noqa: S603 - a fixed command line
                self._trainer_command(),
                cwd=self.folder,
                env=training_environment(os.environ, self.folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _trainer_command(self) -> list[str]:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
        command = [
            sys.executable,
            *torchrun,
            "--nproc-per-node",
            str(NUM_RANKS),
            str(training_script()),
        ]
        command += ["--folder", str(self.folder / "checkpoints"), "--seed", str(self.seed)]
        return command + [
            argument for fault in FAULTS for argument in (fault.option, str(fault.step))
        ]

    @property
    def exit_status(self) -> int | None:
        """Exit status of the training; None while it runs."""
        return self.trainer.poll() if self.trainer else None

    @property
    def checkpoint_count(self) -> int:
        """Number of checkpoints written so far."""
        return sum(1 for _ in self.folder.glob("checkpoints/*.pt"))

    @property
    def expected_checkpoints(self) -> int:
        """Number of checkpoints according to the run's configuration."""
        metadata = self.run_metadata
        return int(float(metadata.get("max_steps", 0)) // float(metadata.get("save_steps", 1)))

    def poll(self) -> dict[str, Any]:
        """State of the run from its agent; empty if the agent does not answer."""
        if not self.is_registered:
            return {}
        found = self.query()
        state, self.url = found.state, found.url
        self.run_metadata = state.get("metadata") or self.run_metadata
        for case in state.get("cases", ()):
            self.case_causes[case["name"]] = (case["diagnosis"] or {}).get("cause", "")
        return state

    def stop(self) -> None:
        """Terminate the training with its ranks, and the agent, if they still run."""
        processes: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            if self.trainer and self.trainer.poll() is None:
                torchrun = psutil.Process(self.trainer.pid)
                processes += [torchrun, *torchrun.children(recursive=True)]
        if (agent := self.agent) is not None:
            if not self.is_registered:
                # It is about to end, and may still write.
                psutil.wait_procs([agent], timeout=STOP_TIMEOUT_SECONDS)
            processes.append(agent)
        terminate(processes)
        if self.trainer:
            self.trainer.wait()


def training_environment(base_environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Environment of the training.

    It contains none of the user's SENTINEL_* variables, so that no notification of the demo reaches
    the user's sinks.
    """
    environ = {
        name: value for name, value in base_environ.items() if not name.startswith("SENTINEL_")
    }
    environ |= IsolatedRun(folder).variables
    environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return agent_environment(environ, folder / "sentinel.toml")


def terminate(processes: list[psutil.Process]) -> None:
    """End these processes, with SIGKILL after `STOP_TIMEOUT_SECONDS`."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(processes, timeout=STOP_TIMEOUT_SECONDS)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=STOP_TIMEOUT_SECONDS)
