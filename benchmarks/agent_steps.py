"""CPU time of one step in the agent's loop, and of aligning a step at two paces.

    python benchmarks/agent_steps.py [--ranks 1 8 64] [--aligned 64 256 1024 4096] [--profile]

The first table turns the loop of a real agent by hand, with its database, detectors and metrics, in
this process and on a clock of its own: each turn reads one step of 25 signals of each rank from
real rings. The idle turn reads nothing. The second table aligns batches of eight ranks, as the
agents of nodes send them, with one step and with five steps a second. All figures are CPU time of
this thread: medians over chunks of steps. Writes results/agent_steps.json, unless it profiles.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from engine import COMMON_SIGNALS, POLICY_SIGNALS, SHARED_SIGNALS, healthy_series, pad_names
from rich.console import Console
from rich.table import Table

from sentinel.agent.main import Agent
from sentinel.aggregate.aligner import Aligner
from sentinel.config.settings import load_settings
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import RecordBatch, pack_row
from sentinel.transport.identity import Identity
from sentinel.transport.paths import ring_path
from sentinel.transport.record_codec import RecordEncoder, StepStamp
from sentinel.transport.ring import RingWriter

RESULTS = Path(__file__).parent / "results" / "agent_steps.json"
SIGNALS = 25
ALIGNED_SIGNALS = 32
RANKS_PER_NODE = 8
WARMUP_STEPS = 200
"""Steps not counted: windows of detectors are not full yet."""
CHUNK_STEPS = 20
"""Steps between two readings of the clock."""
STEP_SECONDS = 0.1
TURNS_PER_SECOND = 5
"""Turns of the loop of an agent with several nodes, each of which has a heartbeat."""
NAMES = tuple(pad_names([*POLICY_SIGNALS, *COMMON_SIGNALS], SIGNALS))


@dataclass
class Clock:
    """Seconds since the epoch, set by hand."""

    now: float = field(default_factory=time.time)

    def __call__(self) -> float:
        return self.now


class Ranks:
    """The rings of a run on one node, written as a trainer does."""

    def __init__(self, count: int, steps: int, clock: Clock) -> None:
        self.clock, self.step = clock, 0
        identities = [Identity("bench", 0, rank, rank, count, count) for rank in range(count)]
        self.rings = [RingWriter(ring_path("bench", 0, each.rank), each) for each in identities]
        self.encoders = [RecordEncoder(ring.write) for ring in self.rings]
        series = healthy_series(NAMES, steps, seed=1)
        self.rows = list(zip(*(series[name] for name in NAMES), strict=True))
        self.random = random.Random(count)
        for encoder in self.encoders:
            sizes = {"local_world_size": float(count), "world_size": float(count)}
            encoder.write_event(Event.START, StepStamp(0, 0, clock()), sizes)

    def write_step(self) -> None:
        """Write one step of each rank, with values of its own where ranks need not agree."""
        row, self.step = self.rows[self.step], self.step + 1
        stamp = StepStamp(self.step, self.step, self.clock())
        for ring, encoder in zip(self.rings, self.encoders, strict=True):
            values = [
                value if name in SHARED_SIGNALS else value * self.random.uniform(0.98, 1.02)
                for name, value in zip(NAMES, row, strict=True)
            ]
            encoder.write_values(encoder.schema_for(NAMES), stamp, values)
            ring.publish_step(*stamp)


@contextmanager
def running_agent(ranks: int, steps: int) -> Iterator[tuple[Agent, Ranks, Clock]]:
    """An agent whose loop the caller turns, with its ranks and its clock."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, ExitStack() as stack:
        os.environ |= {"SENTINEL_HOME": f"{folder}/home", "SENTINEL_RUNTIME_DIR": f"{folder}/rings"}
        clock = Clock()
        trainers = Ranks(ranks, steps, clock)
        agent = Agent("bench", load_settings(), clock)
        stack.callback(agent.registration.release)
        stack.callback(agent.source.close)
        yield agent, trainers, clock


