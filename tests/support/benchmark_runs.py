"""Run programs of a folder of benchmarks, each in a fork of this process, four at once.

    python benchmark_runs.py FOLDER    (reads {name: [argument, ...]} in JSON from its input)

Prints {name: [exit code, output, seconds]} in JSON. A fork has already what most programs import.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

AT_ONCE = 4
TIMEOUT_SECONDS = 900
"""A program that takes longer is ended by SIGALRM."""


class Outcome(NamedTuple):
    """Exit code, output and duration of a program."""

    code: int
    output: str
    seconds: float


def run_all(folder: Path, programs: dict[str, list[str]]) -> Iterator[tuple[str, Outcome]]:
    """Each program and its outcome; the output is also in NAME.log in the working directory."""
    waiting, running = list(programs), dict[int, tuple[str, float]]()
    while waiting or running:
        if waiting and len(running) < AT_ONCE:
            name = waiting.pop(0)
            child = os.fork()
            if not child:
                output = os.open(f"{name}.log", os.O_CREAT | os.O_WRONLY)
                os.dup2(output, 1)
                os.dup2(output, 2)
                run_here(folder / f"{name}.py", programs[name])
            running[child] = name, time.monotonic()
            continue
        child, status = os.wait()
        name, began = running.pop(child)
        seconds = round(time.monotonic() - began, 1)
        code = os.waitstatus_to_exitcode(status)
        yield name, Outcome(code, Path(f"{name}.log").read_text(), seconds)


def run_here(path: Path, arguments: list[str]) -> NoReturn:
    """Run that program as `python PATH ARGUMENTS` would, and end this process."""
    sys.argv, code = [str(path), *arguments], 1
    signal.alarm(TIMEOUT_SECONDS)
    try:
        runpy.run_path(str(path), run_name="__main__")
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def main() -> None:
    folder = Path(sys.argv[1])
    sys.path.insert(0, str(folder))
    import torch._dynamo  # noqa: F401 - for the forks, whose optimizers need it

    import sentinel.agent.main  # noqa: F401 - for the forks

    # Else each fork examines the imported objects again and again, and copies their pages.
    gc.freeze()
    print(json.dumps(dict(run_all(folder, json.load(sys.stdin)))))


if __name__ == "__main__":
    main()
