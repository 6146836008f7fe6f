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
from loopback import traffic

from sentinel.model.record import Event
from sentinel.transport.identity import Identity
from sentinel.transport.record_codec import RecordEncoder, StepStamp
from sentinel.transport.rendezvous import Rendezvous
from sentinel.transport.ring import RingWriter

SIGNALS = 32
EMPTY, OURS = "empty", "ours"
BURST, STEPS_OF_BURST = inf, 100
"""Sentinel at full speed, as the others are measured, and the number of steps."""
OURS_SECONDS = 8.0
PATIENCE = timedelta(seconds=300)
FEWEST, MOST = 3, 2000
"""Least and most repetitions of a method in one block."""
LINK_SECONDS = 240.0
"""Time for all nodes to connect to the head: sixteen agents load torch at once."""


class Place(NamedTuple):
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

    A block takes `seconds`. `agents` are the agents' processes, the head first; `head` is its URL.
    """

    port: int
    rounds: int
    seconds: float
    rates: tuple[float, ...]
    ways: tuple[str, ...]
    agents: tuple[int, ...]
    head: str = ""

    def blocks(self) -> list[tuple[str, float]]:
        """The blocks for all ranks, shuffled per round; at rate 0 the ranks are idle."""
        found: list[tuple[str, float]] = []
        for turn in range(self.rounds):
            paced = [(OURS, rate) for rate in (0.0, BURST, *self.rates)] if self.agents else []
            rest = [*((way, 0.0) for way in self.ways), *paced]
            random.Random(turn).shuffle(rest)
            found += [(EMPTY, 0.0), *rest]
        return found


def collectives(rank: int, world: int) -> dict[str, Callable[[], object]]:
    """Each method of gloo as a function that runs it once."""
    mine = torch.arange(SIGNALS, dtype=torch.float64) + rank
    packed = torch.cat([mine, mine * mine, torch.ones(SIGNALS, dtype=torch.float64)])
    everyone = [torch.empty(SIGNALS, dtype=torch.float64) for _ in range(world)]
    at_root = (
        [torch.empty(SIGNALS, dtype=torch.float64) for _ in range(world)] if rank == 0 else None
    )
    named = {f"train/metric_{at}": value for at, value in enumerate(mine.tolist())}
    return {
        EMPTY: lambda: None,
        "gather": lambda: dist.gather(mine, at_root, dst=0),
        "all_reduce": lambda: dist.all_reduce(packed.clone()),
        "all_gather": lambda: dist.all_gather(everyone, mine),
        "objects": lambda: _objects(named, world),
    }


def _objects(named: dict[str, float], world: int) -> None:
    """As in `all_gather_object`, with JSON instead of pickle: lengths first, then texts."""
    text = torch.frombuffer(bytearray(json.dumps(named).encode()), dtype=torch.uint8)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(lengths, torch.tensor([text.numel()]))
    longest = max(int(length) for length in lengths)
    texts = torch.empty(longest * world, dtype=torch.uint8)
    parts = [texts[longest * at : longest * (at + 1)] for at in range(world)]
    dist.all_gather(parts, torch.nn.functional.pad(text, (0, longest - text.numel())))
    for part, length in zip(parts, lengths, strict=True):
        json.loads(part[: int(length)].numpy().tobytes())


@dataclass
class Ours:
    """A rank's ring, written once per step as the client does."""

    place: Place
    step: int = 0
    packer: RecordEncoder = field(init=False)

    def __post_init__(self) -> None:
        at = self.place
        first = at.rank - at.rank % at.local
        meeting = Rendezvous("127.0.0.1", "29500", "bench", at.node)
        who = Identity(at.run, 0, at.rank, at.rank - first, at.world, at.local, "", meeting)
        self.ring = RingWriter(at.folder / f"0-{at.rank}.ring", who)
        self.packer = RecordEncoder(self.ring.write)
        sizes = {"world_size": float(at.world), "local_world_size": float(at.local)}
        self.packer.write_event(Event.START, StepStamp(0, 0, time.time()), sizes)
        names = ("kl", "reward", *(f"signal_{at}" for at in range(SIGNALS - 2)))
        self.schema = self.packer.schema_for(names)

    def write(self, values: Sequence[float]) -> None:
        self.step, now = self.step + 1, time.time()
        self.packer.write_values(self.schema, StepStamp(self.step, self.step, now), values)
        self.ring.publish_step(self.step, self.step, now)

    def values(self) -> tuple[float, ...]:
        """Values of the next step, computed before timing starts: a trainer has them."""
        return 0.01, self.step / 1000, *(1.0 + at for at in range(SIGNALS - 2))

    def steps(self, rate: float, begins: float, seconds: float) -> tuple[int, float]:
        """Run steps at that rate, synchronised over ranks; return their number and CPU time."""
        if rate == BURST:
            done, spent = STEPS_OF_BURST, self._burst(begins)
        else:
            done, spent = int(rate * seconds), 0
            for at in range(done):
                _sleep_until(begins + at / rate)
                values = self.values()
                before = time.thread_time_ns()
                self.write(values)
                # Reading the clock costs about as much as a part of a write.
                spent += time.thread_time_ns() - before - _LOOK
        _sleep_until(begins + seconds)
        return done, spent / 1e9

    def _burst(self, begins: float) -> int:
        _sleep_until(begins)
        values = self.values()
        before = time.thread_time_ns()
        for _ in range(STEPS_OF_BURST):
            self.write(values)
        return time.thread_time_ns() - before