def agent_costs(ranks: int, steps: int, profile: cProfile.Profile | None) -> tuple[float, float]:
    """Milliseconds of a turn that reads one step of that many ranks, and of an idle turn."""
    with running_agent(ranks, steps + WARMUP_STEPS) as (agent, trainers, clock):
        busy, idle = list[float](), list[float]()
        for at in range(-WARMUP_STEPS, steps):
            if at == 0 and profile is not None:
                profile.enable()
            if at % CHUNK_STEPS == 0:
                busy.append(0.0)
                idle.append(0.0)
            # Half of the turns are idle.
            clock.now += STEP_SECONDS / 2
            idle[-1] += turn_seconds(agent)
            clock.now += STEP_SECONDS / 2
            trainers.write_step()
            busy[-1] += turn_seconds(agent)
        if profile is not None:
            profile.disable()
    warmup_chunks = WARMUP_STEPS // CHUNK_STEPS
    busy_s, idle_s = (median(each[warmup_chunks:]) / CHUNK_STEPS for each in (busy, idle))
    return 1e3 * busy_s, 1e3 * idle_s


def turn_seconds(agent: Agent) -> float:
    """CPU seconds of one turn."""
    began = time.thread_time()
    agent.run_once()
    return time.thread_time() - began


def alignment_cost(ranks: int, steps_per_second: int, steps: int) -> float:
    """Milliseconds of aligning one step of that many ranks, heartbeats included."""
    aligner, chunks = Aligner(), list[float]()
    for rank in range(ranks):
        values = {"local_world_size": 8.0, "expected_ranks": float(ranks)}
        start = Record("bench", rank, 0, 0.0, Event.START, values, {"host": f"node{rank // 8}"})
        list(aligner.process(start))
    names = tuple(pad_names([*POLICY_SIGNALS, *COMMON_SIGNALS], ALIGNED_SIGNALS))
    turns_per_step = max(1, TURNS_PER_SECOND // steps_per_second)
    for step in range(1, steps + 1):
        entries: list[Record | RecordBatch] = [*node_batches(ranks, step, names)]
        now = step / steps_per_second
        heartbeats = [
            Record("bench", WHOLE_RUN, step, now + turn / TURNS_PER_SECOND, Event.HEARTBEAT)
            for turn in range(turns_per_step)
        ]
        began = time.thread_time()
        for entry in (*entries, *heartbeats):
            for _ in aligner.process(entry):
                pass
        chunks.append(time.thread_time() - began)
    return 1e3 * median(chunks[len(chunks) // 4 :])


def node_batches(ranks: int, step: int, names: Sequence[str]) -> Iterator[RecordBatch]:
    """The batch of each node at a step."""
    rng, shared = random.Random(step), [name in SHARED_SIGNALS for name in names]
    for first in range(0, ranks, RANKS_PER_NODE):
        members = tuple(range(first, first + RANKS_PER_NODE))
        matrix = b"".join(
            pack_row([1.0 if is_shared else 1.0 + 0.1 * rng.random() for is_shared in shared])
            for _ in members
        )
        times, sequences = (float(step),) * RANKS_PER_NODE, (step,) * RANKS_PER_NODE
        yield RecordBatch("bench", 0, step, step, tuple(names), members, times, sequences, matrix)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--aligned", type=int, nargs="*", default=[64, 256, 1024, 4096])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--aligned-steps", type=int, default=24)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    args = parser.parse_args()
    profile = cProfile.Profile() if args.profile else None
    console, load = Console(), round(os.getloadavg()[0], 1)
    turns, aligned = list[dict[str, float]](), list[dict[str, float]]()
    table = Table("Ranks", "ms per step", "ms per idle turn")
    for ranks in args.ranks:
        step_ms, idle_ms = agent_costs(ranks, args.steps, profile)
        turns.append({"ranks": ranks, "step_ms": round(step_ms, 2), "idle_ms": round(idle_ms, 2)})
        table.add_row(*map(str, turns[-1].values()))
    console.print(table)
    table = Table("Ranks", "1 step/s, ms per step", "5 steps/s, ms per step")
    for ranks in args.aligned:
        slow_ms, fast_ms = (alignment_cost(ranks, pace, args.aligned_steps) for pace in (1, 5))
        aligned.append({"ranks": ranks, "slow_ms": round(slow_ms, 1), "fast_ms": round(fast_ms, 1)})
        table.add_row(*map(str, aligned[-1].values()))
    console.print(table)
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
        return
    RESULTS.parent.mkdir(exist_ok=True)
    results = {"load": load, "signals": ALIGNED_SIGNALS, "turns": turns, "aligned": aligned}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
