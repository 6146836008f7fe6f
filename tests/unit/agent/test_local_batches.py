"""An agent processes a step of the ranks of its node as one batch."""

from __future__ import annotations

import pytest

from sentinel.agent.main import Agent
from sentinel.config.settings import load_agent_settings
from sentinel.model.record import Event
from sentinel.model.record_batch import RecordBatch
from sentinel.transport.identity import Identity
from sentinel.transport.paths import ring_path
from sentinel.transport.record_codec import RecordEncoder, StepStamp
from sentinel.transport.ring import RingWriter

RANKS = 4


@pytest.fixture
def agent():
    agent = Agent("run", load_agent_settings())
    yield agent
    agent.source.close()
    agent.processor.onset_worker.stop(timeout=1.0)
    agent._release_storage()
    agent.registration.release()


@pytest.fixture
def encoders():
    identities = [Identity("run", 0, rank, rank, RANKS, RANKS) for rank in range(RANKS)]
    rings = [RingWriter(ring_path("run", 0, each.rank), each) for each in identities]
    yield [RecordEncoder(ring.write) for ring in rings]
    for ring in rings:
        ring.abandon()


def test_a_step_of_all_ranks_is_one_entry(agent, encoders, monkeypatch):
    entries = []
    process = agent.processor.process
    monkeypatch.setattr(
        agent.processor, "process", lambda entry: (entries.append(entry), process(entry))[1]
    )
    sizes = {"local_world_size": float(RANKS), "world_size": float(RANKS)}
    for encoder in encoders:
        encoder.write_event(Event.START, StepStamp(0, 0, 1e9), sizes)
    agent.run_once()
    for rank, encoder in enumerate(encoders):
        for step in (1, 2):
            encoder.write_values(
                encoder.schema_for(("loss",)), StepStamp(step, step, 1e9), [rank + step]
            )

    agent.run_once()

    batches = [entry for entry in entries if isinstance(entry, RecordBatch)]
    assert [batch.step for batch in batches] == [1, 2]
    assert [sorted(batch.ranks) for batch in batches] == [[0, 1, 2, 3]] * 2
    steps = [row for row in agent.processor.history.records("run") if row.event is Event.STEP]
    assert [(row.step, row.values["loss"], row.spread["loss"].count) for row in steps] == [
        (1, 2.5, RANKS)
    ]
