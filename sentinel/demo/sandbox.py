"""Stage: a folder of its own, the training in it, and a view of the agent that watches it."""

from __future__ import annotations

import json
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
import requests

from sentinel.demo.scenario import FAULTS

NUM_RANKS = 4
STOP_TIMEOUT_SECONDS = 10.0
"""Seconds that a process is given to leave after it was asked to."""
_PACKAGE = Path(__file__).resolve().parents[1]
_SCRIPTS = (
    _PACKAGE / "demo" / "script" / "train.py",
    _PACKAGE.parent / "examples" / "demo" / "train.py",
)
"""Where the training script is: in an installation, in a clone."""


def training_script() -> Path | None:
    """The training script, wherever this sentinel was installed from."""
    return next((path for path in _SCRIPTS if path.is_file()), None)


def missing_requirement() -> str | None:
    """What the demo needs and this machine has not, with the remedy."""
    if find_spec("torch") is None:
        return "it trains with PyTorch, which is not here. Install it: pip install torch"
    if training_script() is None:
        return "its training script is not in this installation. Run it from a clone: make demo"
    return None


@dataclass
class Sandbox:
    """Everything that one demo starts or writes is below `folder`."""

    folder: Path
    seed: int = 0
    trainer: subprocess.Popen[bytes] | None = field(default=None, init=False)
    agent_info: dict[str, Any] = field(default_factory=dict, init=False)
    run_metadata: dict[str, Any] = field(default_factory=dict, init=False)
    case_causes: dict[str, str] = field(default_factory=dict, init=False)
    """What the agent last put each case down to, by its name; "" is nothing."""

    def configure(self, receiver_url: str, secret: str) -> None:
        """Write the settings that send every page to the receiver's address."""
        key = self.folder / "webhook.secret"
        key.touch(mode=0o600)
        key.write_text(secret)
        (self.folder / "sentinel.toml").write_text(
            "linger_seconds = 2.0\n\n"
            f'[sinks.slack]\nurl = "{receiver_url}/slack"\n\n'
            f'[sinks.webhook]\nurl = "{receiver_url}/webhook"\nsecret_file = "{key}"\n'
        )

    def start(self) -> None:
        """Start the training with the faults ordered, as a user would: by torchrun."""
        (self.folder / "checkpoints").mkdir()
        with (self.folder / "training.log").open("wb") as log:
            self.trainer = subprocess.Popen(  # noqa: S603 - our own command line
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
        return command + [word for fault in FAULTS for word in (fault.option, str(fault.step))]

    @property
    def exit_status(self) -> int | None:
        """Exit status of the training; None while it runs."""
        return self.trainer.poll() if self.trainer else None

    @property
    def is_watched(self) -> bool:
        """Whether an agent is there, which is noted in `agent`."""
        for path in self.folder.glob("home/runs/*/agent.json"):
            with suppress(OSError, ValueError):
                self.agent_info = json.loads(path.read_text())
                return psutil.pid_exists(self.agent_info["pid"])
        return False

    @property
    def checkpoint_count(self) -> int:
        """Checkpoints written so far."""
        return sum(1 for _ in self.folder.glob("checkpoints/*.pt"))

    @property
    def expected_checkpoints(self) -> int:
        """Checkpoints that the run's own configuration asks for, as its agent has it."""
        about = self.run_metadata
        return int(float(about.get("max_steps", 0)) // float(about.get("save_steps", 1)))

    def poll(self) -> dict[str, Any]:
        """What the agent says of the run; empty where it says nothing."""
        if not self.is_watched:
            return {}
        try:
            answer: dict[str, Any] = requests.get(
                f"{self.agent_info['url']}/api/run", timeout=2.0
            ).json()
        except (requests.RequestException, ValueError):
            return {}
        self.run_metadata = answer.get("metadata") or self.run_metadata
        for case in answer.get("cases", ()):
            self.case_causes[case["name"]] = (case["diagnosis"] or {}).get("cause", "")
        return answer

    def stop(self) -> None:
        """End what is still running: the training with its ranks, and the agent."""
        ended: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            if self.trainer and self.trainer.poll() is None:
                torchrun = psutil.Process(self.trainer.pid)
                ended += [torchrun, *torchrun.children(recursive=True)]
        with suppress(psutil.NoSuchProcess):
            if self.is_watched:
                ended.append(psutil.Process(self.agent_info["pid"]))
        _terminate(ended)
        if self.trainer:
            self.trainer.wait()


def training_environment(base_environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment of the training.

    Nothing of the user's own sentinel settings is in it: no page of a demo may reach his channel.
    """
    environ = {
        name: value for name, value in base_environ.items() if not name.startswith("SENTINEL_")
    }
    if _PACKAGE.parent.name not in {"site-packages", "dist-packages"}:
        found = (str(_PACKAGE.parent), environ.get("PYTHONPATH", ""))
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, found))
    return environ | {
        "SENTINEL_HOME": str(folder / "home"),
        "SENTINEL_RUNTIME_DIR": str(folder / "rings"),
        "SENTINEL_CONFIG": str(folder / "sentinel.toml"),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _terminate(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(processes, timeout=STOP_TIMEOUT_SECONDS)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=STOP_TIMEOUT_SECONDS)
