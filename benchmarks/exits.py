"""Exit codes and exit times of trainings with and without sentinel.

    python benchmarks/exits.py [--exits 1000] [--paths served,none] [--at-once 2] [--minutes 60]

Each job is two ranks on loopback, forked from one process with torch loaded. Each ends as a program
does, with the complete shutdown of the interpreter: by return, after destroying the process group,
by an exception, by SIGTERM. The paths are `none` (without sentinel), `agent` (without an agent
process), `served` (with one) and `collective`, of which exits during a gather are counted. The time
is from the end of the training to that of the process. Objects of the first process are excluded
from the last garbage collection, which takes a second of CPU, unless `--whole` is given. Exits with
1 if an exit code is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
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

RankKey = tuple[int, int]
"""Number of the job, and rank."""
ENDINGS = {"return": 0, "destroyed first": 0, "exception": 1, "SIGTERM": -signal.SIGTERM}
PATHS = ("collective", "agent", "served", "none")
WORLD = 2


class Job(NamedTuple):
    """One training: how it ends, its path, after how many steps, and which of those at once."""

    number: int
    ending: str
    path: str
    steps: int
    slot: int = 0


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_rank(job: Job, rank: int, master_port: int, reports: int, folder: Path) -> None:
    """Run one rank until it ends."""
    node, is_served = folder / f"{job.number}-{rank}", job.path == "served"
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(master_port), GLOO_SOCKET_IFNAME="lo",
        SENTINEL_RUN_ID=f"exit-{job.number}",
    )  # fmt: skip
    if is_served:
        # Its agent serves all jobs of the slot, as attempts of one run.
        node = folder / f"served-{job.slot}"
        os.environ.update(
            LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(WORLD), SENTINEL_RUN_ID=node.name,
            SENTINEL_LINGER_SECONDS="3600",
        )  # fmt: skip
    os.environ.update(SENTINEL_HOME=str(node / "home"), SENTINEL_RUNTIME_DIR=str(node / "shm"))
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    readiness.LEAD_SECONDS = readiness.POLL_INTERVAL_SECONDS = aggregation.POLL_INTERVAL_SECONDS = (
        0.005
    )
    dist.init_process_group("gloo")
    aggregate = "collective" if job.path == "collective" else "agent"
    monitor = sentinel.monitor(aggregate=aggregate, agent=is_served)
    ended_at = 0.0
    try:
        with contextlib.nullcontext() if job.path == "none" else monitor:
            train(job)
            state = gather_state()
            ended_at = time.monotonic()
            line = json.dumps([job.number, rank, *state, ended_at]) + "\n"
            os.write(reports, line.encode())
            if job.ending == "exception":
                raise ValueError("on purpose")
            if job.ending == "SIGTERM":
                os.kill(os.getpid(), signal.SIGTERM)
    finally:
        line = json.dumps([job.number, rank, time.monotonic() - ended_at]) + "\n"
        os.write(reports, line.encode())


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


def jobs(exits: int, paths: list[str]) -> list[Job]:
    rng = random.Random(1)
    kinds = [(ending, path) for ending in ENDINGS for path in paths]
    specs = kinds * max(1, exits // (WORLD * len(kinds)))
    return [Job(at, *kind, rng.randint(60, 100)) for at, kind in enumerate(specs)]


class Bench:
    """Starts jobs, several at a time, and records when each process ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read_fd, self.write_fd = os.pipe()
        # The reports are read at the end.
        fcntl.fcntl(self.write_fd, fcntl.F_SETPIPE_SZ, 1 << 20)
        self.running: dict[int, tuple[Job, int]] = {}
        self.ended: dict[tuple[int, int], tuple[Job, int, float]] = {}

    def start(self, job: Job) -> bool:
        """Start a job; True in the processes of its ranks after they have finished."""
        used = {each.slot for each, _ in self.running.values()}
        job = job._replace(slot=next(slot for slot in range(len(used) + 1) if slot not in used))
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

    def end_agents(self) -> None:
        """End the agents of the served jobs."""
        for registration in self.folder.glob("served-*/home/runs/*/agent.json"):
            os.kill(json.loads(registration.read_text())["pid"], signal.SIGTERM)

    def reports(self) -> tuple[dict[RankKey, tuple[bool, bool, float]], dict[RankKey, float]]:
        """What each rank reported at the end of its training, and its seconds inside sentinel."""
        os.close(self.write_fd)
        ends, exit_seconds = {}, {}
        with os.fdopen(self.read_fd) as lines:
            for number, rank, *rest in map(json.loads, lines):
                if len(rest) == 1:
                    exit_seconds[number, rank] = rest[0]
                else:
                    ends[number, rank] = tuple(rest)
        return ends, exit_seconds


def report(bench: Bench) -> bool:
    """Print the results; whether every exit code is right."""
    reports, exit_seconds = bench.reports()
    own_seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    codes: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    gathered_counts: Counter[tuple[str, str]] = Counter()
    gathering_counts: Counter[tuple[str, str]] = Counter()
    for key, (job, code, at) in bench.ended.items():
        kind = job.ending, job.path
        codes[kind][code] += 1
        if key in reports:
            is_gathered, is_gathering, ended_at = reports[key]
            gathered_counts[kind] += is_gathered
            gathering_counts[kind] += is_gathering
            seconds[kind].append(at - ended_at)
        if key in exit_seconds:
            own_seconds[kind].append(exit_seconds[key])
    print(
        "| ending | path | exits | codes | gathered | gather under way | exit s p50 | worst "
        "| of which in sentinel p50 | worst |"
    )
    print("|---" * 10 + "|")
    for kind, counts in sorted(codes.items()):
        times = seconds[kind] or [0.0]
        code_text = ", ".join(f"{code}: {count}" for code, count in sorted(counts.items()))
        figures = f"{statistics.median(times):.3f} | {max(times):.3f}"
        sums = (
            f"{counts.total()} | {code_text} | {gathered_counts[kind]} | {gathering_counts[kind]}"
        )
        own = own_seconds[kind] or [0.0]
        own_figures = f"{statistics.median(own):.4f} | {max(own):.4f}"
        print(f"| {kind[0]} | {kind[1]} | {sums} | {figures} | {own_figures} |")
    return all(set(counts) == {ENDINGS[ending]} for (ending, _), counts in codes.items())


def main() -> int | None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--exits", type=int, default=1000, help="number of exits of all paths")
    parser.add_argument("--paths", default=",".join(PATHS), help="some of " + ",".join(PATHS))
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
    for job in jobs(args.exits, args.paths.split(",")):
        while len(bench.running) > WORLD * (args.at_once - 1):
            bench.reap()
        if time.monotonic() > deadline:
            break
        if bench.start(job):
            return None
    while bench.running:
        bench.reap()
    bench.end_agents()
    is_right = report(bench)
    time.sleep(1.0)  # Agents that end still write.
    shutil.rmtree(home, ignore_errors=True)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
