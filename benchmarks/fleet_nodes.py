"""Agents of many nodes, simulated by one process with real batches, signatures and connections.

The data of a node is synthetic, its transfer is not: batches are encoded, signed and sent to the
head's store by the code of a real agent, at its pace, and the next one is sent only after the
acknowledgement of the last.

    python benchmarks/fleet_nodes.py PLAN     (JSON, see `Plan`; started by fleet.py)

It prints "connected" once all its nodes are, and then reads the time of the first step, in seconds
since the epoch, from its input.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from engine import COMMON_SIGNALS, POLICY_SIGNALS, SHARED_SIGNALS, healthy_series, pad_names
from numpy.typing import NDArray

from sentinel.cluster.authentication import MessageAuthenticator
from sentinel.cluster.client import EXCHANGE_INTERVAL_SECONDS
from sentinel.cluster.follower import HEARTBEAT_INTERVAL_SECONDS
from sentinel.cluster.protocol import (
    ACK_STRUCT,
    HEAD_INFO_KEY,
    SLOT_COUNTER_KEY,
    HeadInfo,
    slot_keys,
)
from sentinel.cluster.torch_store import MessageStoreError, TorchStore
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import coalesce
from sentinel.transport.batch_codec import BatchEncoder

NOISE = 0.02
GRACE_SECONDS = 15.0
"""Seconds after the end in which a head that is behind may still process batches."""
CONNECT_SECONDS = 240.0
Rows = NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """What one process simulates: the agents of nodes `first` to `last - 1`, `local` ranks each.

    Steps are `pace` seconds apart, for `seconds`.
    """

    first: int
    last: int
    world: int
    local: int
    signals: int
    pace: float
    seconds: float
    port: int
    token: str
    job: str

    def text(self) -> str:
        return json.dumps(asdict(self))


class Course:
    """The healthy course of a run, and the values of each rank at a step."""

    def __init__(self, signals: int, steps: int) -> None:
        self.names = tuple(pad_names([*POLICY_SIGNALS, *COMMON_SIGNALS], signals)[:signals])
        fields = healthy_series(self.names, steps, 1)
        self.rows = np.array([fields[name] for name in self.names]).T
        exact = SHARED_SIGNALS | {"tokens"}
        self.noise = np.array([0.0 if name in exact else NOISE for name in self.names])

    def rank_values(self, step: int, ranks: int) -> Rows:
        """Values of that many ranks, one row each; steps count from 1."""
        # A seed per step and caller: ranks differ randomly, none systematically.
        rng = np.random.default_rng(random.getrandbits(32))
        row = self.rows[min(step, len(self.rows)) - 1]
        return row * (1.0 + self.noise * rng.standard_normal((ranks, len(row))))


@dataclass
class Node:
    """One node's side of the protocol, in the order of sentinel.cluster.client."""

    number: int
    plan: Plan
    authenticator: MessageAuthenticator
    writer: BatchEncoder = field(default_factory=BatchEncoder)
    waiting: list[Record] = field(default_factory=list)
    sent: int = 0
    acknowledged: int = -1
    row: int = 0
    sent_at: float = 0.0
    step: int = 0
    bytes: int = 0

    def __post_init__(self) -> None:
        local = self.plan.local
        self.ranks = range(self.number * local, (self.number + 1) * local)
        self.offset = random.random() * EXCHANGE_INTERVAL_SECONDS
        self.store = connect(self.plan.port)
        (head_info,) = self.store.read([HEAD_INFO_KEY])
        self.instance_id = HeadInfo.deserialize(
            self.authenticator.verify(HEAD_INFO_KEY, head_info)
        ).instance_id
        hello, self.mailbox, self.ack = slot_keys(self.store.increment(SLOT_COUNTER_KEY))
        host = f"node{self.number}"
        fields = {
            "host": host,
            "run": f"bench.{host}",
            "spool_id": host,
            "clock": repr(time.time()),
        }
        body = self.authenticator.sign(f"{hello}/{self.instance_id}", json.dumps(fields).encode())
        self.store.write({self.mailbox: b"", self.ack: b"", hello: body})

    def exchange(self) -> None:
        """Poll for the acknowledgement; once it is there, send all that waits."""
        if self.acknowledged < self.sent:
            self.poll_head()
        now = time.time()
        if self.acknowledged == self.sent and (
            self.waiting or now - self.sent_at >= HEARTBEAT_INTERVAL_SECONDS
        ):
            records, self.waiting = self.waiting, []
            last = self.row + bool(records)
            data = self.writer.encode(
                [*coalesce(records), self.heartbeat(now)], self.row + 1, last, now
            )
            self.row, self.sent, self.sent_at = last, self.sent + 1, now
            message = self.authenticator.sign(f"{self.mailbox}/{self.instance_id}", data)
            self.bytes += len(message)
            self.store.write({self.mailbox: message})

    def poll_head(self) -> None:
        """Read the head's newest message."""
        message = self.store.peek(self.ack)
        if message:
            body = self.authenticator.verify(f"{self.ack}/{self.instance_id}", message)
            self.acknowledged = ACK_STRUCT.unpack_from(body)[0]

    def start(self, now: float) -> None:
        sizes = {"world_size": float(self.plan.world), "local_world_size": float(self.plan.local)}
        self.waiting += [
            Record("", rank, 0, now, Event.START, sizes, sequence=1) for rank in self.ranks
        ]

    def add_step(self, now: float, names: Sequence[str], rows: list[list[float]]) -> None:
        """Add one step of all ranks of this node."""
        self.step += 1
        self.waiting += [
            Record(
                "", rank, self.step, now, values=dict(zip(names, row, strict=True)),
                step_index=self.step, sequence=self.step + 1,
            )
            for rank, row in zip(self.ranks, rows, strict=True)
        ]  # fmt: skip

    def heartbeat(self, now: float) -> Record:
        """The heartbeat of the ranks, part of each batch."""
        counts = {"ranks_running": float(len(self.ranks)), "ranks_gone": 0.0, "ranks_failed": 0.0}
        values = {**counts, "idle_seconds": round(random.random(), 6)}
        attributes = {
            "state": "running", "died_ranks": "", "failed_ranks": "",
            "straggler_ranks": str(self.ranks[0]),
            "straggler_step": str(self.step), "straggler_progress": f"{self.step},{self.step}",
        }  # fmt: skip
        return Record(
            "", WHOLE_RUN, self.step, now, Event.HEARTBEAT, values, attributes, step_index=self.step
        )

    def end(self, now: float) -> None:
        self.waiting += [
            Record(
                "", rank, self.step, now, Event.STOP, attributes={"outcome": "finished"},
                step_index=self.step, sequence=self.step + 2,
            )
            for rank in self.ranks
        ]  # fmt: skip


