"""Run programs of a folder of benchmarks one after the other, each in a fork of this process.

    python benchmark_runs.py FOLDER    (reads {name: [argument, ...]} in JSON from its input)

Prints {name: [exit code, output]} in JSON. A fork has already what most programs import.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn


def run_in_fork(path: Path, arguments: list[str]) -> tuple[int, str]:
    """Exit code and output of that program."""
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if not child:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            run_here(path, arguments)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        return os.waitstatus_to_exitcode(status), output.read()


def run_here(path: Path, arguments: list[str]) -> NoReturn:
    """Run that program as `python PATH ARGUMENTS` would, and end this process."""
    sys.argv, code = [str(path), *arguments], 1
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
    import torch  # noqa: F401 - for the forks

    import sentinel.agent.main  # noqa: F401 - for the forks

    programs = json.load(sys.stdin)
    print(
        json.dumps({name: run_in_fork(folder / f"{name}.py", programs[name]) for name in programs})
    )


if __name__ == "__main__":
    main()
