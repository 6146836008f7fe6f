"""Memory of an agent, and the size of its database, over a long run.

    python benchmarks/long_run.py [--steps 1000000] [--ranks 1] [--signals 20] [--max-mb 1024]

The steps go through the storage and detectors of an agent as fast as they can: one transaction per
`BATCH` steps, a heartbeat a second of the run (ten steps), a snapshot as in the agent, and slices
of thinning in between. At regular steps it prints resident memory (MB), the file with its journal
and snapshot (MB), bytes per step of the whole file, CPU time per step (ms), and the longest slice
of thinning (ms). Incidents open and resolve all along: the loss has a spike every 5,000 steps.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from sentinel.agent.processor import RunProcessor
from sentinel.config.settings import load_settings
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import RecordBatch, RecordOrBatch, pack_row
from sentinel.signals.hardware import NodeMeasurements
from sentinel.store.database import connect, transaction
from sentinel.store.retention import HistoryRetention

BATCH = 20
STEPS_PER_HEARTBEAT = 10
MAX_JOURNAL_BYTES = 2 << 20
SPIKE_EVERY = 5000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--signals", type=int, default=20)
    parser.add_argument("--max-mb", type=float, default=1024.0)
    parser.add_argument("--rows", type=int, default=20, help="Lines that are printed.")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SENTINEL_HOME"] = folder
        os.chdir(folder)
        run(args, Path(folder) / "sentinel.db")


def run(args: argparse.Namespace, path: Path) -> None:
    now = [1.7e9]
    settings = load_settings({"baselines": False, "history": {"max_mb": args.max_mb}})
    with closing(connect(path)) as connection:
        processor = RunProcessor(
            "long", path, connection, settings, Counters(), sinks={},
            read_node=NodeMeasurements, live_rings=list, clock=lambda: now[0],
        )  # fmt: skip
        processor.restore()
        retention = HistoryRetention(
            processor.history, settings.history.full_steps, int(args.max_mb * 2**20)
        )
        began, longest = time.process_time(), 0.0
        print("step      rss_MB  file_MB  B/step  ms/step  longest_slice_ms  incidents")
        for step in range(0, args.steps, BATCH):
            now[0] += BATCH / STEPS_PER_HEARTBEAT
            with transaction(connection, mode="immediate"):
                for entry in entries(step, args, now[0]):
                    processor.process(entry)
                processor.persist()
                if processor.journal.size >= MAX_JOURNAL_BYTES:
                    processor.snapshot()
            slice_began = time.perf_counter()
            retention.run_slice()
            longest = max(longest, time.perf_counter() - slice_began)
            if (step + BATCH) % max(BATCH, args.steps // args.rows // BATCH * BATCH) == 0:
                done = step + BATCH
                size = sum(each.stat().st_size for each in path.parent.glob("sentinel.db*"))
                ((incidents,),) = connection.execute("select count(*) from incident").fetchall()
                milliseconds = 1e3 * (time.process_time() - began) / done
                gc.collect()
                print(
                    f"{done:<9} {resident_mb():6.1f} {size / 1e6:8.1f} {size / done:7.0f} "
                    f"{milliseconds:8.2f} {1e3 * longest:17.1f} {incidents:10}",
                    flush=True,
                )
        processor.onset_worker.stop(120.0)


def entries(first: int, args: argparse.Namespace, now: float) -> Iterator[RecordOrBatch]:
    """What the ranks and the agent's own source would give for `BATCH` steps."""
    if first == 0:
        for rank in range(args.ranks):
            start = {"world_size": float(args.ranks), "local_world_size": float(args.ranks)}
            yield Record("long", rank, 0, now, Event.START, start)
    known = ("loss", "grad_norm", "step_time", "reward", "kl_ref", "learning_rate")
    names = (*known, *(f"signal_{n}" for n in range(args.signals - len(known))))
    for step in range(first + 1, first + BATCH + 1):
        matrix = b"".join(pack_row(values(step, names)) for _ in range(args.ranks))
        ranks = tuple(range(args.ranks))
        batch = RecordBatch(
            "long", 0, step, step, names, ranks, (now,) * len(ranks), (step,) * len(ranks), matrix
        )
        yield from [batch] if args.ranks > 1 else batch.records()
        if step % STEPS_PER_HEARTBEAT == 0:
            alive = {"ranks_running": float(args.ranks), "idle_seconds": 0.0, "host_cpu": 0.5}
            yield Record("long", WHOLE_RUN, step, now, Event.HEARTBEAT, alive, {"state": "running"})


def values(step: int, names: tuple[str, ...]) -> tuple[float, ...]:
    noise = [random.gauss(1.0, 0.05) for _ in names]
    noise[0] *= 2.0 + (20.0 if step % SPIKE_EVERY in {1, 2, 3} else 0.0)
    return tuple(noise)


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    main()
