"""Cost of one `log()` of twenty numbers for the training thread, compared with other loggers.

    python benchmarks/overhead.py [--rounds 3] [--steps 1000] [--kills 120]
                                   [--loggers NAME ...]

Each logger runs in its own process, in shuffled order per round. `warm` logs in a tight loop;
`cold` sleeps two milliseconds and walks over four megabytes between two logs, as a training step
would. Times are CPU time of the calling thread (median and 99th percentile of all steps; median
over the rounds), less the cost of reading the clock. Instructions (valgrind) and system calls
(strace) are of the whole process, from the difference of two runs of different length, less a run
that logs nothing. Prints Markdown and writes results/overhead.json. Other loggers need
`benchmarks/requirements.txt`; those not installed are listed as missing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from loggers import LOGGERS, NAMES, PACKAGES

FOLDER = Path(__file__).parent
SHORT_RUN_STEPS, LONG_RUN_STEPS = 200, 1200
INSTRUCTION_LOGGERS = ("nothing", "copying 216 bytes", "sentinel", "prometheus_client")
"""Loggers of which instructions are counted: valgrind is too slow for the others."""


def run_logger(name: str, mode: str, steps: int) -> None:
    """Log `steps` times and print the times; `count` mode only logs."""
    directory = tempfile.mkdtemp()
    log, close = LOGGERS[name](directory)
    rows = [{key: step + at * 0.5 for at, key in enumerate(NAMES)} for step in range(16)]
    durations_us = [] if mode == "count" else time_logs(log, rows, mode, steps)
    for step in range(steps if mode == "count" else 0):
        log(step, dict(rows[step % 16]))
    if mode == "count":
        # Closing is not part of the cost of logging.
        os._exit(0)
    close()
    shutil.rmtree(directory, ignore_errors=True)
    sys.__stdout__.write("\n" + json.dumps(durations_us) + "\n")
    sys.__stdout__.flush()
    os._exit(0)


def time_logs(log: Any, rows: list[dict[str, float]], mode: str, steps: int) -> list[float]:
    """Microseconds of thread time of each log, after a tenth more as warm-up."""
    clock, cache_filler, durations_ns = time.thread_time_ns, bytearray(4 << 20), []
    clock_costs_ns = []
    for _ in range(1000):
        began = clock()
        clock_costs_ns.append(clock() - began)
    for step in range(steps + steps // 10):
        values = dict(rows[step % 16])
        if mode == "cold":
            time.sleep(0.002)
            cache_filler.count(1)
        began = clock()
        log(step, values)
        durations_ns.append(clock() - began)
    clock_cost_ns = statistics.median(clock_costs_ns)
    return [max(0.0, (ns - clock_cost_ns) / 1e3) for ns in durations_ns[steps // 10 :]]


def time_loggers(names: list[str], rounds: int, steps: int) -> dict[str, dict[str, float]]:
    """Median and 99th percentile, by logger, mode and figure."""
    results_by_logger: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    for round_number in range(rounds):
        jobs = [(name, mode) for name in names for mode in ("warm", "cold")]
        random.Random(round_number).shuffle(jobs)
        for name, mode in jobs:
            completed = run([sys.executable, __file__, "--child", name, mode, str(steps)])
            durations_us = sorted(json.loads(completed.stdout.strip().splitlines()[-1]))
            for figure, quantile in (("p50", 0.5), ("p99", 0.99)):
                value = durations_us[int(quantile * len(durations_us))]
                results_by_logger[name].setdefault(f"{mode} {figure}", []).append(value)
    return {
        name: {figure: statistics.median(values) for figure, values in figures.items()}
        for name, figures in results_by_logger.items()
    }


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(FOLDER.parent)}
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=300, check=False
    )


def instructions_per_log(name: str) -> float:
    """User instructions of one log, including the loop around it."""

    def count_total(steps: int) -> int:
        line = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable]
        completed = run([*line, __file__, "--child", name, "count", str(steps)])
        match = re.search(r"Collected : (\d+)", completed.stderr)
        assert match, completed.stderr[-500:]
        return int(match[1])

    return (count_total(LONG_RUN_STEPS) - count_total(SHORT_RUN_STEPS)) / (
        LONG_RUN_STEPS - SHORT_RUN_STEPS
    )


def system_calls_per_log(name: str) -> float:
    """System calls of one log, including all threads and children."""

    def count_total(steps: int) -> int:
        with tempfile.NamedTemporaryFile("r") as counts:
            line = ["strace", "-f", "-qq", "-c", "-o", counts.name, sys.executable]
            run([*line, __file__, "--child", name, "count", str(steps)])
            total = [text for text in counts.read().splitlines() if text.endswith("total")]
        return int(total[0].split()[3 if len(total[0].split()) > 4 else 2])

    return (count_total(LONG_RUN_STEPS) - count_total(SHORT_RUN_STEPS)) / (
        LONG_RUN_STEPS - SHORT_RUN_STEPS
    )


def import_cost() -> dict[str, Any]:
    """CPU milliseconds of `import sentinel`, and of everything the decorator loads."""
    lines = {
        "import sentinel": "import sentinel",
        "with all a trainer uses": "import sentinel; sentinel.monitor, sentinel.log",
    }
    code = "import time; began = time.process_time(); {}; print(time.process_time() - began)"
    return {
        label: min(
            float(run([sys.executable, "-c", code.format(line)]).stdout) * 1e3 for _ in range(10)
        )
        for label, line in lines.items()
    }


def kill_writers(number: int) -> dict[str, int]:
    """Kill writers at random times. Raises AssertionError if a record is lost or torn."""
    sys.path[:0] = [str(FOLDER.parent), str(FOLDER.parent / "tests")]
    from support.ring_writers import killed_writer

    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        acknowledged = sum(
            killed_writer(Path(directory) / f"{index}.ring") for index in range(number)
        )
    return {"kills": number, "acknowledged records": acknowledged, "lost": 0, "torn": 0}


def machine() -> dict[str, Any]:
    cpu = next(
        (s for s in Path("/proc/cpuinfo").read_text().splitlines() if s.startswith("model name")),
        "",
    )
    return {
        "cpu": cpu.partition(": ")[2],
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
    }


def table(results: dict[str, Any]) -> str:
    figures = ("warm p50", "warm p99", "cold p50", "cold p99", "system calls", "instructions")
    lines = [f"| logger | {' | '.join(figures)} |", "|---" * (len(figures) + 1) + "|"]
    for name, row in results["loggers"].items():
        cells = [f"{row[figure]:,.1f}" if figure in row else "-" for figure in figures]
        lines.append(f"| {name} {results['versions'].get(name, '')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=120)
    parser.add_argument("--times-only", action="store_true", help="no strace, no valgrind")
    parser.add_argument("--loggers", nargs="+", choices=list(LOGGERS), default=list(LOGGERS))
    parser.add_argument("--child", nargs=3)
    args = parser.parse_args()
    if args.child:
        run_logger(args.child[0], args.child[1], int(args.child[2]))
    missing = [name for name, package in PACKAGES.items() if find_spec(package) is None]
    names = [name for name in args.loggers if name not in missing]
    rows: dict[str, dict[str, float]] = time_loggers(names, args.rounds, args.steps)
    for name in reversed(names) if not args.times_only else ():
        if shutil.which("strace"):
            rows[name]["system calls"] = system_calls_per_log(name)
        if shutil.which("valgrind") and name in INSTRUCTION_LOGGERS:
            rows[name]["instructions"] = instructions_per_log(name)
    for figure in ("system calls", "instructions"):
        for row in rows.values():
            if figure in row and figure in rows["nothing"] and row is not rows["nothing"]:
                row[figure] -= rows["nothing"][figure]
    results = {
        "machine": machine(),
        "versions": {name: _version(package) for name, package in PACKAGES.items()},
        "missing": missing,
        "loggers": rows,
        "import, ms": import_cost(),
        "killed writers": kill_writers(args.kills),
    }
    (FOLDER / "results").mkdir(exist_ok=True)
    (FOLDER / "results" / "overhead.json").write_text(json.dumps(results, indent=1) + "\n")
    print(f"Microseconds of thread time for one log of {len(NAMES)} numbers\n\n{table(results)}")
    for label in ("missing", "import, ms", "killed writers", "machine"):
        print(f"\n{label}: {results[label]}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    main()
