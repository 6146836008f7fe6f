"""One table: what sentinel costs beside other tools and beside the least that a task takes.

    python benchmarks/comparison.py [--quick] [--only GROUP ...] [--json FILE]

Each figure is measured in a process of its own. Within a round the tools alternate in random
order, so that other load of the machine affects all of them. A figure is the median of the rounds;
a ratio is the median of the ratios of each round. Times are processor time, user and system. A
*floor* is the least that the task takes; its cell names it. Prints Markdown; `--json` also writes
the figures of all rounds. `--quick` is a trial of this program in 10 s, not a measurement: it has
the smallest sizes, and the cells of slow measurements are `not in --quick`.

Counts of instructions need valgrind, those of system calls strace. The other tools are test
dependencies of this repository; one that is missing is shown as `not installed`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from array import array
from collections.abc import Callable, Collection
from contextlib import closing, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

from instructions import count_between_markers
from loggers import LOGGERS, NAMES, mlflow_environ

FOLDER = Path(__file__).parent
OURS = "sentinel"
PEERS = {
    "wandb": "wandb",
    "trackio": "trackio",
    "TensorBoard": "tensorboard",
    "mlflow": "mlflow",
    "prometheus_client": "prometheus_client",
}
"""The module of each tool. Every other name is that of a floor."""
DISTRIBUTIONS = {"mlflow": "mlflow-skinny"}
MODULES = PEERS | {"orjson": "orjson"}
PACKED = "packed into memory"
WARM_UP_CALLS = 100
LIST_RUNS = {
    OURS: ("-P", "-m", "sentinel", "status"),
    "wandb": ("-m", "wandb", "status"),
    "trackio": ("-m", "trackio.cli", "list", "projects"),
    "TensorBoard": ("-m", "tensorboard.main", "--inspect", "--logdir", "."),
    "mlflow": ("-m", "mlflow", "experiments", "search"),
}

Measure = Callable[[Path], list[float]]


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rounds: int = 3
    calls: int = 1000
    counted_calls: int = 400
    ranks: tuple[int, ...] = (1, 8, 64)
    agent_steps: int = 400
    lines: int = 100_000
    series: int = 20_000
    scrapes: int = 20
    starts: int = 3
    requests: int = 20
    is_quick: bool = False


QUICK = Size(1, 20, 20, (1,), 20, 100, 2000, 2, 1, 1, is_quick=True)


@dataclass(frozen=True)
class Group:
    """Rows that are measured together: a figure for each, by tool or floor.

    `prepare` runs once and writes what all of them read. A group that counts needs `program` on
    PATH, and a second round would give the same figures.
    """

    rows: tuple[str, ...]
    unit: str
    measures: dict[str, Measure]
    prepare: Callable[[Path], None] | None = None
    program: str = ""
    slow: Collection[str] = ()
    """Which tools take long to start."""


@dataclass
class Row:
    """The figures of one row by tool or floor, one of each round, or why there are none."""

    what: str
    unit: str
    figures: dict[str, list[float]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def least(self, names: Collection[str]) -> str:
        """Which of these has the least median; empty if none has figures."""
        known = [name for name in names if name in self.figures]
        return min(known, key=lambda name: statistics.median(self.figures[name]), default="")

    def floors(self) -> list[str]:
        """The names of its floors."""
        names = [*self.figures, *self.reasons]
        return [name for name in names if name != OURS and name not in PEERS]

    def ratio(self, names: Collection[str]) -> float | None:
        """Median of sentinel over the least of these in the same round; None without figures."""
        ours, theirs = (self.figures.get(name, []) for name in (OURS, self.least(names)))
        if not ours or not theirs or not all(theirs):
            return None
        return statistics.median(x / y for x, y in zip(ours, theirs, strict=True))


def groups(size: Size) -> dict[str, Group]:
    """What is measured."""
    counted = {name: partial(instructions_of_log, name, size) for name in COUNTED_LOGGERS}
    return {
        "log": Group(
            (
                "`log()` of 20 floats",
                "the same, 99th percentile",
                "the same, caches cold as after a step",
                "`log()` of 1 float",
                "`log()` of 20 NumPy scalars",
            ),
            "µs, training thread",
            {name: partial(time_logger, name, size) for name in LOGGERS},
        ),
        "instructions": Group(
            ("`log()` of 20 floats",), "instructions", counted, program="valgrind"
        ),
        "calls": Group(
            ("`log()` of 20 floats, all threads and children",),
            "system calls",
            {name: partial(system_calls_of_log, name, size) for name in LOGGERS},
            program="strace",
        ),
        "patches": Group(
            ("a step of a tiny PyTorch model, all patches",),
            "instructions",
            {
                OURS: partial(stored_count, 1),
                "the same step alone": partial(stored_count, 0),
            },
            partial(count_step, size),
            "valgrind",
        ),
        "agent": Group(
            tuple(f"agent: a step of 25 signals, ranks: {ranks}" for ranks in size.ranks),
            "ms",
            {OURS: partial(agent_steps, size), "an sqlite insert": partial(inserts, size)},
        ),
        "metrics": Group(
            (f"`/metrics` of {size.series:,} series",),
            "ms",
            {
                OURS: partial(render, size),
                "prometheus_client": partial(render_gauges, size),
                "formatting the numbers": partial(format_numbers, size),
            },
        ),
        "replay": Group(
            (f"`replay` of {size.lines:,} steps of 20 signals",),
            "s",
            {OURS: replay_log, "json": parse_log, "orjson": parse_log_with_orjson},
            partial(write_replayed, size),
        ),
        "run": Group(
            ("`sentinel run -- python -c pass`",),
            "ms",
            {
                OURS: partial(start, "run", size),
                "python -c pass": partial(start, "nothing", size),
            },
        ),
        "status": Group(
            ("list the runs of an empty home: `status`",),
            "ms",
            {
                **{name: partial(start, name, size) for name in LIST_RUNS},
                "python -c pass": partial(start, "nothing", size),
            },
            slow=PEERS,
        ),
        "page": Group(
            (
                f"page: start of the server, and all charts of {size.lines:,} steps of 20 signals",
                "the same charts again",
                "the same from a second start of the server on",
            ),
            "ms",
            {
                **{name: partial(serve, name, size) for name in (OURS, "trackio", "TensorBoard")},
                "1,000 means as JSON": partial(answer_charts, size),
            },
            partial(write_pages, size),
            slow=PEERS,
        ),
    }


def time_logger(name: str, size: Size, folder: Path) -> list[float]:
    """Microseconds of thread time of one log of each kind."""
    import numpy as np

    log, close = LOGGERS[name](tempfile.mkdtemp(dir=folder))
    floats = {key: at * 0.5 for at, key in enumerate(NAMES)}
    warm = durations_us(log, floats, size.calls)
    cold = durations_us(log, floats, size.calls // 2, is_cold=True)
    single = durations_us(log, {NAMES[0]: 0.5}, size.calls)
    scalars = {key: np.float64(value) for key, value in floats.items()}
    of_numpy = durations_us(log, scalars, size.calls)
    close()
    p99 = sorted(warm)[int(0.99 * len(warm))]
    median = statistics.median
    return [median(warm), p99, median(cold), median(single), median(of_numpy)]


_steps = iter(range(1 << 60))


def durations_us(
    log: Callable[[int, dict[str, float]], None],
    row: dict[str, float],
    calls: int,
    *,
    is_cold: bool = False,
) -> list[float]:
    """Microseconds of each call but the first tenth, less those of reading the clock.

    Before a cold call the thread sleeps and walks over four megabytes, as a training step would.
    """
    clock, cache_filler, durations = time.thread_time_ns, bytearray(4 << 20), list[int]()
    readings = [clock() for _ in range(1001)]
    cost_ns = statistics.median(b - a for a, b in pairwise(readings))
    for _ in range(calls + calls // 10):
        values = {name: value + 1 for name, value in row.items()}
        if is_cold:
            time.sleep(0.002)
            cache_filler.count(1)
        step = next(_steps)
        began = clock()
        log(step, values)
        durations.append(clock() - began)
    return [max(0.0, (ns - cost_ns) / 1e3) for ns in durations[calls // 10 :]]


COUNTED_LOGGERS = (OURS, "prometheus_client", PACKED)
"""Valgrind takes minutes to start the others."""


def log_only(name: str, calls: int, folder: str) -> None:
    """Log that often between two markers, then the loop alone between two others, and end."""
    log, _ = LOGGERS[name](folder)
    row = {key: at * 0.5 for at, key in enumerate(NAMES)}
    for each in (log, lambda _step, _values: None):
        for count in (WARM_UP_CALLS, calls):
            os.getppid()
            for _ in range(count):
                each(next(_steps), dict(row))
    os.getppid()
    if name == OURS:
        shutil.rmtree(os.environ["SENTINEL_RUNTIME_DIR"])
    # Closing is not part of the cost of logging.
    os._exit(0)


def instructions_of_log(name: str, size: Size, folder: Path) -> list[float]:
    """User instructions of one log."""
    arguments = ("--log", name, str(size.counted_calls), str(folder))
    _, logs, _, loops = count_between_markers(__file__, *arguments)[:4]
    return [(logs - loops) / size.counted_calls]


def system_calls_of_log(name: str, size: Size, folder: Path) -> list[float]:
    """System calls of one log, from the difference of two runs."""
    counts = list[int]()
    for calls in (size.counted_calls, 3 * size.counted_calls):
        scratch, table = tempfile.mkdtemp(dir=folder), folder / "calls"
        command = ["strace", "-f", "-qq", "-c", "-U", "calls,name", "-o", str(table)]
        command += [sys.executable, __file__, "--log", name, str(calls), scratch]
        subprocess.run(command, check=True)
        lines = table.read_text().splitlines()
        counts += [int(line.split()[0]) for line in lines if line.endswith("total")]
    return [max(0.0, (counts[1] - counts[0]) / (2 * size.counted_calls))]


def count_step(size: Size, folder: Path) -> None:
    """Count a step without and with the monitor."""
    from patches import step_instructions

    (folder / "counts.json").write_text(json.dumps(step_instructions(size.counted_calls)))


def stored_count(at: int, folder: Path) -> list[float]:
    """What `count_step` counted."""
    return [json.loads((folder / "counts.json").read_text())[at]]


def agent_steps(size: Size, _folder: Path) -> list[float]:
    """Milliseconds of a step in the loop of the agent, by number of ranks."""
    from agent_steps import agent_costs

    return [agent_costs(ranks, size.agent_steps, None)[0] for ranks in size.ranks]


def inserts(size: Size, folder: Path) -> list[float]:
    """Milliseconds of storing the numbers of all ranks of a step in one transaction."""
    costs = []
    path = Path(tempfile.mkdtemp(dir=folder)) / "steps.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma journal_mode=wal")
        connection.execute("pragma synchronous=normal")
        connection.execute("create table steps (step integer primary key, numbers blob)")
        for ranks in size.ranks:
            numbers, durations = [0.5] * 25 * ranks, []
            for _ in range(size.agent_steps):
                began = time.thread_time()
                row = (next(_steps), array("d", numbers).tobytes())
                connection.execute("insert into steps values (?, ?)", row)
                durations.append(time.thread_time() - began)
            costs.append(1e3 * statistics.median(durations))
    return costs


def median_ms(call: Callable[[], object], times: int) -> float:
    """Milliseconds of thread time of a call that was made once before."""
    call()
    durations = []
    for _ in range(times):
        began = time.thread_time()
        call()
        durations.append(time.thread_time() - began)
    return 1e3 * statistics.median(durations)


def render(size: Size, _folder: Path) -> list[float]:
    """A scrape of the agent, for as many series."""
    from exposition import exposition

    from sentinel.metrics.encoder import MetricsEncoder

    registry, encoder = exposition(size.series // 3).registry, MetricsEncoder()
    page, _ = encoder.encode("", registry)
    found = sum(not line.startswith(b"#") for line in page.splitlines())
    return [median_ms(lambda: encoder.encode("", registry), size.scrapes) * size.series / found]


def render_gauges(size: Size, _folder: Path) -> list[float]:
    """A scrape of three gauges with a series for each rank."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()
    for number in range(3):
        gauge = Gauge(f"sentinel_rank_{number}", "One value a rank.", ["rank"], registry=registry)
        for rank in range(size.series // 3):
            gauge.labels(rank).set(rank * 0.5)
    found = size.series // 3 * 3
    return [median_ms(lambda: generate_latest(registry), size.scrapes) * size.series / found]


def format_numbers(size: Size, _folder: Path) -> list[float]:
    """The text of each number behind a ready text."""
    series = [(f'sentinel_rank_up{{rank="{at}"}} ', at * 0.5) for at in range(size.series)]

    def join() -> bytes:
        return "".join([f"{text}{number!r}\n" for text, number in series]).encode()

    return [median_ms(join, size.scrapes)]


def write_replayed(size: Size, folder: Path) -> None:
    """The log that is replayed."""
    from engine import write_log

    write_log(folder / "log.jsonl", size.lines)


def replay_log(folder: Path) -> list[float]:
    """Seconds of `sentinel replay --json` without its start."""
    from sentinel.cli.replay import replay

    began = time.process_time()
    with redirect_stdout(StringIO()):
        replay(folder / "log.jsonl", json=True)
    return [time.process_time() - began]


def parse_log(folder: Path, loads: Callable[[bytes], object] = json.loads) -> list[float]:
    """Seconds of parsing each line."""
    began = time.process_time()
    with (folder / "log.jsonl").open("rb") as file:
        for line in file:
            loads(line)
    return [time.process_time() - began]


def parse_log_with_orjson(folder: Path) -> list[float]:
    """Seconds of parsing each line with orjson."""
    import orjson

    return parse_log(folder, orjson.loads)


def start(name: str, size: Size, folder: Path) -> list[float]:
    """Milliseconds of a command and of all that it starts: the least of a few."""
    from start import COMMANDS, become_subreaper, run_command

    scratch = tempfile.mkdtemp(dir=folder)
    os.environ |= mlflow_environ(scratch)
    os.environ |= {"TRACKIO_DIR": scratch, "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
    become_subreaper()
    command = LIST_RUNS.get(name) or COMMANDS[name]
    return [1e3 * min(run_command(command) for _ in range(size.starts))]


def write_pages(size: Size, folder: Path) -> None:
    """The same run for each server."""
    from pages import TOOLS
    from support.stored_homes import long_rows

    rows = [*long_rows(size.lines, 20)]
    for tool in TOOLS:
        is_slow = size.is_quick and tool.name in PEERS
        if not is_slow and (tool.name == OURS or find_spec(PEERS[tool.name])):
            tool.write(folder, rows)
    (folder / "names.json").write_text(json.dumps([*rows[0]]))
    for at, name in enumerate(rows[0]):
        (folder / f"{at}.f64").write_bytes(array("d", [row[name] for row in rows]))


def serve(name: str, size: Size, folder: Path) -> list[float]:
    """Milliseconds of a server and its children until all charts were answered, and again.

    Then those of another server.
    """
    from pages import TOOLS, cpu_seconds, request_series, server

    (tool,) = (tool for tool in TOOLS if tool.name == name)
    names = json.loads((folder / "names.json").read_text())
    for stored in folder.glob("home/runs/*/*.series"):
        stored.unlink()
    with server(tool, folder) as (url, process, _):
        request_series(tool, url, names, size.lines)
        first = cpu_seconds(process)
        for _ in range(size.requests):
            request_series(tool, url, names, size.lines)
        again = (cpu_seconds(process) - first) / size.requests
    with server(tool, folder) as (url, process, _):
        request_series(tool, url, names, size.lines)
        return [1e3 * first, 1e3 * again, 1e3 * cpu_seconds(process)]


def answer_charts(size: Size, folder: Path) -> list[float]:
    """Milliseconds of reading the columns, and of answering with the means of a thousand parts."""
    import numpy as np

    began = time.process_time()
    columns = [np.fromfile(path) for path in folder.glob("*.f64")]
    means = [
        [part.mean() for part in np.array_split(each, min(1000, len(each)))] for each in columns
    ]
    charts = [[*map(float, each)] for each in means]
    json.dumps(charts)
    first = time.process_time() - began
    return [1e3 * first, median_ms(lambda: json.dumps(charts), size.requests), 1e3 * first]


def measure(group: Group, size: Size) -> list[Row]:
    """All rows of a group. Raises ChildProcessError if sentinel or a floor fails."""
    rows = [Row(what, group.unit) for what in group.rows]
    reasons = {name: unavailable(name, group, size) for name in group.measures}
    names = [name for name, reason in reasons.items() if not reason]
    with tempfile.TemporaryDirectory(prefix="sentinel-bench-") as scratch:
        folder = Path(scratch)
        if names and group.prepare:
            in_own_process(partial(group.prepare, folder), folder)
        for at in range(1 if group.program else size.rounds):
            for name in random.Random(at).sample(names, len(names)):
                print(f"{group.rows[0]}: {name}", file=sys.stderr)
                try:
                    values = in_own_process(partial(group.measures[name], folder), folder)
                except ChildProcessError as error:
                    if name not in PEERS:
                        raise
                    print(error, file=sys.stderr)
                    reasons[name] = "failed"
                    names.remove(name)
                    continue
                for row, value in zip(rows, values, strict=True):
                    row.figures.setdefault(name, []).append(value)
    for row in rows:
        row.reasons = {name: reason for name, reason in reasons.items() if reason}
        row.figures = {name: row.figures[name] for name in names}
    return rows


def unavailable(name: str, group: Group, size: Size) -> str:
    """Why this is not measured, if so."""
    if name in MODULES and find_spec(MODULES[name]) is None:
        return "not installed"
    if group.program and shutil.which(group.program) is None:
        return f"no {group.program}"
    if size.is_quick and (group.program or name in group.slow):
        return "not in --quick"
    return ""


def in_own_process(call: Callable[[], Any], folder: Path) -> Any:
    """The result of the call in a fork of this process; a ChildProcessError has its output."""
    fork, output = multiprocessing.get_context("fork"), folder / "output"
    receiver, sender = fork.Pipe(duplex=False)

    def run() -> None:
        with output.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        try:
            sender.send((call(), ""))
        except Exception:
            sender.send((None, traceback.format_exc()))

    process = fork.Process(target=run)
    process.start()
    sender.close()
    try:
        result, error = receiver.recv()
    except EOFError:
        result, error = None, "The process ended early.\n"
    process.join()
    if error:
        raise ChildProcessError(f"{error}{output.read_text()}")
    return result


def markdown(rows: list[Row]) -> str:
    """The table."""
    columns = ["what", "unit", OURS, *PEERS, "floor", "of best peer", "of floor"]
    lines = [f"| {' | '.join(columns)} |", f"|---|---|{'---:|' * (len(columns) - 2)}"]
    for row in rows:
        floors = [f"{cell(row, name)} ({name})" for name in row.floors()]
        ratios = (row.ratio(PEERS), row.ratio(row.floors()))
        cells = [row.what, row.unit, f"**{cell(row, OURS)}**", *(cell(row, name) for name in PEERS)]
        cells += [", ".join(floors) or "-", *("-" if x is None else number(x) for x in ratios)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(row: Row, name: str) -> str:
    """The figure, or why there is none; a dash if the row has no task for this tool."""
    if name in row.figures:
        return number(statistics.median(row.figures[name]))
    return row.reasons.get(name, "-")


def number(value: float) -> str:
    """Two significant digits, or three above ten."""
    if value >= 100:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}" if value >= 10 else f"{value:.2g}"


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    installed = [name for name, module in PEERS.items() if find_spec(module)]
    return {
        "cpu": next(iter(models), platform.machine()),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": {name: version(DISTRIBUTIONS.get(name, name.lower())) for name in installed},
    }


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="smallest sizes: no measurement")
    parser.add_argument("--only", nargs="+", choices=list(groups(QUICK)), metavar="GROUP")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rounds")
    parser.add_argument("--log", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.log:
        log_only(args.log[0], int(args.log[1]), args.log[2])
    size = QUICK if args.quick else Size()
    before, rows = machine(), list[Row]()
    for name, group in groups(size).items():
        if not args.only or name in args.only:
            rows += measure(group, size)
    versions = ", ".join(f"{name} {found}" for name, found in before["versions"].items())
    print(f"{before['cores']} cores of {before['cpu']}, Python {before['python']}, {versions}.")
    print(f"Load average {before['load']} before and {os.getloadavg()[0]:.1f} after.\n")
    print(markdown(rows))
    if args.json:
        contents = [
            {
                "what": row.what,
                "unit": row.unit,
                "medians": {name: statistics.median(each) for name, each in row.figures.items()},
                "rounds": row.figures,
                "missing": row.reasons,
                "best peer": row.least(PEERS),
                "ratio to the best peer": row.ratio(PEERS),
                "ratio to the floor": row.ratio(row.floors()),
            }
            for row in rows
        ]
        args.json.write_text(json.dumps({"machine": before, "rows": contents}, indent=1) + "\n")


if __name__ == "__main__":
    main()
