"""Trainings of two ranks whose KL grows on request, with their agents."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from programs import free_port, running, wait_for

from sentinel.config.plugins import load_modules

SCRIPT = Path(__file__).with_name("kl_runaway.py")
DETECTORS = {"kl_blowup", "run_died", "run_failed", "run_stalled"}
"""Detectors that are enabled: most values of the script are those of no training."""


@dataclass(frozen=True)
class Training:
    """A torchrun with two ranks, and the agent that they start; `directory` is that of the run.

    The KL is normal after the first steps while `healthy_file` exists.
    """

    torchrun: subprocess.Popen
    directory: Path
    healthy_file: Path
    log: Path

    @property
    def ranks(self) -> list[psutil.Process]:
        children = psutil.Process(self.torchrun.pid).children()
        return [child for child in children if str(SCRIPT) in child.cmdline()]

    @property
    def agent_pid(self) -> int:
        """Process id of the agent that serves the run, or served it last."""
        return self._registration()["pid"]

    def kill_agent(self) -> None:
        psutil.Process(self.agent_pid).kill()

    @property
    def url(self) -> str:
        return self._registration()["url"]

    def wait_for_scrape(self, stack) -> None:
        """Wait until Prometheus has a series of the run."""

        def is_scraped() -> bool:
            assert self.torchrun.poll() is None, self.log.read_text()
            return stack.prometheus.instant_query(
                f'sentinel_run_active{{run="{self.directory.name}"}}'
            )

        wait_for("the agent's first scrape", is_scraped)

    def kill(self) -> None:
        """Kill launcher and ranks, the launcher first, so that it cleans nothing up."""
        with suppress(psutil.NoSuchProcess):
            for process in (psutil.Process(self.torchrun.pid), *self.ranks):
                process.kill()

    def _registration(self) -> dict:
        return json.loads((self.directory / "agent.json").read_text())


@contextmanager
def running_training(stack, run: str, shared: Path, *, is_healthy=False) -> Iterator[Training]:
    """A training in the home directory of the stack."""
    pytest.importorskip("torch")
    healthy_file, log = shared / "healthy", shared / "training.log"
    if is_healthy:
        healthy_file.touch()
    environ = {
        **os.environ,
        "SENTINEL_HOME": str(stack.home),
        "SENTINEL_RUNTIME_DIR": str(shared),
        "SENTINEL_RUN_ID": run,
        "SENTINEL_RESOLVE_SECONDS": "0",
        "SENTINEL_COOLDOWN_SECONDS": "0",
        "PYTHONPATH": str(SCRIPT.parents[2]),
        "OMP_NUM_THREADS": "1",
        "SENTINEL_DISABLE": ",".join(sorted(load_modules("detectors").keys() - DETECTORS)),
        "HEALTHY_FILE": str(healthy_file),
    }
    port = str(free_port())
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}"]
    with running(log, sys.executable, *launch, str(SCRIPT), env=environ) as torchrun:
        training = Training(torchrun, stack.home / "runs" / run, healthy_file, log)
        try:
            yield training
        finally:
            training.kill()
            with suppress(psutil.NoSuchProcess, OSError):
                training.kill_agent()
