"""Data-parallel trainings over gloo whose ranks a test kills, under torchrun or spawned."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from support.garbage import with_less_collection
from support.rank_processes import until

TIMEOUT_SECONDS = 240.0

SCRIPT = """
import os, sys, time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import sentinel

LAUNCHER, WORLD, MARKS, RUN, AGGREGATE = sys.argv[1:6]
FAULT = sys.argv[6] if len(sys.argv) > 6 else ""

def mark(name, text):
    # Atomically: we may be killed at any time.
    with open(f"{MARKS}/.{name}", "w") as file:
        file.write(text)
    os.replace(f"{MARKS}/.{name}", f"{MARKS}/{name}")

def fail(rank, step):
    if FAULT == "raise" and rank == 1 and step == 30:
        try:
            raise KeyError("shard-7")
        except KeyError as error:
            raise ValueError(
                f"bad sample in s3://user:hunter2@bucket/shard-7, api_key=abcdef\\nand more"
            ) from error

@sentinel.monitor(run=RUN, aggregate=AGGREGATE)
def train():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 1_000_000):
        x = torch.randn(16, 8)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mark(rank, f"{os.getpid()} {step}")
        fail(rank, step)
        time.sleep(0.02)

def spawned(rank, port):
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=WORLD, LOCAL_WORLD_SIZE=WORLD,
        MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
    )
    train()

if __name__ == "__main__":
    if LAUNCHER == "spawn":
        import socket
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        mp.spawn(spawned, (port,), nprocs=int(WORLD))
    else:
        train()
"""


class DdpTraining:
    """A training of `world` ranks; `launcher` is "torchrun" or "spawn"."""

    def __init__(
        self,
        directory: Path,
        run: str,
        *,
        launcher: str = "torchrun",
        world: int = 2,
        aggregate: str = "agent",
        fault: str = "",
        prefix: tuple[str, ...] = (),
    ) -> None:
        self.directory, self.world = directory, world
        (directory / "marks").mkdir(parents=True)
        script = directory / "train.py"
        script.write_text(with_less_collection(SCRIPT))
        command = [sys.executable]
        if launcher == "torchrun":
            command += ["-m", "torch.distributed.run", "--nproc-per-node", str(world)]
            command += ["--standalone"]
        arguments = [launcher, str(world), str(directory / "marks"), run, aggregate, fault]
        self.log = (directory / "log").open("wb")
        self.process = subprocess.Popen(
            [*prefix, *command, str(script), *arguments],
            cwd=directory,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )

    def mark(self, rank: int) -> tuple[int, int] | None:
        """Process id and last step of that rank; None before its first step."""
        try:
            pid, step = (self.directory / "marks" / str(rank)).read_text().split()
        except FileNotFoundError:
            return None
        return int(pid), int(step)

    def reach(self, step: int) -> None:
        """Wait until every rank has taken that step."""
        for rank in range(self.world):
            until(
                lambda rank=rank: (self.mark(rank) or (0, 0))[1] >= step,
                TIMEOUT_SECONDS,
                f"step {step}",
            )

    def kill(self, rank: int, number: int = signal.SIGKILL) -> float:
        """Send that rank a signal; returns the time on the monotonic clock."""
        mark: Any = self.mark(rank)
        os.kill(mark[0], number)
        return time.monotonic()

    def end(self) -> None:
        """Kill what is left."""
        for rank in range(self.world):
            if mark := self.mark(rank):
                with suppress(ProcessLookupError):
                    os.kill(mark[0], signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()
