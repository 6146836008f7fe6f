"""Ranks that combine 32 numbers each, alternately by collectives of gloo and by rings of sentinel.

Each rank is a process, forked after torch is imported. All run the same blocks in the same order; a
block repeats one method. The cost of a method is the CPU time of all ranks in its block, including
threads of gloo, less that of an empty block of the same round, divided by the repetitions.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import torch
import torch.distributed as dist
from agent import processes
from loopback import traffic

from sentinel.model.record import Event
from sentinel.transport.identity import Identity
from sentinel.transport.record_codec import RecordEncoder, StepStamp
from sentinel.transport.rendezvous import Rendezvous
from sentinel.transport.ring import RingWriter

SIGNALS = 32
EMPTY, SENTINEL = "empty", "ours"
BURST, STEPS_OF_BURST = inf, 100
"""Sentinel at full speed, as the others are measured, and the number of steps."""
GLOO_TIMEOUT = timedelta(seconds=300)
MIN_REPETITIONS, MAX_REPETITIONS = 3, 2000
"""Least and most repetitions of a method in one block."""
CONNECT_SECONDS = 240.0
"""Time for all nodes to connect to the head: sixteen agents load torch at once."""


class RankLocation(NamedTuple):
    """Location of a rank: its number, its node, and the folder of its node's rings."""

    rank: int
    world: int
    local: int
    node: int
    folder: Path
    run: str


@dataclass
class Plan:
    """What all ranks run: methods of gloo, and sentinel at several step rates, in `rounds` rounds.

    A block of gloo takes `seconds`, one of sentinel `own_seconds`. `agents` are the agents'
    processes, the head first; `head` is its URL.
    """

    port: int
    rounds: int
    seconds: float
    own_seconds: float
    rates: tuple[float, ...]
    methods: tuple[str, ...]
    agents: tuple[int, ...]
    head: str = ""

    def blocks(self) -> list[tuple[str, float]]:
        """The blocks for all ranks, shuffled per round; at rate 0 the ranks are idle."""
        result: list[tuple[str, float]] = []
        for round_number in range(self.rounds):
            sentinel_blocks = (
                [(SENTINEL, rate) for rate in (0.0, BURST, *self.rates)] if self.agents else []
            )
            shuffled = [*((method, 0.0) for method in self.methods), *sentinel_blocks]
            random.Random(round_number).shuffle(shuffled)
            result += [(EMPTY, 0.0), *shuffled]
        return result


def collectives(rank: int, world: int) -> dict[str, Callable[[], object]]:
    """Each method of gloo as a function that runs it once."""
    values = torch.arange(SIGNALS, dtype=torch.float64) + rank
    packed = torch.cat([values, values * values, torch.ones(SIGNALS, dtype=torch.float64)])
    all_values = [torch.empty(SIGNALS, dtype=torch.float64) for _ in range(world)]
    gathered = (
        [torch.empty(SIGNALS, dtype=torch.float64) for _ in range(world)] if rank == 0 else None
    )
    value_by_name = {f"train/metric_{at}": value for at, value in enumerate(values.tolist())}
    return {
        EMPTY: lambda: None,
        "gather": lambda: dist.gather(values, gathered, dst=0),
        "all_reduce": lambda: dist.all_reduce(packed.clone()),
        "all_gather": lambda: dist.all_gather(all_values, values),
        "objects": lambda: _objects(value_by_name, world),
    }


def _objects(value_by_name: dict[str, float], world: int) -> None:
    """As in `all_gather_object`, with JSON instead of pickle: lengths first, then texts."""
    text = torch.frombuffer(bytearray(json.dumps(value_by_name).encode()), dtype=torch.uint8)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(lengths, torch.tensor([text.numel()]))
    longest = max(int(length) for length in lengths)
    texts = torch.empty(longest * world, dtype=torch.uint8)
    parts = [texts[longest * at : longest * (at + 1)] for at in range(world)]
    dist.all_gather(parts, torch.nn.functional.pad(text, (0, longest - text.numel())))
    for part, length in zip(parts, lengths, strict=True):
        json.loads(part[: int(length)].numpy().tobytes())


@dataclass
class RingRank:
    """A rank's ring, written once per step as the client does."""

    location: RankLocation
    step: int = 0
    encoder: RecordEncoder = field(init=False)

    def __post_init__(self) -> None:
        at = self.location
        first = at.rank - at.rank % at.local
        rendezvous = Rendezvous("127.0.0.1", "29500", "bench", at.node)
        identity = Identity(at.run, 0, at.rank, at.rank - first, at.world, at.local, "", rendezvous)
        self.ring = RingWriter(at.folder / f"0-{at.rank}.ring", identity)
        self.encoder = RecordEncoder(self.ring.write)
        sizes = {"world_size": float(at.world), "local_world_size": float(at.local)}
        self.encoder.write_event(Event.START, StepStamp(0, 0, time.time()), sizes)
        names = ("kl", "reward", *(f"signal_{at}" for at in range(SIGNALS - 2)))
        self.schema = self.encoder.schema_for(names)

    def write(self, values: Sequence[float]) -> None:
        self.step, now = self.step + 1, time.time()
        self.encoder.write_values(self.schema, StepStamp(self.step, self.step, now), values)
        self.ring.publish_step(self.step, self.step, now)

    def values(self) -> tuple[float, ...]:
        """Values of the next step, computed before timing starts: a trainer has them."""
        return 0.01, self.step / 1000, *(1.0 + at for at in range(SIGNALS - 2))

    def steps(self, rate: float, begins: float, seconds: float) -> tuple[int, float]:
        """Run steps at that rate, synchronised over ranks; return their number and CPU time."""
        if rate == BURST:
            count, spent_ns = STEPS_OF_BURST, self._burst(begins)
        else:
            count, spent_ns = int(rate * seconds), 0
            for at in range(count):
                _sleep_until(begins + at / rate)
                values = self.values()
                before = time.thread_time_ns()
                self.write(values)
                # Reading the clock costs about as much as a part of a write.
                spent_ns += time.thread_time_ns() - before - _CLOCK_READ_NS
        _sleep_until(begins + seconds)
        return count, spent_ns / 1e9

    def _burst(self, begins: float) -> int:
        _sleep_until(begins)
        values = self.values()
        before = time.thread_time_ns()
        for _ in range(STEPS_OF_BURST):
            self.write(values)
        return time.thread_time_ns() - before


