"""Processes that write rings as the client in a trainer does, without importing a framework."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sentinel.transport.paths import is_agent_running

SCRIPT = """
import json, sys, time
from sentinel.model.record import Event
from sentinel.transport.identity import Identity
from sentinel.transport.record_codec import StepStamp, RecordEncoder
from sentinel.transport.paths import ring_path
from sentinel.transport.ring import RingWriter

plan = json.loads(sys.argv[1])
run, rank, world = plan["run"], plan["rank"], plan["world"]
identity = Identity(run, plan["attempt"], rank, rank, world, world)
ring = RingWriter(ring_path(run, plan["attempt"], rank), identity)
encoder = RecordEncoder(ring.write)
start = {"world_size": float(world), "local_world_size": float(world)}
encoder.write_event(Event.START, StepStamp(0, 0, time.time()), start)
names = tuple(plan["values"])
for step in range(1, plan["steps"] + 1):
    values = [row[(step - 1) % len(row)] for row in plan["values"].values()]
    encoder.write_values(encoder.schema_for(names), StepStamp(step, step, time.time()), values)
    ring.publish_step(step, step, time.time())
    time.sleep(plan["every"])
if plan["hold"]:
    sys.stdin.readline()
if plan["ending"] != "silence":
    stamp = StepStamp(plan["steps"], plan["steps"], time.time())
    encoder.write_event(Event.STOP, stamp, attributes={"outcome": plan["ending"]})
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def ranks() -> Iterator[Callable[..., Any]]:
    """Yields a function that starts one rank; all ranks are killed at the end.

    `values` maps a signal to its values by step, repeated when they run out. The rank stays alive
    after its last step. `ending` is the outcome of its STOP; with "silence" it writes no STOP, with
    `hold` only after `release`. With `wait` the function returns once the last step is written.
    """
    running: list[subprocess.Popen[bytes]] = []

    def begin(
        rank: int = 0,
        *,
        run: str = "live",
        world: int = 2,
        steps: int = 3,
        every: float = 0.0,
        ending: str = "silence",
        attempt: int = 0,
        values: dict[str, list[float]] | None = None,
        hold: bool = False,
        wait: bool = True,
    ) -> subprocess.Popen[bytes]:
        plan = {
            "run": run,
            "rank": rank,
            "world": world,
            "steps": steps,
            "every": every,
            "ending": ending,
            "attempt": attempt,
            "values": values or {"loss": [1.0]},
            "hold": hold,
        }
        command = [sys.executable, "-c", SCRIPT, json.dumps(plan)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        running.append(child)
        if wait:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
        return child

    try:
        yield begin
    finally:
        for child in running:
            child.kill()
            child.communicate()


def release(rank: subprocess.Popen[bytes]) -> None:
    """Let a rank that was started with `hold` write its STOP."""
    assert rank.stdin is not None
    rank.stdin.write(b"end\n")
    rank.stdin.flush()


def has_ended(run: Path) -> bool:
    """Whether the outcome of this run directory is written, and its agent has ended."""
    return (run / "outcome.json").exists() and not has_agent(run)


def has_agent(run: Path) -> bool:
    """Whether an agent has this run directory.

    On a slow disk the files of an agent are copied to it, `outcome.json` before `agent.json`: where
    `agent.json` is missing, an agent may still run, but it holds the lock.
    """
    return (run / "agent.json").exists() or is_agent_running(run)


def until(condition: Callable[[], Any], seconds: float, description: str) -> Any:
    """The first true result of `condition`, polled for up to `seconds`."""
    began = time.monotonic()
    deadline = began + seconds
    while not (answer := condition()):
        ended = time.monotonic()
        assert ended < deadline, f"{description}: not within {seconds} s"
        time.sleep(poll_interval(ended - began))
        began = time.monotonic()
    return answer


def poll_interval(took: float) -> float:
    """Seconds until the next poll after one that took so long.

    Requests without a pause would occupy a processor, which what is waited for needs.
    """
    return min(max(0.02, 4 * took), 0.5)
