"""CPU time of the head agent for one step of a large run, without sockets and processes.

    python benchmarks/head.py [--sizes 1024x8 4096x32] [--steps 12] [--profile]

A size is the number of ranks, and of those on each node. The loop of a real agent is turned by
hand, on a clock of its own, with its database, all detectors and metrics. The ranks of its node
write to real rings. The other nodes (`fleet_nodes.py`) encode and sign a message a second, with a
step of 32 signals, into a store in memory; the server of the head verifies it there. So the figures
are those of fleet.py without the process of the store, and nothing waits: milliseconds of this
thread, mean over the steps. Writes results/head.json with a linear model, unless it profiles.
"""

# ruff: noqa: SLF001 - the server has no method for a single poll
from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import pstats
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fleet_nodes
import numpy as np
from agent_steps import Clock
from fleet_nodes import Course, Node, Plan
from scale_page import cost_model_text, head_table

from sentinel.__main__ import OBJECTS_PER_COLLECTION
from sentinel.agent.main import Agent
from sentinel.cluster.authentication import MessageAuthenticator
from sentinel.cluster.head import Head
from sentinel.cluster.server import ClusterServer
from sentinel.config.settings import load_settings
from sentinel.model.record import Event
from sentinel.transport.identity import Identity
from sentinel.transport.paths import ring_path
from sentinel.transport.record_codec import RecordEncoder, StepStamp
from sentinel.transport.rendezvous import Rendezvous
from sentinel.transport.ring import RingWriter

RESULTS = Path(__file__).parent / "results" / "head.json"
SIZES = ("1024x8", "4096x4", "4096x8", "4096x32", "16384x8", "16384x32")
SIGNALS = 32
WARMUP_STEPS = 10
TURNS_PER_SECOND = 5
RUN, JOB, TOKEN = "bench", "bench", "of the benchmark"


@dataclass
class MemoryStore:
    """The message store as the server and the nodes use it."""

    values: dict[str, bytes] = field(default_factory=dict)

    def read(self, keys: Sequence[str]) -> list[bytes]:
        return [self.values[key] for key in keys]

    def peek(self, key: str) -> bytes:
        return self.values.get(key, b"")

    def has(self, key: str) -> bool:
        return key in self.values

    def write(self, values: dict[str, bytes]) -> None:
        self.values |= values

    def increment(self, key: str) -> int:
        number = int(self.values.get(key, b"0")) + 1
        self.values[key] = str(number).encode()
        return number


class OwnRanks:
    """The ranks of the head's own node, which write to rings as a trainer does."""

    def __init__(self, world: int, local: int, clock: Clock) -> None:
        self.clock = clock
        rendezvous = Rendezvous("127.0.0.1", "29500", JOB, 0)
        self.rings = [
            RingWriter(ring_path(RUN, 0, rank), identity)
            for rank in range(local)
            for identity in (Identity(RUN, 0, rank, rank, world, local, "node0", rendezvous),)
        ]
        self.encoders = [RecordEncoder(ring.write) for ring in self.rings]
        sizes = {"world_size": float(world), "local_world_size": float(local)}
        for encoder in self.encoders:
            encoder.write_event(Event.START, StepStamp(0, 0, clock()), sizes)

    def add_step(self, step: int, names: tuple[str, ...], rows: Sequence[Sequence[float]]) -> None:
        stamp = StepStamp(step, step, self.clock())
        for ring, encoder, row in zip(self.rings, self.encoders, rows, strict=True):
            encoder.write_values(encoder.schema_for(names), stamp, row)
            ring.publish_step(*stamp)


