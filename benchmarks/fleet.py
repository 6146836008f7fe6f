"""Capacity of a head agent: simulated nodes against a real head.

    python benchmarks/fleet.py [--ranks 1024 2048] [--signals 32] [--seconds 60]

The head is `sentinel agent` with all detectors, the history and a scrape of `/metrics` every 15 s;
its own node has real rings. All other nodes, 8 ranks each, are simulated by two processes that
encode, sign and send real batches to the head's store (`fleet_nodes.py`), one step per second. CPU
is that of the head's process, user and system, over `seconds` after a warm-up; the delay is from a
step to its row in the head's database, polled twenty times per second; `lost` counts records that
are in no row. `--local 4 8 16` varies the ranks per node. Writes results/fleet.json, and prints
Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import numpy as np
from agent import cpu_seconds, read_metrics, resident_mb, stored_steps, wait_for_agent_url
from fleet_nodes import Course, Plan
from loopback import enter_network_namespace
from scale_page import fleet_table, torch_table

from sentinel.model.record import Event
from sentinel.transport.identity import Identity
from sentinel.transport.paths import ring_path
from sentinel.transport.record_codec import RecordEncoder, StepStamp
from sentinel.transport.rendezvous import Rendezvous
from sentinel.transport.ring import RingWriter

RESULTS = Path(__file__).parent / "results" / "fleet.json"
RUN, JOB, TOKEN, PORT = "bench", "bench", "of the benchmark", 14777
SCRAPE_SECONDS = 15.0
JOIN_SECONDS = 120.0
START_LEAD_SECONDS = 5.0
"""Time from the start of the head's own ranks to their first step."""
SIMULATOR_COUNT = 2
SIMULATOR_SCRIPT = Path(__file__).with_name("fleet_nodes.py")
LOW_PRIORITY_COMMAND = ("nice", "-n", "15")
"""Priority of the simulating processes, below the head, as an agent is below training."""
IMPORT_COST_CODE = """
import json, sys, time
for module in sys.argv[1].split(","):
    __import__(module)
pages = int(open("/proc/self/statm").read().split()[1])
print(json.dumps({"resident_mb": pages * 4096 / 1e6, "cpu_s": time.process_time()}))
"""
FIRING_PATTERN = r'^sentinel_alert_firing.*detector="(\w+)".* 1\.0$'
RENDEZVOUS = Rendezvous("127.0.0.1", "29500", JOB, 0)


class HeadRanks:
    """The ranks of the head's own node, which write to rings as a trainer does."""

    def __init__(self, world: int, local: int) -> None:
        self.rings = [
            RingWriter(ring_path(RUN, 0, rank), identity)
            for rank in range(local)
            for identity in (Identity(RUN, 0, rank, rank, world, local, "node0", RENDEZVOUS),)
        ]
        self.encoders = [RecordEncoder(ring.write) for ring in self.rings]

    def train(self, plan: Plan, begins: float) -> None:
        """Write the steps of the plan, the first at `begins`."""
        time.sleep(max(0.0, begins - START_LEAD_SECONDS - time.time()))
        sizes = {"world_size": float(plan.world), "local_world_size": float(plan.local)}
        for encoder in self.encoders:
            encoder.write_event(Event.START, StepStamp(0, 0, time.time()), sizes)
        course = Course(plan.signals, int(plan.seconds / plan.pace) + 2)
        step = 0
        while (due := begins + step * plan.pace) < begins + plan.seconds:
            time.sleep(max(0.0, due - time.time()))
            step, now = step + 1, time.time()
            rows = course.rank_values(step, len(self.rings)).tolist()
            for ring, encoder, row in zip(self.rings, self.encoders, rows, strict=True):
                encoder.write_values(
                    encoder.schema_for(course.names), StepStamp(step, step, now), row
                )
                ring.publish_step(step, step, now)
        for ring, encoder in zip(self.rings, self.encoders, strict=True):
            encoder.write_event(
                Event.STOP, StepStamp(step, step, time.time()), attributes={"outcome": "finished"}
            )
            ring.close("finished")


