"""Instructions of one `log()` on the training thread, by what is logged.

    python benchmarks/log_instructions.py [--calls 200] [--no-tensors] [--dry]

All kinds of logs run one after the other in one process under valgrind, which counts the user
instructions between two markers. Counts do not depend on the load of the machine. The loop and the
copy of the logged dict are subtracted. Prints Markdown, and the ratio to a log of twenty floats.
Kinds that need NumPy or PyTorch are left out where these are not installed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from importlib.util import find_spec
from itertools import cycle
from typing import Any

from instructions import count_between_markers

WARM_UP_CALLS = 40
NAMES = [f"train/metric_{number}" for number in range(20)]
OTHER_NAMES = [f"eval/metric_{number}" for number in range(20)]

Rows = list[dict[str, Any]]


def rows_by_kind(*, has_torch: bool) -> dict[str, Rows]:
    """What each kind logs, by turns."""
    floats = [{name: 0.5 * at + row for at, name in enumerate(NAMES)} for row in range(4)]
    others = [{name: 0.5 * at + row for at, name in enumerate(OTHER_NAMES)} for row in range(4)]
    kinds: dict[str, Rows] = {
        "20 floats": floats,
        "1 float": [{"loss": 0.5}],
        "2 floats": [{"loss": 0.5, "kl": 0.1}],
        "100 floats": [{f"metric_{at}": 0.5 * at for at in range(100)}],
        "10 floats, 10 ints": [{name: at if at % 2 else 0.5 * at for at, name in enumerate(NAMES)}],
        "20 floats, then ints, by turns": [floats[0], dict.fromkeys(NAMES, 3)],
        "19 floats, 1 text": [{**floats[0], NAMES[7]: "text"}],
        "19 floats, 1 bool": [{**floats[0], NAMES[7]: True}],
        "a dict of 20 floats in a dict": [{"train": floats[0]}],
        "20 floats, two sets of names by turns": [floats[0], others[0]],
        "20 floats, two orders by turns": [floats[0], dict(reversed(floats[0].items()))],
        "2 floats, two sets of names by turns": [{"a": 1.0, "b": 2.0}, {"c": 1.0, "d": 2.0}],
        "1 float, two names by turns": [{"a": 1.0}, {"b": 1.0}],
        "19 floats, three sets of names by turns": [
            {name: 1.0 for at, name in enumerate(NAMES) if at != left_out} for left_out in (2, 5, 9)
        ],
    }
    if find_spec("numpy"):
        import numpy as np

        for scalar in (np.float64, np.float32):
            row = {name: scalar(value) for name, value in floats[0].items()}
            kinds[f"20 numpy.{scalar.__name__}"] = [row]
        kinds["19 floats, 1 numpy.float64"] = [{**floats[0], NAMES[7]: np.float64(0.5)}]
    if has_torch:
        import torch

        tensors = {name: torch.tensor(value) for name, value in floats[0].items()}
        kinds["20 CPU tensors"] = [tensors]
        kinds["19 floats, 1 CPU tensor"] = [{**floats[0], NAMES[7]: tensors[NAMES[7]]}]
    return kinds


def log_all(calls: int, *, has_torch: bool) -> None:
    """Log every kind, with a marker before each part."""
    folder = tempfile.mkdtemp()
    os.environ |= {"SENTINEL_HOME": folder, "SENTINEL_RUNTIME_DIR": folder}
    import sentinel

    with sentinel.monitor(agent=False):
        step = 0
        for rows in rows_by_kind(has_torch=has_torch).values():
            for log in (sentinel.log, lambda _values, _step: None):
                for count in (WARM_UP_CALLS, calls):
                    turns = cycle(rows)
                    os.getppid()
                    for _ in range(count):
                        step += 1
                        log(dict(next(turns)), step)
        os.getppid()
    shutil.rmtree(folder, ignore_errors=True)
    print(f"{step} logs", flush=True)
    os._exit(0)


def count_instructions(calls: int, *, has_torch: bool) -> dict[str, float]:
    """Instructions of one call by kind, less those of the loop."""
    arguments = ["--dry", "--calls", str(calls), *([] if has_torch else ["--no-tensors"])]
    counts = count_between_markers(__file__, *arguments)
    # Each kind has four parts: of the log and of the loop alone, a warm-up and the calls.
    return {
        kind: (counts[4 * at + 1] - counts[4 * at + 3]) / calls
        for at, kind in enumerate(rows_by_kind(has_torch=has_torch))
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--no-tensors", action="store_true", help="do not import PyTorch")
    parser.add_argument("--dry", action="store_true", help="log, and count nothing")
    args = parser.parse_args()
    has_torch = not args.no_tensors and find_spec("torch") is not None
    if args.dry:
        log_all(args.calls, has_torch=has_torch)
    if shutil.which("valgrind") is None:
        print("valgrind is not installed: nothing was counted")
        return
    counts = count_instructions(args.calls, has_torch=has_torch)
    print("| logged | instructions | against 20 floats |\n|---|---|---|")
    for kind, count in counts.items():
        print(f"| {kind} | {count:,.0f} | {count / counts['20 floats']:.2f} |")


if __name__ == "__main__":
    main()
