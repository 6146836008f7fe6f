"""Exit codes and exit times of trainings with and without `aggregate="collective"`.

    python benchmarks/collective_exits.py [--exits 1000] [--at-once 2] [--minutes 60] [--whole]

Each job is two ranks on loopback, forked from one process with torch loaded. Each ends as a program
does, with the complete shutdown of the interpreter: by return, after destroying the process group,
by an exception, by SIGTERM. One job in five is not gathered. Exits during a gather are counted. The
time is from the end of the training to that of the process. Objects of the first process are
excluded from the last garbage collection, which takes a second of CPU, unless `--whole` is given.
Exits with 1 if an exit code is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import sentinel
from sentinel.client.collective import aggregation, readiness
from sentinel.client.session import current_session

ENDINGS = {"return": 0, "destroyed first": 0, "exception": 1, "SIGTERM": -signal.SIGTERM}
MODES = ("collective",) * 4 + ("agent",)
WORLD = 2


class Job(NamedTuple):
    """One training: how it ends, whether it is gathered, and after how many steps."""

    number: int
    ending: str
    mode: str
    steps: int


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_rank(job: Job, rank: int, master_port: int, reports: int, folder: Path) -> None:
    """Run one rank until it ends."""
    node = folder / f"{job.number}-{rank}"
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(master_port), GLOO_SOCKET_IFNAME="lo",
        SENTINEL_RUN_ID=f"exit-{job.number}", SENTINEL_HOME=str(node / "home"),
        SENTINEL_RUNTIME_DIR=str(node / "shm"),
    )  # fmt: skip
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    readiness.LEAD_SECONDS = readiness.POLL_INTERVAL_SECONDS = aggregation.POLL_INTERVAL_SECONDS = (
        0.005
    )
    dist.init_process_group("gloo")
    with sentinel.monitor(aggregate=job.mode, agent=False):
        train(job)
        state = gather_state()
        line = json.dumps([job.number, rank, *state, time.monotonic()]) + "\n"
        os.write(reports, line.encode())
        if job.ending == "exception":
            raise ValueError("on purpose")
        if job.ending == "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)


def train(job: Job) -> None:
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for step in range(job.steps):
        optimizer.zero_grad()
        (parameter * step).sum().backward()
        dist.all_reduce(parameter.grad)
        optimizer.step()
        sentinel.log({"x": float(step)}, step=step)
        time.sleep(0.001)
    if job.ending == "destroyed first":
        dist.destroy_process_group()


def warm_up() -> None:
    """Load everything that a training loads once, instead of in every rank."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(SENTINEL_HOME=f"{folder}/home", SENTINEL_RUNTIME_DIR=f"{folder}/shm")
        with sentinel.monitor(agent=False):
            parameter = torch.nn.Parameter(torch.ones(1))
            parameter.sum().backward()
            torch.optim.SGD([parameter], lr=0.1).step()


def gather_state() -> tuple[bool, bool]:
    """Whether this rank is gathered, and whether a gather is in progress."""
    session = current_session()
    collective: Any = getattr(session.recorder, "collective", None) if session else None
    group = collective._gather_group if collective is not None else None  # noqa: SLF001 - no public access
    return group is not None, group is not None and group.busy


def jobs(exits: int) -> list[Job]:
    rng = random.Random(1)
    kinds = [(ending, mode) for ending in ENDINGS for mode in MODES]
    count = max(1, exits // (WORLD * len(ENDINGS) * MODES.count("collective")))
    specs = [(ending, mode) for _ in range(count) for ending, mode in kinds]
    return [Job(at, *kind, rng.randint(60, 100)) for at, kind in enumerate(specs)]


class Bench:
    """Starts jobs, several at a time, and records when each process ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read_fd, self.write_fd = os.pipe()
        self.running: dict[int, tuple[Job, int]] = {}
        self.ended: dict[tuple[int, int], tuple[Job, int, float]] = {}

    def start(self, job: Job) -> bool:
        """Start a job; True in the processes of its ranks after they have finished."""
        master_port = free_port()
        for rank in range(WORLD):
            pid = os.fork()
            if pid == 0:
                os.close(self.read_fd)
                run_rank(job, rank, master_port, self.write_fd, self.folder)
                return True
            self.running[pid] = job, rank
        return False

    def reap(self) -> None:
        pid, status = os.wait()
        job, rank = self.running.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        self.ended[job.number, rank] = job, code, time.monotonic()
        shutil.rmtree(self.folder / f"{job.number}-{rank}", ignore_errors=True)

    def reports(self) -> dict[tuple[int, int], tuple[bool, bool, float]]:
        os.close(self.write_fd)
        with os.fdopen(self.read_fd) as lines:
            counts = map(json.loads, lines)
            return {
                (number, rank): (is_gathered, is_gathering, at)
                for number, rank, is_gathered, is_gathering, at in counts
            }


def report(bench: Bench, reports: dict[tuple[int, int], tuple[bool, bool, float]]) -> bool:
    """Print the results; whether every exit code is right."""
    codes: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    gathered_counts: Counter[tuple[str, str]] = Counter()
    gathering_counts: Counter[tuple[str, str]] = Counter()
    for key, (job, code, at) in bench.ended.items():
        kind = job.ending, job.mode
        codes[kind][code] += 1
        if key in reports:
            is_gathered, is_gathering, ended_at = reports[key]
            gathered_counts[kind] += is_gathered
            gathering_counts[kind] += is_gathering
            seconds[kind].append(at - ended_at)
    print("| ending | path | exits | codes | gathered | gather under way | exit s p50 | worst |")
    print("|---|---|---|---|---|---|---|---|")
    for kind, counts in sorted(codes.items()):
        times = seconds[kind] or [0.0]
        code_text = ", ".join(f"{code}: {count}" for code, count in sorted(counts.items()))
        figures = f"{statistics.median(times):.3f} | {max(times):.3f}"
        sums = (
            f"{counts.total()} | {code_text} | {gathered_counts[kind]} | {gathering_counts[kind]}"
        )
        print(f"| {kind[0]} | {kind[1]} | {sums} | {figures} |")
    return all(set(counts) == {ENDINGS[ending]} for (ending, _), counts in codes.items())


def main() -> int | None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--exits", type=int, default=1000, help="number of exits of gathered ranks")
    parser.add_argument("--at-once", type=int, default=2, help="concurrent jobs")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no job after that")
    parser.add_argument("--whole", action="store_true", help="collect all garbage at each exit")
    args = parser.parse_args()
    deadline = time.monotonic() + 60 * args.minutes
    torch.set_num_threads(1)
    warm_up()
    if not args.whole:
        gc.collect()
        gc.freeze()
    home = Path(tempfile.mkdtemp(prefix="sentinel-exits-"))
    bench = Bench(home)
    for job in jobs(args.exits):
        while len(bench.running) > WORLD * (args.at_once - 1):
            bench.reap()
        if time.monotonic() > deadline:
            break
        if bench.start(job):
            return None
    while bench.running:
        bench.reap()
    is_right = report(bench, bench.reports())
    shutil.rmtree(home, ignore_errors=True)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