class HeadObserver:
    """Observes the head from outside while it runs."""

    def __init__(self, database: Path) -> None:
        self.connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        self.seen, self.delays = 0, list[float]()

    def poll(self) -> None:
        """Record the age of the step of each new row."""
        query = "select id, time from step where event = 'step' and id > ? order by id"
        for row, step_time in self.connection.execute(query, (self.seen,)):
            self.seen = row
            self.delays.append(time.time() - step_time)


def measure_fleet(world: int, local: int, args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.environ |= {
            "SENTINEL_HOME": f"{folder}/home", "SENTINEL_RUNTIME_DIR": f"{folder}/rings",
            "SENTINEL_LINGER_SECONDS": "0", "SENTINEL_CLUSTER__TOKEN": TOKEN,
            "SENTINEL_CLUSTER__HEAD": f"127.0.0.1:{PORT}", "TORCH_CPP_LOG_LEVEL": "ERROR",
        }  # fmt: skip
        with (Path(folder) / "head.log").open("w") as log:
            began = time.monotonic()
            head = subprocess.Popen(
                [sys.executable, "-m", "sentinel", "agent", "--run", RUN], stderr=log
            )
            run = Path(folder) / "home" / "runs" / RUN
            try:
                url = wait_for_agent_url(run / "agent.json")
            except SystemExit:
                print((Path(folder) / "head.log").read_text(), file=sys.stderr)
                raise
            started = time.monotonic() - began
            try:
                figures = observe(head.pid, url, run / "sentinel.db", (world, local), args)
            finally:
                head.terminate()
                head.wait(60.0)
        log = (Path(folder) / "head.log").read_text()
        if "Traceback" in log:
            print(log[-3000:], file=sys.stderr)
    return {**figures, "start_s": round(started, 1)}


def observe(
    pid: int, url: str, database: Path, size: tuple[int, int], args: argparse.Namespace
) -> dict[str, Any]:
    world, local = size
    mb_before_torch = resident_mb(pid)
    head_ranks = HeadRanks(world, local)
    seconds = args.warmup + args.seconds + 2.0
    first_nodes = np.linspace(1, world // local, SIMULATOR_COUNT + 1).astype(int).tolist()
    plans = [
        Plan(first, last, world, local, args.signals, args.pace, seconds, PORT, TOKEN, JOB)
        for first, last in pairwise(first_nodes)
    ]
    until_listening(PORT)
    simulators = [
        subprocess.Popen(
            [*LOW_PRIORITY_COMMAND, sys.executable, str(SIMULATOR_SCRIPT), plan.text()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for plan in plans if plan.first < plan.last
    ]  # fmt: skip
    begins = start_simulators(simulators, args.lead)
    training = Thread(target=head_ranks.train, args=(plans[0], begins))
    training.start()
    observer, warmup_ends = HeadObserver(database), begins + args.warmup
    while time.time() < warmup_ends:
        observer.poll()
        time.sleep(0.05)
    observer.delays.clear()
    load = os.getloadavg()[0]
    cpu_before, started, next_scrape, page = cpu_seconds(pid), time.monotonic(), 0.0, ""
    while (elapsed := time.monotonic() - started) < args.seconds:
        observer.poll()
        if elapsed >= next_scrape:
            page, next_scrape = read_metrics(url), next_scrape + SCRAPE_SECONDS
        time.sleep(0.05)
    cpu_used, elapsed = cpu_seconds(pid) - cpu_before, time.monotonic() - started
    megabytes, page = resident_mb(pid), read_metrics(url)
    training.join()
    reports = [
        json.loads(simulator.communicate(timeout=120.0)[0].splitlines()[-1])
        for simulator in simulators
    ]
    time.sleep(3.0)
    steps = stored_steps(observer.connection, RUN)
    sent = world * max(report["steps"] for report in reports)
    batches = sum(report["batches"] for report in reports)
    return {
        "ranks": world,
        "nodes": world // local,
        "signals": args.signals,
        "steps_a_second": 1.0 / args.pace,
        "cpu_percent": round(100 * cpu_used / elapsed, 1),
        "resident_mb": round(megabytes),
        "before_torch_mb": round(mb_before_torch),
        "delay_s_median": round(median(observer.delays), 2) if observer.delays else None,
        "delay_s_most": round(max(observer.delays), 2) if observer.delays else None,
        "steps": len(steps),
        "lost": sent - sum(count for _, count in steps),
        "refused": sum_family("sentinel_head_connection_rejected_total", page),
        "dropped": sum_family("sentinel_dropped_records_total", page),
        "firing": re.findall(FIRING_PATTERN, page, re.MULTILINE),
        "bytes_a_rank_and_step": round(
            sum(report["bytes"] for report in reports)
            / max(1, (world - local) * reports[0]["steps"])
        ),
        "batches_per_node_and_second": round(batches / (world / local - 1) / seconds, 2),
        "simulators_late_s": round(max(report["late"] for report in reports), 2),
        "load": round(load, 1),
    }


def start_simulators(simulators: list[subprocess.Popen[str]], lead: float) -> float:
    """Wait until all nodes are connected; the time of the first step, `lead` seconds from then."""
    for simulator in simulators:
        assert simulator.stdout
        if simulator.stdout.readline() != "connected\n":
            raise SystemExit("The simulated nodes could not connect to the head.")
    begins = time.time() + lead
    for simulator in simulators:
        assert simulator.stdin
        simulator.stdin.write(f"{begins!r}\n")
        simulator.stdin.flush()
    return begins


def until_listening(port: int) -> None:
    """Wait until the head's store is available."""
    deadline = time.monotonic() + JOIN_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise SystemExit(f"The head does not listen on port {port}.")


def sum_family(family: str, page: str) -> float:
    return sum(float(n) for n in re.findall(rf"^{family}\S* (\S+)$", page, re.MULTILINE))


def import_cost(modules: str, repeats: int) -> dict[str, float]:
    """Cost of importing these modules: MB resident, seconds of CPU."""
    reports = []
    for _ in range(repeats):
        completed = subprocess.run(
            [sys.executable, "-c", IMPORT_COST_CODE, modules], stdout=subprocess.PIPE, check=True
        )
        reports.append(json.loads(completed.stdout))
    return {name: round(median(report[name] for report in reports), 2) for name in reports[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1024])
    parser.add_argument("--local", type=int, nargs="+", default=[8])
    parser.add_argument("--signals", type=int, default=32)
    parser.add_argument("--pace", type=float, default=1.0, help="seconds per step")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--lead", type=float, default=15.0, help="seconds before the first step")
    parser.add_argument("--warmup", type=float, default=20.0, help="seconds not measured")
    parser.add_argument("--imports", type=int, default=3, help="repeats of an import")
    parser.add_argument("--anew", action="store_true", help="discard earlier results")
    args = parser.parse_args()
    enter_network_namespace()
    rows = [measure_fleet(world, local, args) for world in args.ranks for local in args.local]
    earlier = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() and not args.anew else []
    sizes = {(row["ranks"], row["nodes"]): row for row in [*earlier, *rows]}
    reports = [sizes[size] for size in sorted(sizes)]
    agent = {
        "alone": import_cost("sentinel.agent.main", args.imports),
        "torch": import_cost("sentinel.agent.main,torch.distributed", args.imports),
    }
    figures = {"rows": reports, "agent": agent}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(figures, indent=1) + "\n")
    print(fleet_table(figures), torch_table(figures), sep="\n\n")


if __name__ == "__main__":
    main()
