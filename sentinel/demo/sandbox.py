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

RANKS = 4
PATIENCE = 10.0
"""Seconds that a process is given to leave after it was asked to."""
_PACKAGE = Path(__file__).resolve().parents[1]
_SCRIPTS = (
    _PACKAGE / "demo" / "script" / "train.py",
    _PACKAGE.parent / "examples" / "demo" / "train.py",
)
"""Where the training script is: in an installation, in a clone."""


def script() -> Path | None:
    """The training script, wherever this sentinel was installed from."""
    return next((path for path in _SCRIPTS if path.is_file()), None)


def lacking() -> str | None:
    """What the demo needs and this machine has not, with the remedy."""
    if find_spec("torch") is None:
        return "it trains with PyTorch, which is not here. Install it: pip install torch"
    if script() is None:
        return "its training script is not in this installation. Run it from a clone: make demo"
    return None


@dataclass
class Stage:
    """Everything that one demo starts or writes is below `folder`."""

    folder: Path
    seed: int = 0
    training: subprocess.Popen[bytes] | None = field(default=None, init=False)
    agent: dict[str, Any] = field(default_factory=dict, init=False)
    about: dict[str, Any] = field(default_factory=dict, init=False)
    causes: dict[str, str] = field(default_factory=dict, init=False)
    """What the agent last put each case down to, by its name; "" is nothing."""

    def configure(self, receiver: str, secret: str) -> None:
        """Write the settings that send every page to the receiver's address."""
        key = self.folder / "webhook.secret"
        key.touch(mode=0o600)
        key.write_text(secret)
        (self.folder / "sentinel.toml").write_text(
            "linger_seconds = 2.0\n\n"
            f'[sinks.slack]\nurl = "{receiver}/slack"\n\n'
            f'[sinks.webhook]\nurl = "{receiver}/webhook"\nsecret_file = "{key}"\n'
        )

    def start(self) -> None:
        """Start the training with the faults ordered, as a user would: by torchrun."""
        (self.folder / "checkpoints").mkdir()
        with (self.folder / "training.log").open("wb") as log:
            self.training = subprocess.Popen(  # noqa: S603 - our own command line
                self._command(),
                cwd=self.folder,
                env=environment(os.environ, self.folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _command(self) -> list[str]:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
        command = [sys.executable, *torchrun, "--nproc-per-node", str(RANKS), str(script())]
        command += ["--folder", str(self.folder / "checkpoints"), "--seed", str(self.seed)]
        return command + [word for fault in FAULTS for word in (fault.option, str(fault.step))]

    @property
    def status(self) -> int | None:
        """Exit status of the training; None while it runs."""
        return self.training.poll() if self.training else None

    @property
    def watched(self) -> bool:
        """Whether an agent is there, which is noted in `agent`."""
        for path in self.folder.glob("home/runs/*/agent.json"):
            with suppress(OSError, ValueError):
                self.agent = json.loads(path.read_text())
                return psutil.pid_exists(self.agent["pid"])
        return False

    @property
    def written(self) -> int:
        """Checkpoints written so far."""
        return sum(1 for _ in self.folder.glob("checkpoints/*.pt"))

    @property
    def meant(self) -> int:
        """Checkpoints that the run's own configuration asks for, as its agent has it."""
        about = self.about
        return int(float(about.get("max_steps", 0)) // float(about.get("save_steps", 1)))

    def look(self) -> dict[str, Any]:
        """What the agent says of the run; empty where it says nothing."""
        if not self.watched:
            return {}
        try:
            answer: dict[str, Any] = requests.get(
                f"{self.agent['url']}/api/run", timeout=2.0
            ).json()
        except (requests.RequestException, ValueError):
            return {}
        self.about = answer.get("about") or self.about
        for case in answer.get("cases", ()):
            self.causes[case["name"]] = (case["diagnosis"] or {}).get("cause", "")
        return answer

    def clear(self) -> None:
        """End what is still running: the training with its ranks, and the agent."""
        ended: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            if self.training and self.training.poll() is None:
                torchrun = psutil.Process(self.training.pid)
                ended += [torchrun, *torchrun.children(recursive=True)]
        with suppress(psutil.NoSuchProcess):
            if self.watched:
                ended.append(psutil.Process(self.agent["pid"]))
        _end(ended)
        if self.training:
            self.training.wait()


def environment(ours: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment of the training.

    Nothing of the user's own sentinel settings is in it: no page of a demo may reach his channel.
    """
    environ = {name: value for name, value in ours.items() if not name.startswith("SENTINEL_")}
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


def _end(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(processes, timeout=PATIENCE)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=PATIENCE)
