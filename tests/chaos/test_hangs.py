"""Real ranks that hang in many ways: each time the rank that the others wait for is named.

`CHAOS_KILLS` hangs, at most 50, several at a time; the delays are printed, and are no condition.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.fork_server import TORCH, ForkServer
from support.forked_ranks import start_ranks
from support.rank_processes import has_agent, until
from support.webhook_receiver import Receiver

pytest.importorskip("torch")
pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

HANGS = min(int(os.environ.get("CHAOS_KILLS", "4")), 50)
HANGS_AT_A_TIME = 4
LIMIT_SECONDS = 3.0
TIMEOUT_SECONDS = 240.0
"""Timeout of what takes 10 seconds on an idle machine."""

SCRIPT = """
import ctypes, os, queue, sys, threading, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import sentinel

kind, victim, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def mark(name):
    with open(f"{folder}/.{name}", "w") as file:
        file.write(f"{os.getpid()} {time.time()!r}")
    os.replace(f"{folder}/.{name}", f"{folder}/{name}")

def get_stuck():
    mark("hung")
    if kind == "sleep":
        time.sleep(3600.0)
    elif kind == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    elif kind == "queue":
        queue.Queue().get()
    elif kind == "gil":
        ctypes.PyDLL(None).sleep(3600)
    elif kind == "spin":
        while True:
            sum(range(1000))
    else:
        # The others wait in a collective that this rank never enters.
        dist.recv(torch.zeros(1), src=1 - victim)

@sentinel.monitor(run="hang")
def train():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    mark(f"rank{rank}")
    for step in range(1, 1_000_000):
        x = torch.randn(16, 8)
        if step == 30:
            mark(f"ready{rank}")
            if rank == victim and kind not in ("stop", "recv"):
                get_stuck()
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        if kind == "recv" and step == 30 and rank == victim:
            get_stuck()
        dist.all_reduce(torch.ones(1))
        optimizer.step()
        time.sleep(0.02)

train()
"""

SETTINGS = """
linger_seconds = 0.5
[detectors.run_stalled]
floor = {limit}
[sinks.webhook]
url = "{url}"
"""

KINDS = ("sleep", "stop", "gil", "recv", "lock", "spin", "queue")


def hang_once(server: ForkServer, number: int, folder: Path) -> tuple[str, int, str, float]:
    """One run of two ranks of which one hangs: kind, victim, first summary, seconds until then."""
    kind, victim = KINDS[number % len(KINDS)], random.Random(number).randrange(2)
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    with Receiver() as receiver:
        settings = SETTINGS.format(limit=LIMIT_SECONDS, url=receiver.url)
        (folder / "sentinel.toml").write_text(settings)
        own = {
            "SENTINEL_HOME": str(folder / "home"),
            "SENTINEL_RUNTIME_DIR": str(folder / "rings"),
            "SENTINEL_RUN_ID": "hang",
        }
        command = [folder / "train.py", kind, victim, folder]
        with (folder / "output").open("w") as output:
            ranks = start_ranks(server, command, cwd=folder, output=output, **own)
        try:
            hung_at = _hang(kind, victim, folder)
            summary = until(lambda: _first_stall(receiver), TIMEOUT_SECONDS, f"{kind} is found")
            return kind, victim, summary, time.time() - hung_at
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
            run = folder / "home" / "runs" / "hang"
            until(lambda: not has_agent(run), TIMEOUT_SECONDS, "the agent has ended")


def _hang(kind: str, victim: int, folder: Path) -> float:
    """Wait for the hang, or stop the victim; returns when that was."""
    if kind != "stop":
        until((folder / "hung").exists, TIMEOUT_SECONDS, "the hang")
        return float((folder / "hung").read_text().split()[1])
    for rank in (0, 1):
        until((folder / f"ready{rank}").exists, TIMEOUT_SECONDS, "step 30")
    os.kill(int((folder / f"rank{victim}").read_text().split()[0]), signal.SIGSTOP)
    return time.time()


def _first_stall(receiver: Receiver) -> str:
    for request in receiver.accepted:
        alert = request.json["alerts"][0]
        if alert["labels"]["detector"] == "run_stalled":
            return str(alert["annotations"]["summary"])
    return ""


@pytest.mark.fault("R1", "R3", "R4", "R6")
def test_the_rank_that_hangs_is_named(fork_server, tmp_path):
    check_hangs(fork_server(*TORCH), tmp_path, range(HANGS))


@pytest.mark.full
@pytest.mark.fault("R3", "R5")
def test_a_rank_that_waits_for_a_lock_or_loops_is_named(fork_server, tmp_path):
    check_hangs(
        fork_server(*TORCH), tmp_path, [KINDS.index(kind) for kind in ("lock", "spin", "queue")]
    )


def check_hangs(server: ForkServer, folder: Path, numbers: Iterable[int]) -> None:
    """Hang once for each number; each time the rank that hangs is named."""
    with ThreadPoolExecutor(HANGS_AT_A_TIME) as pool:
        trials = list(pool.map(lambda n: hang_once(server, n, folder / str(n)), numbers))
    delays = sorted(seconds for *_, seconds in trials)
    print(
        json.dumps({"hangs": len(delays), "median": statistics.median(delays), "max": delays[-1]})
    )
    for kind, victim, summary, seconds in trials:
        print(kind, victim, f"{seconds:.1f}", summary)
    wrong = [trial for trial in trials if f": rank {trial[1]} " not in trial[2]]
    assert wrong == []
