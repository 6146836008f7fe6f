"""Processor time and modules of the start of the commands, of the agent and of its processes.

    python benchmarks/start.py [--repeats 7] [--only NAME ...]

Each runs in processes of its own with an empty home. The time is user and system time of the
process and of everything that it starts, such as the guard and the agent of `sentinel run`, less
that of `python -c pass`: the least of the repeats, since other processes of the machine only add to
it. The number of modules is that of the first process, less those of `python -c pass`. Prints
Markdown.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINES = 20
PR_SET_CHILD_SUBREAPER = 36
FLOOR = "nothing"
SENTINEL = ("-P", "-m", "sentinel")
AUTOSTART = ROOT / "sentinel" / "client" / "autostart"
CHILD = f"""
import sys
sys.modules.pop("sitecustomize", None)
sys.path.insert(0, {str(AUTOSTART)!r})
import sitecustomize
"""
ONSET = "from sentinel.pipeline.onset_process import main; main()"
COMMANDS = {
    FLOOR: ("-c", "pass"),
    "import": ("-c", "import sentinel"),
    "trainer": ("-c", "import sentinel; sentinel.monitor, sentinel.log"),
    "version": (*SENTINEL, "--version"),
    "help": (*SENTINEL, "--help"),
    "child": ("-c", CHILD),
    "run": (*SENTINEL, "run", "--", sys.executable, "-c", "pass"),
    "run-failed": (*SENTINEL, "run", "--", sys.executable, "-c", "raise SystemExit(1)"),
    "status": (*SENTINEL, "status"),
    "replay": (*SENTINEL, "replay", "log.jsonl"),
    "agent": ("-c", "import sentinel.agent.main"),
    "onset": ("-c", ONSET),
}
"""Arguments of python. `agent` and `trainer` are only imported; `child` is any Python that
`sentinel run` starts; `run-failed` has an agent, which reports the failure and ends; `onset`
estimates one onset."""


def run_command(arguments: tuple[str, ...], *, count_modules: bool = False) -> float:
    """Processor seconds of the command and all its descendants, or its number of modules."""
    with tempfile.TemporaryDirectory(prefix="sentinel-start-") as folder:
        rows = ({"step": step, "loss": 2.0 - 0.01 * step, "kl": 0.01} for step in range(LINES))
        (Path(folder) / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SENTINEL_HOME": f"{folder}/home",
            "SENTINEL_RUNTIME_DIR": f"{folder}/rings",
            "SENTINEL_LINGER_SECONDS": "0",
        }
        # With it, each process would compile the sources again.
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        before = descendants_seconds()
        completed = subprocess.run(
            [sys.executable, *(("-X", "importtime") if count_modules else ()), *arguments],
            env=environ,
            cwd=folder,
            input=onset_request(),
            capture_output=True,
            text=True,
            check=False,
        )
        reap_descendants()
        if count_modules:
            return len(re.findall(r"^import time: +\d", completed.stderr, re.MULTILINE))
        return descendants_seconds() - before


def onset_request() -> str:
    """Values of a signal whose level changes, and the step at which a detector saw it."""
    return json.dumps([[[(step, (step > 60) + 0.01 * (step % 7)) for step in range(100)], 62]])


def become_subreaper() -> None:
    """Make this process the parent of the processes that a command leaves behind."""
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise SystemExit("prctl failed: Linux is needed.")


def reap_descendants() -> None:
    """Wait for the processes that a command left behind, whose parent is now this process."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def descendants_seconds() -> float:
    """User and system seconds of the descendants that were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=list(COMMANDS), default=list(COMMANDS))
    args = parser.parse_args()
    become_subreaper()
    floor = (0.0, 0.0)
    print("| start of | processor time, ms | modules |\n|---|---|---|")
    for name in dict.fromkeys([FLOOR, *args.only]):
        # The first time, the sources are compiled.
        modules = run_command(COMMANDS[name], count_modules=True)
        seconds = min(run_command(COMMANDS[name]) for _ in range(args.repeats))
        print(f"| {name} | {1e3 * (seconds - floor[0]):.1f} | {modules - floor[1]:.0f} |")
        if name == FLOOR:
            floor = (seconds, modules)


if __name__ == "__main__":
    main()
