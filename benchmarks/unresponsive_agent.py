"""Cost of one `log()` of twenty numbers while the agent runs, is stopped, is dead or is absent.

    python benchmarks/unresponsive_agent.py [--logs 5000] [--pause 0.002]

One process pauses before each log, so that other processes take its caches. Its agent is first left
alone, then stopped with SIGSTOP, then killed whenever it is back; `absent` is a run with
`agent=False`, and `control` packs the numbers into bytes instead. Times are CPU time of the calling
thread in microseconds; `waits` is how often the thread gave up the CPU inside `log()`. Prints and
writes results/unresponsive_agent.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

FOLDER = Path(__file__).parent
STATES = ("running", "stopped", "dead", "absent", "control")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--logs", type=int, default=5000)
    parser.add_argument("--pause", type=float, default=0.002, help="seconds before each log")
    parser.add_argument("--child", choices=("served", "absent"))
    args = parser.parse_args()
    if args.child:
        train(args.child, args.logs, args.pause)
        return
    results: dict[str, dict[str, float]] = {}
    for child in ("served", "absent"):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            environ = {
                **os.environ,
                "PYTHONPATH": str(FOLDER.parent),
                "SENTINEL_HOME": f"{folder}/home",
                "SENTINEL_RUNTIME_DIR": f"{folder}/rings",
                "SENTINEL_LINGER_SECONDS": "0",
                "SENTINEL_RUN_ID": "figures",
            }
            command = [sys.executable, __file__, "--child", child, "--logs", str(args.logs)]
            command += ["--pause", str(args.pause)]
            completed = subprocess.run(
                command, env=environ, capture_output=True, text=True, check=True
            )
            results |= json.loads(completed.stdout)
    for state in STATES:
        print(f"{state:8} {results[state]}")
    (FOLDER / "results").mkdir(exist_ok=True)
    (FOLDER / "results" / "unresponsive_agent.json").write_text(
        json.dumps(results, indent=1) + "\n"
    )


def train(child: str, logs: int, pause: float) -> None:
    """Log in each state, and print the figures of each as JSON."""
    import sentinel
    from sentinel.transport.paths import is_agent_running, ring_dir, run_dir

    registration = run_dir("figures") / "agent.json"

    def signal_agent(number: int) -> None:
        with suppress(OSError, ValueError):
            os.kill(json.loads(registration.read_text())["pid"], number)

    results = {}
    with sentinel.monitor(agent=child == "served"):
        if child == "absent":
            results["absent"] = time_logs(sentinel.log, logs, 0, pause)
            results["control"] = time_logs(pack, logs, 0, pause)
        else:
            deadline = time.monotonic() + 60.0
            while not registration.exists():
                assert time.monotonic() < deadline, "the agent does not serve"
                time.sleep(0.05)
            results["running"] = time_logs(sentinel.log, logs, 0, pause)
            signal_agent(signal.SIGSTOP)
            results["stopped"] = time_logs(sentinel.log, logs, logs, pause)
            signal_agent(signal.SIGCONT)
            results["dead"] = time_logs(
                sentinel.log, logs, 2 * logs, pause, lambda: signal_agent(signal.SIGKILL)
            )
    # Its agent writes to the folder until it ends.
    deadline = time.monotonic() + 60.0
    while is_agent_running(ring_dir("figures")) and time.monotonic() < deadline:
        time.sleep(0.05)
    print(json.dumps(results))


def pack(values: dict[str, float], step: int) -> None:
    """What no logger can do without."""
    struct.pack("@q20d", step, *values.values())


def time_logs(
    log: Callable[..., None],
    logs: int,
    first: int,
    pause: float,
    before: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Figures of that many calls; `before` is called before each hundredth."""
    clock, durations, waits = time.thread_time_ns, [], 0
    cost = min(-clock() + clock() for _ in range(1000))
    values = {f"signal_{at}": at * 0.5 for at in range(20)}
    for step in range(first + 1, first + logs + 1):
        if pause:
            time.sleep(pause)
        if step % 100 == 0:
            before()
        waits -= resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        began = clock()
        log(dict(values), step=step)
        durations.append(clock() - began - cost)
        waits += resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    durations.sort()
    return {
        "p50": durations[logs // 2] / 1e3,
        "p99": durations[int(0.99 * logs)] / 1e3,
        "max": durations[-1] / 1e3,
        "waits": waits,
    }


if __name__ == "__main__":
    main()
