"""Slowdown of a training loop while its agent is scraped a hundred times a second.

    python benchmarks/scrapes.py [--pairs 60] [--rate 100]

A process trains for real with the decorator (steps of about 2 ms that walk over memory, 20 values
logged each); its agent serves `/metrics`, which ten clients of another process scrape. Blocks of
0.5 s with and without scrapes alternate in random order within each pair. The figure is the median
over the pairs of the ratio of the mean step, once in wall time and once in processor time of the
training thread, with the 95 % confidence interval of the median. With two cores or more, the
trainer has the first one, and agent and clients the others. On a machine with other load the wall
time varies too much. Prints Markdown and writes results/scrapes.json.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

from agent import wait_for_end

RESULTS = Path(__file__).parent / "results" / "scrapes.json"
BLOCK_SECONDS, SETTLING_SECONDS = 0.5, 0.05
CLIENTS = 10

TRAINER = """
import json, math, os, sys, time
import sentinel

path, end_path = sys.argv[1:]

@sentinel.monitor
def train():
    memory, times, step, end = bytearray(1 << 20), [], 0, math.inf
    while time.monotonic() < end:
        if os.path.exists(end_path):
            with open(end_path) as file:
                end = float(file.read())
        total = 0.0
        for _ in range(8):
            memory.count(1)
            total += sum(index * 0.5 for index in range(600))
        step += 1
        sentinel.log({f"value_{n}": total + n for n in range(20)}, step=step)
        times.append((time.monotonic(), time.thread_time()))
    return times

with open(path, "w") as file:
    json.dump(train(), file)
"""


def is_scraped(block: int) -> bool:
    """Whether the clients scrape in this block: in one of each pair."""
    return random.Random(block // 2).random() < 0.5 if block % 2 else not is_scraped(block | 1)


def block_at(moment: float, start: float) -> int:
    """Number of the block at a time of the monotonic clock; -1 while the clients change over."""
    block, within = divmod(moment - start, BLOCK_SECONDS)
    return int(block) if within >= SETTLING_SECONDS else -1


def scrape(port: int, pairs: int, rate: float, end_path: Path) -> None:
    """Scrape at `rate` per second in the blocks with scrapes; prints their start and durations.

    Writes the end of the last block to `end_path`, for the trainer.
    """
    durations: list[float] = []
    start = time.monotonic() + 1.0
    end = start + 2 * pairs * BLOCK_SECONDS
    end_path.with_name("new").write_text(str(end))
    end_path.with_name("new").rename(end_path)

    def run_client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        due = start + number / rate
        while due < end:
            time.sleep(max(0.0, due - time.monotonic()))
            if is_scraped(int((time.monotonic() - start) / BLOCK_SECONDS)):
                began = time.monotonic()
                connection.request("GET", "/metrics")
                assert connection.getresponse().read()
                durations.append(time.monotonic() - began)
            due = max(due + CLIENTS / rate, time.monotonic() - CLIENTS / rate)

    threads = [threading.Thread(target=run_client, args=(n,)) for n in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps([start, durations]))


def measure(pairs: int, rate: float) -> dict[str, object]:
    """The ratios of all pairs, and what the clients saw."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        environ = os.environ | {
            "SENTINEL_HOME": f"{folder}/home",
            "SENTINEL_RUNTIME_DIR": f"{folder}/rings",
            "SENTINEL_RUN_ID": "scraped",
            "SENTINEL_PORT": "0",
            "SENTINEL_LINGER_SECONDS": "0",
        }
        steps_file, end_file = Path(folder) / "steps.json", Path(folder) / "end"
        trainer = subprocess.Popen(
            [sys.executable, "-c", TRAINER, str(steps_file), str(end_file)], env=environ, cwd=folder
        )
        registration = Path(folder) / "home/runs/scraped/agent.json"
        while not registration.exists():
            assert trainer.poll() is None, "the trainer failed"
            time.sleep(0.1)
        agent = json.loads(registration.read_text())
        if len(cores) > 1:
            pin(trainer.pid, {cores[0]})
            pin(agent["pid"], set(cores[1:]))
        client = [sys.executable, __file__, "--client"]
        scraped = subprocess.run(
            [*client, str(agent["port"]), str(pairs), str(rate), str(end_file)],
            stdout=subprocess.PIPE,
            check=True,
            preexec_fn=lambda: os.sched_setaffinity(0, set(cores[1:]) or set(cores)),
        )
        assert trainer.wait(120) == 0
        # It ends with the run, and removes its files before that.
        wait_for_end(agent["pid"])
        steps = json.loads(steps_file.read_text())
    start, durations = json.loads(scraped.stdout)
    durations.sort()
    return {
        "wall": pair_ratios(steps, start, 0),
        "processor": pair_ratios(steps, start, 1),
        "scrapes": len(durations),
        "scrapes_per_second": len(durations) / (pairs * BLOCK_SECONDS),
        "p50_ms": 1e3 * statistics.median(durations),
        "p99_ms": 1e3 * durations[int(len(durations) * 0.99)],
        "cores": len(cores),
        "load": os.getloadavg()[0],
    }


def pin(pid: int, cores: set[int]) -> None:
    """Let all threads of a process run on these cores only."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), cores)


def pair_ratios(steps: list[list[float]], start: float, clock: int) -> list[float]:
    """Mean step with scrapes over that without, of each pair; `clock` 0 is wall, 1 processor."""
    means: dict[int, list[float]] = {}
    for before, after in pairwise(steps):
        block = block_at(before[0], start)
        if block >= 0 and block == block_at(after[0], start):
            means.setdefault(block, []).append(after[clock] - before[clock])
    ratios = []
    for block in range(0, max(means), 2):
        if block in means and block + 1 in means:
            of = {is_scraped(each): statistics.mean(means[each]) for each in (block, block + 1)}
            ratios.append(of[True] / of[False])
    return ratios


def with_interval(ratios: list[float]) -> str:
    """Median and its 95 % confidence interval, in percent of slowdown."""
    ordered, count = sorted(ratios), len(ratios)
    margin = 1.96 * math.sqrt(count) / 2
    low = ordered[max(0, math.floor(count / 2 - margin))]
    high = ordered[min(count - 1, math.ceil(count / 2 + margin))]
    median, low, high = (100 * (each - 1) for each in (statistics.median(ordered), low, high))
    return f"{median:+.2f} % ({low:+.2f} to {high:+.2f})"


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--client", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        port, pairs, rate, end_path = options.client
        scrape(int(port), int(pairs), float(rate), Path(end_path))
        return
    result = measure(options.pairs, options.rate)
    if not result["wall"]:
        parser.error("no pair has two steps in each of its blocks: the machine is too busy")
    print("| | slowdown, median (95 % interval) |\n|---|---|")
    print(f"| wall time of a step | {with_interval(result['wall'])} |")
    print(f"| processor time of the training thread | {with_interval(result['processor'])} |")
    print(
        f"\n{len(result['wall'])} pairs, {result['scrapes_per_second']:.0f} scrapes/s, scrape p50"
        f" {result['p50_ms']:.1f} ms, p99 {result['p99_ms']:.1f} ms, {result['cores']} cores,"
        f" load {result['load']:.1f}"
    )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
