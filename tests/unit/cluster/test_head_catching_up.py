"""Steps wait for the records of nodes that still send, but not for nodes that are lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.followers import FollowerHarness, heartbeat
from support.heads import HeadHarness, last_heartbeat

from sentinel.aggregate.aligner import Aligner
from sentinel.cluster import follower, head
from sentinel.cluster.heartbeats import UNSENT_KEY
from sentinel.cluster.membership import LOST_AFTER_SECONDS, MAX_BEHIND_SECONDS
from sentinel.model.record import WHOLE_RUN, Event


@pytest.fixture
def harness(tmp_path):
    return HeadHarness(tmp_path / "sentinel.db")


def unread(records):
    return last_heartbeat(records).attributes.get("unread_ranks", "")


def test_a_suspended_head_loses_no_record_of_another_node(harness):
    """Its own records of the time are read at once, those of the node in the second message."""
    node = harness.start_nodes()
    aligner, combined = Aligner(harness.counters), []

    def process(records):
        made = (each for record in records for each in aligner.process(record))
        combined.extend(r for r in made if r.rank == WHOLE_RUN and r.event is Event.STEP)

    process(node.records(Event.START) + harness.own_node.records(Event.START))
    process(harness.advance(2, others=[node]))
    node.send(*node.records(step=1), node.heartbeat())
    own = [record for step in range(1, 51) for record in harness.own_node.records(step=step)]
    process(harness.merge(*own, harness.own_node.heartbeat(), seconds=600.0))
    process(harness.merge(harness.own_node.heartbeat()))
    rest = [record for step in range(2, 51) for record in node.records(step=step)]
    node.send(*rest, node.heartbeat())
    process(harness.merge(harness.own_node.heartbeat()))
    process(harness.advance(2, others=[node]))

    assert [record.step for record in combined] == [*range(1, 51)]
    assert all("missing" not in record.attributes for record in combined)
    assert not harness.counters.values["sentinel_dropped_records_total", "late"]


def test_a_node_with_unsent_records_is_awaited_for_a_while(harness):
    node = harness.start_nodes()
    behind = node.heartbeat()
    behind = replace(behind, attributes={**behind.attributes, UNSENT_KEY: "yes"})
    node.send(behind)
    records = harness.merge(harness.own_node.heartbeat())
    assert unread(records) == "2,3"
    for _ in range(int(2 * MAX_BEHIND_SECONDS)):
        node.send(behind)
        records = harness.merge(harness.own_node.heartbeat())
    assert unread(records) == ""

    node.send(node.heartbeat())
    harness.merge(harness.own_node.heartbeat())
    node.send(behind)
    assert unread(harness.merge(harness.own_node.heartbeat())) == "2,3"


def test_a_node_that_is_lost_while_the_head_was_suspended_is_not_awaited(harness):
    harness.start_nodes()
    assert unread(harness.merge(harness.own_node.heartbeat(), seconds=60.0)) == "2,3"

    assert unread(harness.advance(LOST_AFTER_SECONDS + 1)) == ""


def test_messages_that_have_arrived_are_processed_in_parts(harness, monkeypatch):
    monkeypatch.setattr(head, "MAX_TURN_BYTES", 1)
    harness.start_nodes()
    nodes = [harness.add_node(host, (rank,)) for rank, host in enumerate("cde", 4)]
    for node in nodes:
        node.send(*node.records(Event.START), node.heartbeat())
    seen = []
    for count in (2, 1, 0):
        records = harness.merge(harness.own_node.heartbeat())
        seen += [record.rank for record in records if record.event is Event.START]
        assert (harness.head.has_unread, len(harness.server.waiting_slots())) == (count > 0, count)
    assert seen == [4, 5, 6]


def test_a_follower_says_that_it_has_more_to_send(tmp_path, monkeypatch):
    monkeypatch.setattr(follower, "TARGET_MESSAGE_BYTES", 1)
    harness = FollowerHarness(tmp_path / "sentinel.db")
    for _ in range(3):
        harness.forward(*harness.next_records(), heartbeat())
    harness.client.accept()
    flags = []
    for _ in range(3):
        harness.forward(heartbeat())
        last = harness.client.acknowledge().entries[-1]
        flags.append(UNSENT_KEY in last.attributes)
    assert flags == [True, True, False]