def _sleep_until(when: float) -> None:
    time.sleep(max(0.0, when - time.monotonic()))


def _look() -> int:
    """Cost of reading the thread's clock, in nanoseconds."""
    found = []
    for _ in range(2000):
        before = time.thread_time_ns()
        found.append(time.thread_time_ns() - before)
    return sorted(found)[1000]


_LOOK = _look()


class Rank:
    """Runs all blocks of one rank; `run` returns the total costs in rank 0."""

    def __init__(self, place: Place, plan: Plan) -> None:
        self.place, self.plan = place, plan
        torch.set_num_threads(1)
        os.environ |= {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(plan.port), "RANK": str(place.rank),
            "WORLD_SIZE": str(place.world), "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        dist.init_process_group("gloo", timeout=PATIENCE)
        self.ways = collectives(place.rank, place.world)
        self.ours = Ours(place) if plan.agents else None
        if plan.agents and place.rank == 0:
            linked(plan.head, len(plan.agents))
        dist.barrier()

    def run(self) -> list[dict[str, Any]]:
        return [
            self.paced(rate) if way == OURS else self.tight(way) for way, rate in self.plan.blocks()
        ]

    def tight(self, way: str) -> dict[str, Any]:
        """Repeat one method of gloo as often as fits."""
        once = self.ways[way]
        once()
        dist.barrier()
        began = time.perf_counter()
        for _ in range(FEWEST):
            once()
        each = (time.perf_counter() - began) / FEWEST
        times = int(self.agreed(max(FEWEST, min(MOST, self.plan.seconds / each))))
        dist.barrier()
        sent, cpu, began = traffic(), time.process_time(), time.perf_counter()
        for _ in range(times):
            once()
        wall = time.perf_counter() - began
        dist.barrier()
        spent, went = time.process_time() - cpu, traffic().since(sent)
        total = self.summed(spent)
        return {
            "way": way, "times": times, "cpu": total, "wall": wall,
            "bytes": went.sent, "packets": went.packets,
        }  # fmt: skip

    def paced(self, rate: float) -> dict[str, Any]:
        """Run sentinel at that step rate; rank 0 reads each agent's CPU time."""
        assert self.ours
        begins = self.agreed(time.monotonic() + 0.3)
        before, sent = [all_threads(pid) for pid in self.plan.agents], traffic()
        times, spent = self.ours.steps(rate, begins, OURS_SECONDS)
        after, went = [all_threads(pid) for pid in self.plan.agents], traffic().since(sent)
        agents = [late - early for early, late in zip(before, after, strict=True)]
        return {
            "way": OURS, "rate": rate, "times": times, "seconds": OURS_SECONDS + 0.3,
            "cpu": self.summed(spent), "head": agents[0], "nodes": sum(agents[1:]),
            "bytes": went.sent, "packets": went.packets,
        }  # fmt: skip

    def agreed(self, value: float) -> float:
        told = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(told, 0)
        return float(told)

    def summed(self, value: float) -> float:
        told = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(told)
        return float(told)


def all_threads(pid: int) -> float:
    """CPU seconds of a process with permanent threads, to the nanosecond."""
    told = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(text.read_text().split()[0]) for text in told) / 1e9


def linked(head: str, nodes: int) -> None:
    """Wait until that many nodes are connected to the head."""
    deadline, known = time.monotonic() + LINK_SECONDS, 0
    while known < nodes:
        if time.monotonic() > deadline:
            raise SystemExit(
                f"{known} of {nodes} nodes connected to the head in {LINK_SECONDS:.0f} s."
            )
        time.sleep(0.5)
        # An agent runs at low priority and may be slow to respond.
        with suppress(OSError), urlopen(f"{head}/api/run", timeout=30.0) as answer:
            told = json.load(answer)["cluster"].get("nodes", [])
            known = sum(node["state"] == "up" for node in told)
