"""Time, memory and size of a report of a long run.

    python benchmarks/report.py [--steps 100000] [--ranks 64] [--signals 20] [--runs 1] [--trials 3]

A run of that size is written into a temporary home. Each trial is a process of its own, as for a
user: `sentinel report`. Printed are the seconds, the processor seconds and the peak of the resident
memory (MB) of each trial, the size of the file, and that of everything in it but the chart library.
With `--runs 2` the runs are compared.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.stored_homes import long_rows, write_long_run  # noqa: E402

from sentinel.web.report_page import read_plotly  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--signals", type=int, default=20)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--trials", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        names = [f"long-{number}" for number in range(options.runs)]
        for name in names:
            rows = long_rows(options.steps, options.signals)
            write_long_run(home, name, rows, ranks=options.ranks)
        output = home / "report.html"
        seconds = [measure(home, names, output) for _ in range(options.trials)]
        total, library = output.stat().st_size, len(read_plotly().encode())
        print(f"median {statistics.median(seconds):.1f} s of {options.trials} trials")
        print(f"file {total / 1e6:.2f} MB, beside the library {(total - library) / 1e6:.2f} MB")


def measure(home: Path, names: list[str], output: Path) -> float:
    """Make the report once, print what it took, and return the seconds."""
    command = [sys.executable, "-m", "sentinel", "report", *names, "-o", str(output)]
    environ = os.environ | {"SENTINEL_HOME": str(home)}
    began = time.perf_counter()
    process = subprocess.Popen(command, env=environ, cwd=ROOT, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, process.returncode
    cpu = usage.ru_utime + usage.ru_stime
    print(f"{seconds:.1f} s, processor {cpu:.1f} s, memory {usage.ru_maxrss / 1024:.0f} MB")
    return seconds


if __name__ == "__main__":
    main()
