"""CPU and memory of one agent, and the delay from `log()` to `/metrics`.

    python benchmarks/agent.py [--ranks 8] [--rate 10] [--signals 20] [--seconds 30]

Real writers fill real rings with `rate` records per second each; the agent's CPU time and memory
are read from /proc before and after. With `--ranks 0` it waits for a run. `alerts` counts firing
alerts: an alert loads the libraries that date its onset, which raises the memory. The delay is from
writing the newest step until it is on `/metrics`, sampled; it includes the half second for which a
step waits for further records.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

from sentinel.model.record import Event
from sentinel.store.history import History

WRITER = """
import random, sys, time
from sentinel.model.record import Event
from sentinel.transport.identity import Identity
from sentinel.transport.record_codec import StepStamp, RecordEncoder
from sentinel.transport.paths import ring_path
from sentinel.transport.ring import RingWriter

rank, world, signals = map(int, sys.argv[1:4])
rate, until = float(sys.argv[4]), time.time() + float(sys.argv[5])
ring = RingWriter(ring_path("bench", 0, rank), Identity("bench", 0, rank, rank, world, world))
encoder = RecordEncoder(ring.write)
encoder.write_event(Event.START, StepStamp(0, 0, time.time()), {"local_world_size": float(world)})
schema, step = encoder.schema_for(("kl", "reward", *(f"signal_{i}" for i in range(signals - 2)))), 0
while time.time() < until:
    step, now = step + 1, time.time()
    noise = [random.gauss(0.0, 0.1) for _ in range(signals)]
    levels = (0.01, step / 300, *(1.0 + i for i in range(signals - 2)))
    values = tuple(x + abs(x) * error for x, error in zip(levels, noise))
    encoder.write_values(schema, StepStamp(step, step, now), values)
    ring.publish_step(step, step, now)
    time.sleep(1.0 / rate)
stamp = StepStamp(step, step, time.time())
encoder.write_event(Event.STOP, stamp, attributes={"outcome": "finished"})
"""

CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
AGENT_START_SECONDS = 240.0
"""An agent starts within a second; a busy machine takes longer."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rate", type=float, default=10.0)
    parser.add_argument("--signals", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            "SENTINEL_HOME": f"{folder}/home",
            "SENTINEL_RUNTIME_DIR": f"{folder}/rings",
        }
        result = measure_agent(args, Path(folder))
    print(json.dumps(result, indent=2))


def measure_agent(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    agent = subprocess.Popen(
        [sys.executable, "-m", "sentinel", "agent", "--run", "bench"], stderr=subprocess.DEVNULL
    )
    url = wait_for_agent_url(folder / "home" / "runs" / "bench" / "agent.json")
    numbers = (args.ranks, args.signals, args.rate, args.seconds + 4.0)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(rank), *map(str, numbers)])
        for rank in range(args.ranks)
    ]
    time.sleep(3.0)
    began, cpu_before = time.monotonic(), cpu_seconds(agent.pid)
    delays = []
    while time.monotonic() - began < args.seconds:
        time.sleep(0.5)
        if writers:
            delays.append(step_delay_seconds(url))
    share = (cpu_seconds(agent.pid) - cpu_before) / (time.monotonic() - began)
    megabytes, alerts = resident_mb(agent.pid), count_firing_alerts(url)
    for writer in writers:
        writer.wait(60.0)
    # It lingers: on a busy machine the last request may follow the end of the ranks.
    agent.terminate()
    agent.wait(60.0)
    return {
        "ranks": args.ranks,
        "records_per_second": args.ranks * args.rate,
        "signals": args.signals,
        "agent_percent_of_a_core": round(100 * share, 2),
        "agent_resident_mb": round(megabytes, 1),
        "alerts": alerts,
        **({"delay_ms_p50": round(1e3 * statistics.median(delays))} if delays else {}),
        **({"delay_ms_max": round(1e3 * max(delays))} if delays else {}),
    }


def wait_for_agent_url(registration_file: Path) -> str:
    deadline = time.monotonic() + AGENT_START_SECONDS
    while not registration_file.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"The agent did not come up within {AGENT_START_SECONDS:.0f} s.")
        time.sleep(0.05)
    return str(json.loads(registration_file.read_text())["url"])


def wait_for_end(pid: int) -> None:
    """Wait until an agent, which is no child of this process, has ended."""
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.05)


def stored_steps(connection: sqlite3.Connection, run: str) -> list[tuple[int, int]]:
    """Number of each stored step, and how many ranks are in the spread of its first signal."""
    return [
        (record.step, next(iter(record.spread.values())).count)
        for record in History(connection).records(run)
        if record.event is Event.STEP and record.spread
    ]


def read_metrics(url: str) -> str:
    # On a busy machine an answer may take long; the agent has a low priority.
    return str(urllib.request.urlopen(f"{url}/metrics", timeout=60.0).read().decode())


def count_firing_alerts(url: str) -> int:
    return len(re.findall(r"^sentinel_alert_firing\S* 1\.0$", read_metrics(url), re.MULTILINE))


def step_delay_seconds(url: str) -> float:
    pattern = r"^sentinel_last_step_timestamp_seconds\S* (\S+)$"
    newest = re.search(pattern, read_metrics(url), re.MULTILINE)
    return time.time() - float(newest[1]) if newest else float("nan")


def processes(pid: int) -> list[int]:
    """A process and its children: that of the message store, if there are several nodes."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and its children."""
    texts = [Path(f"/proc/{each}/stat").read_text() for each in processes(pid)]
    rows = [text.rpartition(")")[2].split() for text in texts]
    return sum(int(row[11]) + int(row[12]) for row in rows) / CLOCK_TICKS_PER_SECOND


def resident_mb(pid: int) -> float:
    """Resident memory of a process and its children."""
    texts = [Path(f"/proc/{each}/statm").read_text() for each in processes(pid)]
    return sum(int(text.split()[1]) for text in texts) * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    main()
