"""Exceptions in a million calls with hostile arguments, while the agent is stopped and killed.

    python benchmarks/hostile_calls.py [--calls 1000000] [--threads 4]

Four threads and a signal handler call the public functions with values of all kinds, most of them
invalid. `raised` counts exceptions that reached the caller, `internal_errors` those that sentinel
caught of itself. Prints and writes results/hostile_calls.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "tests"))

from support.hostile_calls import run_hostile_calls  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=4)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = str(FOLDER.parent)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        result = run_hostile_calls(Path(folder), args.calls, args.threads)
    result["seconds"] = round(time.monotonic() - began)
    print(result)
    (FOLDER / "results").mkdir(exist_ok=True)
    (FOLDER / "results" / "hostile_calls.json").write_text(json.dumps(result, indent=1) + "\n")
    if result["raised"] or result["internal_errors"] or result["exit_code"]:
        raise SystemExit("A call raised, or the training did not end well.")


if __name__ == "__main__":
    main()
