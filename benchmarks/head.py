"""CPU time of the head agent in one step of a large run, by part: without sockets and processes.

    python benchmarks/head.py [--ranks 1024 4096] [--local 8] [--steps 20] [--profile]

The loop of a real agent is turned by hand, on a clock of its own, with its database, all detectors
and metrics. Its own ranks write to real rings. The other nodes (`fleet_nodes.py`) encode and sign
real messages, one a second, into a store in memory, from which the server of the head verifies
them. So the figures are those of fleet.py without the process of the store, and depend on the load
of the machine only through its caches: milliseconds of this thread, mean of the steps.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import pstats
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from unittest.mock import patch

import fleet_nodes
from agent_steps import Clock
from fleet_nodes import Course, Node, Plan

from sentinel.agent.main import Agent
from sentinel.cli._agent_service import OBJECTS_PER_COLLECTION
from sentinel.cluster.authentication import MessageAuthenticator
from sentinel.cluster.server import ClusterServer
from sentinel.config.settings import load_settings
from sentinel.model.record import Event
from sentinel.transport.identity import Identity
from sentinel.transport.paths import ring_path
from sentinel.transport.record_codec import RecordEncoder, StepStamp
from sentinel.transport.rendezvous import Rendezvous
from sentinel.transport.ring import RingWriter

RESULTS = Path(__file__).parent / "results" / "head.json"
SIGNALS = 32
WARMUP_STEPS = 10
TURNS_PER_SECOND = 5
JOB, TOKEN = "bench", "of the benchmark"


@dataclass
class MemoryStore:
    """The message store, for the server and for all nodes."""

    values: dict[str, bytes] = field(default_factory=dict)
    memory_bytes: int = 0

    def read(self, keys):
        return [self.values[key] for key in keys]

    def peek(self, key):
        return self.values.get(key, b"")

    def has(self, key):
        return key in self.values

    def write(self, values):
        self.values |= values

    def remove(self, keys):
        for key in keys:
            self.values.pop(key, None)

    def increment(self, key):
        number = int(self.values.get(key, b"0")) + 1
        self.values[key] = str(number).encode()
        return number


class OwnRanks:
    """The ranks of the head's own node."""

    def __init__(self, world, local, clock):
        self.clock = clock
        rendezvous = Rendezvous("127.0.0.1", "29500", JOB, 0)
        identities = [
            Identity("bench", 0, rank, rank, world, local, "node0", rendezvous)
            for rank in range(local)
        ]
        self.rings = [RingWriter(ring_path("bench", 0, each.rank), each) for each in identities]
        self.encoders = [RecordEncoder(ring.write) for ring in self.rings]
        sizes = {"world_size": float(world), "local_world_size": float(local)}
        for encoder in self.encoders:
            encoder.write_event(Event.START, StepStamp(0, 0, clock()), sizes)

    def add_step(self, step, names, rows):
        stamp = StepStamp(step, step, self.clock())
        for ring, encoder, row in zip(self.rings, self.encoders, rows, strict=True):
            encoder.write_values(encoder.schema_for(names), stamp, row)
            ring.publish_step(*stamp)


class Timer:
    """Milliseconds of this thread by part, one figure per step."""

    def __init__(self, profile):
        self.parts, self.profile = {}, profile

    def run(self, part, call):
        if self.profile is not None:
            self.profile.enable()
        began = time.thread_time()
        call()
        self.parts.setdefault(part, [0.0])[-1] += 1e3 * (time.thread_time() - began)
        if self.profile is not None:
            self.profile.disable()

    def next_step(self):
        for figures in self.parts.values():
            figures.append(0.0)

    def medians(self):
        return {part: fmean(each[WARMUP_STEPS:-1]) for part, each in self.parts.items()}


def head_costs(world, local, steps, profile=None):
    """Milliseconds of the head per step, by part."""
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
        agent = Agent("bench", load_settings(), clock)
        stack.callback(agent.registration.release)
        stack.callback(agent.source.close)
        while agent.cluster_role.head is None:
            clock.now += 0.2
            agent.run_once()
        head = agent.cluster_role.head
        server = head.server
        server.port, server.store_count = 1, 1
        server._write_slot_counter(store)
        server._publish_head_info(store)
        seconds = float(steps + WARMUP_STEPS)
        plan = Plan(1, world // local, world, local, SIGNALS, 1.0, seconds, 1, TOKEN, JOB)
        authenticator = MessageAuthenticator.for_job(TOKEN, JOB)
        nodes = [Node(number, plan, authenticator) for number in range(1, world // local)]
        course = Course(SIGNALS, int(seconds) + 2)
        while len(head.membership.by_slot) < len(nodes):
            clock.now += 0.2
            server._poll_store(store)
            agent.run_once()
        for node in nodes:
            node.start(clock())
        timer = Timer(None)
        for step in range(1, steps + WARMUP_STEPS + 1):
            if step == WARMUP_STEPS:
                timer.profile = profile
            rows = course.rank_values(step, world).tolist()
            own.add_step(step, course.names, rows[:local])
            for turn in range(TURNS_PER_SECOND):
                for node in nodes[turn::TURNS_PER_SECOND]:
                    first = node.number * local
                    node.add_step(clock(), course.names, rows[first : first + local])
                    node.exchange()
                clock.now += 1.0 / TURNS_PER_SECOND
                timer.run("server", lambda: server._poll_store(store))
                timer.run("agent", agent.run_once)
                while head.has_unread:
                    timer.run("agent", agent.run_once)
            timer.next_step()
        stored = agent.processor.history.event_count(Event.STEP)
        dropped = agent.processor.exposition
        assert stored >= steps, stored
        print(
            "stored",
            stored,
            "counters",
            {k: v for k, v in vars(agent.counters).items() if k != "_lock"}
            if hasattr(agent, "counters")
            else "",
        )
        return timer.medians()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--local", type=int, nargs="+", default=[8])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    args = parser.parse_args()
    profile = cProfile.Profile() if args.profile else None
    gc.set_threshold(OBJECTS_PER_COLLECTION, *gc.get_threshold()[1:])
    for world in args.ranks:
        for local in args.local:
            costs = head_costs(world, local, args.steps, profile)
            print(
                world,
                local,
                {k: round(v, 2) for k, v in costs.items()},
                "us per rank",
                round(1e3 * sum(costs.values()) / world, 1),
            )
    if profile is not None:
        if os.environ.get("CALLERS"):
            pstats.Stats(profile).print_callers(os.environ["CALLERS"])
        pstats.Stats(profile).sort_stats(os.environ.get("SORT", "tottime")).print_stats(90)


if __name__ == "__main__":
    main()