def connect_nodes(
    agent: Agent, size: tuple[int, int], clock: Clock, store: MemoryStore
) -> tuple[Head, list[Node]]:
    """Turn the loop of the agent until it is the head of all nodes."""
    world, local = size
    while agent.cluster_role.head is None:
        clock.now += 1.0 / TURNS_PER_SECOND
        agent.run_once()
    head = agent.cluster_role.head
    head.server.port = head.server.store_count = 1
    head.server._write_slot_counter(store)
    head.server._publish_head_info(store)
    plan = Plan(1, world // local, world, local, SIGNALS, 1.0, 0.0, 1, TOKEN, JOB)
    authenticator = MessageAuthenticator.for_job(TOKEN, JOB)
    nodes = [Node(number, plan, authenticator) for number in range(1, world // local)]
    while len(head.membership.by_slot) < len(nodes):
        clock.now += 1.0 / TURNS_PER_SECOND
        head.server._poll_store(store)
        agent.run_once()
    for node in nodes:
        node.start(clock())
    return head, nodes


def head_costs(
    world: int,
    local: int,
    steps: int,
    profile: cProfile.Profile | None,
    inspect: Callable[[Agent], dict[str, float]] = lambda _: {},
) -> dict[str, float]:
    """Milliseconds of the head for a step of that many ranks, of its server and of its loop.

    With the figures of `inspect`, which gets its agent at the end.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, ExitStack() as stack:
        os.environ |= {
            "SENTINEL_HOME": f"{folder}/home", "SENTINEL_RUNTIME_DIR": f"{folder}/rings",
            "SENTINEL_CLUSTER__TOKEN": TOKEN,
        }  # fmt: skip
        clock, store = Clock(), MemoryStore()
        stack.enter_context(patch.object(ClusterServer, "start", lambda _: None))
        stack.enter_context(patch.object(fleet_nodes, "connect", lambda _: store))
        stack.enter_context(patch.object(fleet_nodes.time, "time", clock))
        own = OwnRanks(world, local, clock)
        agent = Agent(RUN, load_settings(), clock)
        stack.callback(agent.registration.release)
        stack.callback(agent.source.close)
        head, nodes = connect_nodes(agent, (world, local), clock, store)
        course, spent = Course(SIGNALS, steps + WARMUP_STEPS), {"server": 0.0, "loop": 0.0}

        def count(part: str, call: Callable[[], None]) -> None:
            if profile is not None and step > WARMUP_STEPS:
                profile.enable()
            began = time.thread_time()
            call()
            spent[part] += (time.thread_time() - began) * (step > WARMUP_STEPS)
            if profile is not None:
                profile.disable()

        for step in range(1, steps + WARMUP_STEPS + 1):
            rows = course.rank_values(step, world).tolist()
            own.add_step(step, course.names, rows[:local])
            for turn in range(TURNS_PER_SECOND):
                for node in nodes[turn::TURNS_PER_SECOND]:
                    first = node.number * local
                    node.add_step(clock(), course.names, rows[first : first + local])
                    node.exchange()
                clock.now += 1.0 / TURNS_PER_SECOND
                count("server", lambda: head.server._poll_store(store))
                count("loop", agent.run_once)
                while head.has_unread:
                    count("loop", agent.run_once)
        assert agent.processor.history.event_count(Event.STEP) >= steps + WARMUP_STEPS - 1
        means = {part: round(1e3 * seconds / steps, 1) for part, seconds in spent.items()}
        return means | inspect(agent)


def fit_cost_model(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """CPU = constant + share per node + share per rank, by least squares of relative errors."""
    shares = np.array([[1.0, row["nodes"], row["ranks"]] for row in rows])
    spent = np.array([row["server"] + row["loop"] for row in rows])
    figures = np.linalg.lstsq(shares / spent[:, None], np.ones(len(rows)), rcond=None)[0]
    return {
        "constant_ms": round(float(figures[0]), 1),
        "node_us": round(1e3 * float(figures[1])),
        "rank_us": round(1e3 * float(figures[2]), 1),
        "off_percent": round(100 * float(np.abs(shares @ figures / spent - 1).max())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    args = parser.parse_args()
    profile = cProfile.Profile() if args.profile else None
    gc.set_threshold(OBJECTS_PER_COLLECTION, *gc.get_threshold()[1:])
    rows: list[dict[str, Any]] = []
    for size in args.sizes:
        world, local = map(int, size.split("x"))
        costs = head_costs(world, local, args.steps, profile)
        rows.append({"ranks": world, "nodes": world // local, **costs})
        print(rows[-1], flush=True)
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        return
    results = {"load": round(os.getloadavg()[0], 1), "signals": SIGNALS, "rows": rows}
    if len(rows) > 3:
        results["law"] = fit_cost_model(rows)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        print(head_table(results), cost_model_text(results), sep="\n\n")


if __name__ == "__main__":
    main()
