"""Time and memory of reading a run for its page: a run of 100,000 steps, 64 ranks and 20 signals.

    python benchmarks/run_page.py [--steps 100000] [--ranks 64] [--repeats 5] [--keep FILE]

It writes the database of a run through the history of an agent, and prints, in milliseconds of CPU
time (median of `--repeats`; the first read is measured once per repeat, with a new reader):

    first        all series, read from the database; the second figure is per row, in microseconds
    again        all series, with no new row, and after ten new rows
    zoom         a tenth and a hundredth of the steps, of one signal and of all
    ranks        the heat map of one signal: the first, and again
    memory       what the cache takes (MB, by tracemalloc), and the growth of the process
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import statistics
import tempfile
import time
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from sentinel.aggregate.combine import RANK_VALUE_SIGNALS, compute_spread
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.engine import Result
from sentinel.store.database import connect, transaction
from sentinel.store.history import History
from sentinel.store.run_reader import RunReader

SIGNALS = (
    "loss", "reward", "kl_ref", "entropy", "completion_length", "grad_norm", "learning_rate",
    "step_time", "reward_std", "clip_fraction", "policy_loss", "value_loss", "advantage_mean",
    "data_wait", "tokens", "compute_time", "my/metric_0", "my/metric_1", "my/metric_2",
    "my/metric_3",
)  # fmt: skip
TEMPLATES = 256
STEPS_PER_COMMIT = 1000
STEPS_PER_HEARTBEAT = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="Database to use, written if it is missing.")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.keep or Path(folder) / "sentinel.db"
        if not path.exists():
            write_run(path, args.steps, args.ranks)
        print(f"database  {path.stat().st_size / 2**20:.0f} MB")
        measure(path, args.steps, args.repeats)


def write_run(path: Path, steps: int, ranks: int, first: int = 1) -> None:
    """Append a run whose values repeat: their number is what takes time to read."""
    templates = [*make_templates(ranks)]
    with closing(connect(path)) as connection:
        history = History(connection)
        for start in range(first, first + steps, STEPS_PER_COMMIT):
            with transaction(connection):
                for step in range(start, min(start + STEPS_PER_COMMIT, first + steps)):
                    record = replace(templates[step % TEMPLATES], step=step, time=1.7e9 + step / 2)
                    history.update(Result(record))
                    if step % STEPS_PER_HEARTBEAT == 0:
                        values = {"host_cpu": 0.5, "gpu_utilisation": 0.9}
                        history.update(
                            Result(replace(record, event=Event.HEARTBEAT, values=values, spread={}))
                        )


def make_templates(ranks: int) -> Iterator[Record]:
    source = random.Random(1)
    for _ in range(TEMPLATES):
        values, spread = {}, {}
        for name in SIGNALS:
            # Devices compute in float32.
            of_ranks = [*array("f", (source.gauss(1.0, 0.1) for _ in range(ranks)))]
            keeps = name in RANK_VALUE_SIGNALS
            spread[name] = compute_spread(range(ranks), of_ranks, keep_values=keeps)
            values[name] = spread[name].mean
        yield Record("run", WHOLE_RUN, 0, 0.0, Event.STEP, values, {}, spread)


def measure(path: Path, steps: int, repeats: int) -> None:
    first = [timed(lambda: RunReader(path).series(SIGNALS)) for _ in range(repeats)]
    report("first", first, f"{statistics.median(first) / steps * 1e6:.1f} us per row")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    reader = RunReader(path)
    reader.series(SIGNALS)
    gc.collect()
    cache = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    report("again, no new row", repeated(lambda: reader.series(SIGNALS), repeats))
    news = []
    for at in range(repeats):
        write_run(path, 10, 64, steps + 1 + 10 * at)
        news.append(timed(lambda: reader.series(SIGNALS)))
    report("again, 10 new rows", news)
    for share in (10, 100, 1000):
        width = steps // share
        start, end = steps // 2, steps // 2 + width
        for names in (SIGNALS[:1], SIGNALS[8:9], SIGNALS):
            title = f"zoom 1/{share}, {names[0] if len(names) == 1 else len(names)}"
            found = reader.series(names, start=start, end=end)["series"][names[0]]
            times = repeated(lambda: reader.series(names, start=start, end=end), repeats)  # noqa: B023
            report(title, times, f"{len(found['x'])} points")
    grids = [timed(lambda: RunReader(path).rank_grid("step_time")) for _ in range(min(2, repeats))]
    report("ranks, first", grids)
    report("ranks, again", repeated(lambda: reader.rank_grid("step_time"), repeats))
    report("rows since", repeated(lambda: reader.rows_since(steps - 10), repeats))
    report("signals", repeated(reader.signals, repeats))
    report("timeline", repeated(reader.timeline, repeats))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"memory    cache {cache / 2**20:.1f} MB, peak of the process +{peak / 1024:.0f} MB")


def repeated(call: Callable[[], object], repeats: int) -> list[float]:
    call()
    return [timed(call) for _ in range(repeats)]


def timed(call: Callable[[], object]) -> float:
    """CPU seconds of the call."""
    began = time.process_time()
    call()
    return time.process_time() - began


def report(title: str, seconds: list[float], note: str = "") -> None:
    print(f"{title:<24} {statistics.median(seconds) * 1000:8.1f} ms  {note}", flush=True)


if __name__ == "__main__":
    main()
