"""How an agent catches up with full rings: what it loses, and how long it is silent.

    python benchmarks/catching_up.py [--ranks 8] [--steps 40000] [--signals 20] [--kill]

Real processes write `steps` records each into rings that are not read. With `--kill` one of them is
killed then. An agent starts, and its database is read every few milliseconds until it has the last
step. `lost` are records that the rings held when the agent started, and that it did not combine;
`overrun` are those that were overwritten before. `max_commit_gap_ms` is the longest time without a
commit, which is the longest turn of the agent's loop.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

WRITER = """
import sys, time
from sentinel.model.record import Event
from sentinel.transport.identity import Identity
from sentinel.transport.paths import ring_path
from sentinel.transport.record_codec import StepStamp, RecordEncoder, names_interval
from sentinel.transport.ring import RingWriter

rank, world, steps, signals = map(int, sys.argv[1:5])
ring = RingWriter(ring_path("behind", 0, rank), Identity("behind", 0, rank, rank, world, world))
encoder = RecordEncoder(ring.write, resend_after_bytes=names_interval(ring.capacity))
start = {"world_size": float(world), "local_world_size": float(world)}
encoder.write_event(Event.START, StepStamp(0, 0, time.time()), start)
names = ("loss", *(f"signal_{i}" for i in range(signals - 1)))
for step in range(1, steps + 1):
    values = (2.0, *(0.5 + i for i in range(signals - 1)))
    encoder.write_values(encoder.schema_for(names), StepStamp(step, step, time.time()), values)
    ring.publish_step(step, step, time.time())
print("ready", flush=True)
sys.stdin.readline()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--signals", type=int, default=20)
    parser.add_argument("--kill", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.environ |= {
            "SENTINEL_HOME": f"{folder}/home",
            "SENTINEL_RUNTIME_DIR": f"{folder}/rings",
            "SENTINEL_LINGER_SECONDS": "600",
        }
        print(json.dumps(measure(args, Path(folder)), indent=1))


def measure(args: argparse.Namespace, folder: Path) -> dict[str, float | str]:
    writers = []
    for rank in range(args.ranks):
        numbers = map(str, (rank, args.ranks, args.steps, args.signals))
        command = [sys.executable, "-c", WRITER, *numbers]
        writers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    if args.kill:
        writers[0].kill()
        writers[0].wait()
    agent = subprocess.Popen(
        [sys.executable, "-m", "sentinel", "agent", "--run", "behind"], stderr=subprocess.DEVNULL
    )
    directory = folder / "home" / "runs" / "behind"
    try:
        return follow(args, directory)
    finally:
        for process in (*writers, agent):
            process.terminate()
        for process in (*writers, agent):
            process.wait(60.0)


def follow(args: argparse.Namespace, directory: Path) -> dict[str, float | str]:
    wait_until((directory / "agent.json").exists)
    url = json.loads((directory / "agent.json").read_text())["url"]
    began = last_commit_at = time.monotonic()
    longest_gap, alert_after, last_step = 0.0, -1.0, 0
    connection = sqlite3.connect(f"file:{directory}/sentinel.db?mode=ro", uri=True)
    version = None
    while last_step < args.steps - 1:
        assert time.monotonic() - began < 600.0, f"no more than step {last_step}"
        (newest,) = connection.execute("pragma data_version").fetchone()
        now = time.monotonic()
        if newest != version:
            longest_gap = max(longest_gap, now - last_commit_at) if version else 0.0
            version, last_commit_at = newest, now
            query = "select coalesce(max(step), 0) from step where event = 'step'"
            (last_step,) = connection.execute(query).fetchone()
            if alert_after < 0.0:
                query = "select count(*) from incident where detector = 'run_died'"
                if connection.execute(query).fetchone()[0]:
                    alert_after = now - began
        time.sleep(0.003)
    caught_up_after = time.monotonic() - began
    text = urllib.request.urlopen(f"{url}/metrics", timeout=30.0).read().decode()
    dropped = {
        line.partition('reason="')[2].partition('"')[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("sentinel_dropped_records_total")
    }
    total = args.ranks * args.steps
    overrun = dropped.pop("overrun", 0.0)
    lost = sum(dropped.values())
    return {
        "ranks": args.ranks,
        "records": total,
        "overrun": overrun,
        "lost": lost,
        "lost_percent": round(100 * lost / (total - overrun), 2),
        "caught_up_after_s": round(caught_up_after, 1),
        "max_commit_gap_ms": round(1e3 * longest_gap),
        "death_found_after_s": round(alert_after, 2),
    }


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


if __name__ == "__main__":
    main()
