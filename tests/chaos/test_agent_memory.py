"""The memory of an agent does not grow with the number of steps.

benchmarks/long_run.py measures a million steps.
"""

from __future__ import annotations

import re
import time
from contextlib import closing
from pathlib import Path

import pytest
from support.acknowledged_runs import isolated, start_agent
from support.rank_processes import until

from sentinel.model.record import Event
from sentinel.store.database import connect
from sentinel.transport.identity import Identity
from sentinel.transport.paths import current_run_dir, ring_path
from sentinel.transport.record_codec import RecordEncoder, StepStamp
from sentinel.transport.ring import RingWriter

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

RUN = "memory"
MAX_BYTES = 200 << 20
MAX_GROWTH_BYTES = 24 << 20
"""Of caches that fill up; a record that is kept would cost a kilobyte, far more in the long run."""


@pytest.mark.full
@pytest.mark.fault("A7")
@pytest.mark.parametrize(("ranks", "signals", "steps"), [(8, 20, 500), (64, 50, 100)])
def test_the_memory_of_an_agent_is_bounded(tmp_path, monkeypatch, ranks, signals, steps):
    for name, value in isolated(tmp_path).items():
        monkeypatch.setenv(name, value)
    writers = [Writer(rank, ranks, signals) for rank in range(ranks)]
    agent = start_agent(RUN)
    try:
        used = []
        for part in range(4):
            for writer in writers:
                writer.write(range(part * steps + 1, (part + 1) * steps + 1))
            wait_for_step((part + 1) * steps - 1)
            used.append(own_bytes(agent.pid))
    finally:
        agent.kill()
        agent.wait()
    assert used[-1] < MAX_BYTES
    assert used[-1] - used[1] < MAX_GROWTH_BYTES


class Writer:
    """Writes the ring of a rank in this process."""

    def __init__(self, rank, world, signals):
        identity = Identity(RUN, 0, rank, rank, world, world)
        self.ring = RingWriter(ring_path(RUN, 0, rank), identity, 1 << 20)
        self.encoder = RecordEncoder(self.ring.write)
        sizes = {"world_size": float(world), "local_world_size": float(world)}
        self.encoder.write_event(Event.START, StepStamp(0, 0, time.time()), sizes)
        self.names = ("loss", *(f"signal_{at}" for at in range(signals - 1)))

    def write(self, steps):
        for step in steps:
            values = [2.0 + at + 0.01 * (step % 7) for at in range(len(self.names))]
            stamp = StepStamp(step, step, time.time())
            self.encoder.write_values(self.encoder.schema_for(self.names), stamp, values)
            self.ring.publish_step(step, step, time.time())


def wait_for_step(step):
    """Wait until the agent has stored that step."""
    query = "select coalesce(max(step), 0) from step where event = 'step'"
    with closing(connect(current_run_dir(RUN) / "sentinel.db")) as database:
        until(lambda: database.execute(query).fetchone()[0] >= step, 300.0, f"step {step}")


def own_bytes(pid):
    """Memory of a process without that of files, such as the rings."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) << 10