def _sleep_until(deadline: float) -> None:
    time.sleep(max(0.0, deadline - time.monotonic()))


def _clock_read_ns() -> int:
    """Cost of reading the thread's clock, in nanoseconds."""
    result = []
    for _ in range(2000):
        before = time.thread_time_ns()
        result.append(time.thread_time_ns() - before)
    return sorted(result)[1000]


_CLOCK_READ_NS = _clock_read_ns()


class Rank:
    """Runs all blocks of one rank; `run` returns the total costs in rank 0."""

    def __init__(self, location: RankLocation, plan: Plan) -> None:
        self.location, self.plan = location, plan
        torch.set_num_threads(1)
        os.environ |= {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(plan.port), "RANK": str(location.rank),
            "WORLD_SIZE": str(location.world), "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        dist.init_process_group("gloo", timeout=GLOO_TIMEOUT)
        self.methods = collectives(location.rank, location.world)
        self.ring_rank = RingRank(location) if plan.agents else None
        if plan.agents and location.rank == 0:
            wait_until_connected(plan.head, len(plan.agents))
        dist.barrier()

    def run(self) -> list[dict[str, Any]]:
        return [
            self.run_sentinel(rate) if method == SENTINEL else self.run_gloo(method)
            for method, rate in self.plan.blocks()
        ]

    def run_gloo(self, method: str) -> dict[str, Any]:
        """Repeat one method of gloo as often as fits."""
        run_once = self.methods[method]
        run_once()
        dist.barrier()
        began = time.perf_counter()
        for _ in range(MIN_REPETITIONS):
            run_once()
        seconds_per_run = (time.perf_counter() - began) / MIN_REPETITIONS
        times = int(
            self.broadcast(
                max(MIN_REPETITIONS, min(MAX_REPETITIONS, self.plan.seconds / seconds_per_run))
            )
        )
        dist.barrier()
        sent, cpu, began = traffic(), time.process_time(), time.perf_counter()
        for _ in range(times):
            run_once()
        wall = time.perf_counter() - began
        dist.barrier()
        spent, traffic_sent = time.process_time() - cpu, traffic().since(sent)
        total = self.sum_over_ranks(spent)
        return {
            "method": method, "times": times, "cpu": total, "wall": wall,
            "bytes": traffic_sent.sent, "packets": traffic_sent.packets,
        }  # fmt: skip

    def run_sentinel(self, rate: float) -> dict[str, Any]:
        """Run sentinel at that step rate; rank 0 reads each agent's CPU time."""
        assert self.ring_rank
        begins = self.broadcast(time.monotonic() + 0.3)
        before, sent = [cpu_seconds_of_threads(pid) for pid in self.plan.agents], traffic()
        times, spent = self.ring_rank.steps(rate, begins, self.plan.own_seconds)
        after, traffic_sent = (
            [cpu_seconds_of_threads(pid) for pid in self.plan.agents],
            traffic().since(sent),
        )
        agents = [late - early for early, late in zip(before, after, strict=True)]
        seconds = self.plan.own_seconds + 0.3
        return {
            "method": SENTINEL, "rate": rate, "times": times, "seconds": seconds,
            "cpu": self.sum_over_ranks(spent), "head": agents[0], "nodes": sum(agents[1:]),
            "bytes": traffic_sent.sent, "packets": traffic_sent.packets,
        }  # fmt: skip

    def broadcast(self, value: float) -> float:
        value_tensor = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(value_tensor, 0)
        return float(value_tensor)

    def sum_over_ranks(self, value: float) -> float:
        value_tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(value_tensor)
        return float(value_tensor)


def cpu_seconds_of_threads(pid: int) -> float:
    """CPU seconds of a process and its children with permanent threads, to the nanosecond."""
    paths = [path for each in processes(pid) for path in Path(f"/proc/{each}/task").iterdir()]
    return sum(int((path / "schedstat").read_text().split()[0]) for path in paths) / 1e9


def wait_until_connected(head: str, nodes: int) -> None:
    """Wait until that many nodes are connected to the head."""
    deadline, known = time.monotonic() + CONNECT_SECONDS, 0
    while known < nodes:
        if time.monotonic() > deadline:
            raise SystemExit(
                f"{known} of {nodes} nodes connected to the head in {CONNECT_SECONDS:.0f} s."
            )
        time.sleep(0.5)
        # An agent runs at low priority and may be slow to respond.
        with suppress(OSError), urlopen(f"{head}/api/run", timeout=30.0) as response:
            nodes_json = json.load(response)["cluster"].get("nodes", [])
            known = sum(node["state"] == "up" for node in nodes_json)