def connect(port: int) -> TorchStore:
    """A connection to the head, which may be busy; raises MessageStoreError after 4 minutes."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return TorchStore.connect("127.0.0.1", port)
        except MessageStoreError:
            if time.monotonic() > deadline:
                raise


def simulate(plan: Plan) -> dict[str, float]:
    """Run the plan; return bytes and batches sent, and the longest wait of a step."""
    authenticator = MessageAuthenticator.for_job(plan.token, plan.job)
    nodes = [Node(number, plan, authenticator) for number in range(plan.first, plan.last)]
    course = Course(plan.signals, int(plan.seconds / plan.pace) + 2)
    print("connected", flush=True)
    begins = float(sys.stdin.readline())
    ends = begins + plan.seconds
    for node in nodes:
        node.start(time.time())
    step, schedule, max_delay = 0, [(node.offset, node) for node in nodes], 0.0
    ended = False
    while not (ended and all(not node.waiting for node in nodes)):
        now = time.time()
        if now > ends + GRACE_SECONDS:
            break
        if not ended and now >= ends:
            ended = True
            for node in nodes:
                node.end(now)
        if not ended and now >= begins + step * plan.pace:
            max_delay = max(max_delay, now - begins - step * plan.pace)
            step += 1
            rows = course.rank_values(step, plan.local * len(nodes)).tolist()
            for index, node in enumerate(nodes):
                node.add_step(
                    now, course.names, rows[index * plan.local : (index + 1) * plan.local]
                )
        monotonic_now = time.monotonic()
        for index, (due_at, node) in enumerate(schedule):
            if monotonic_now >= due_at:
                node.exchange()
                schedule[index] = max(due_at + EXCHANGE_INTERVAL_SECONDS, monotonic_now), node
        time.sleep(0.005)
    return {
        "steps": step, "late": max_delay, "batches": sum(node.sent for node in nodes),
        "bytes": sum(node.bytes for node in nodes),
        "unsent": sum(len(node.waiting) for node in nodes),
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(simulate(Plan(**json.loads(sys.argv[1])))), flush=True)
