"""The head combines the records of all nodes, each once, and acknowledges what is stored."""

from __future__ import annotations

import pytest
from support.heads import HeadHarness, Node, last_heartbeat, summarize
from support.message_stores import refusal_counts

from sentinel.cluster import head
from sentinel.cluster.membership import ABANDON_AFTER_SECONDS
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.store.database import transaction
from sentinel.transport.batch_codec import BatchEncoder


@pytest.fixture
def harness(tmp_path):
    return HeadHarness(tmp_path / "sentinel.db")


def test_records_of_all_nodes_get_the_name_of_the_run(harness):
    node = harness.start_nodes()
    node.send(*node.records(step=5))

    records = harness.merge(*harness.own_node.records(step=5))

    assert summarize(records) == [(0, 0, 5), (1, 0, 5), (2, 0, 5), (3, 0, 5)]
    assert {record.run for record in records if record.rank >= 2} == {"run"}


def test_a_command_reaches_the_ranks_whose_node_answers(harness):
    harness.start_nodes()
    assert harness.head.unreached_ranks(4) == []
    assert harness.head.unreached_ranks(5) == [4]
    harness.head.membership.end_sessions()
    assert harness.head.unreached_ranks(4) == [2, 3]


def test_a_message_is_acknowledged_only_after_the_commit(harness):
    node = harness.start_nodes()
    harness.server.acks.clear()
    node.send(*node.records(step=1))

    harness.head.merge(())
    assert harness.server.acks == []
    harness.head.after_commit()
    ((slot, number, row, _),) = harness.server.acks
    assert (slot, number, row) == (node.slot, 2, 2)


def test_a_head_killed_between_commit_and_ack_evaluates_no_record_twice(harness):
    node = harness.start_nodes()
    node.send(*node.records(step=1))
    harness.head.merge(())
    with transaction(harness.connection):
        harness.head.persist()
    harness.connection.close()

    harness.start_agent()
    node.send_hello()
    harness.merge()
    assert harness.server.acks == [(node.slot, 0, 2, True)]
    node.send(*node.records(step=2))
    assert summarize(harness.merge()) == [(2, 0, 2), (3, 0, 2)]


def test_a_head_killed_before_its_commit_receives_the_records_again(harness):
    node = harness.start_nodes()
    node.send(*node.records(step=1))
    harness.head.merge(())
    harness.connection.close()

    harness.start_agent()
    node.send_hello()
    harness.merge()
    assert harness.server.acks == [(node.slot, 0, 1, True)]
    node.send(*node.records(step=1), *node.records(step=2), after_row=1)
    assert summarize(harness.merge()) == [(2, 0, 1), (3, 0, 1), (2, 0, 2), (3, 0, 2)]


def test_a_head_without_its_database_continues_at_the_rows_of_the_nodes(harness, tmp_path):
    harness.start_nodes()
    harness.start_agent(tmp_path / "other.db")
    node = harness.add_node()
    assert harness.server.acks == [(node.slot, 0, 0, False)]

    node.send(*node.records(step=9), after_row=7)

    assert summarize(harness.merge()) == [(2, 0, 9), (3, 0, 9)]
    assert refusal_counts(harness.counters)["gap"] == 7.0


def test_records_that_a_node_without_its_database_resends_are_accepted_once(harness):
    node = harness.start_nodes()
    node.send(*node.records(step=1))
    harness.merge()
    node.send_hello(spool_id="another")
    harness.merge()
    node.last_row = 0
    node.send(*node.records(Event.START), *node.records(step=1), *node.records(step=2))

    assert summarize(harness.merge()) == [(2, 0, 2), (3, 0, 2)]
    assert refusal_counts(harness.counters)["repeated"] == 4.0


def test_a_new_session_drops_the_slot_of_the_previous_one(harness):
    node = harness.start_nodes()
    old = node.slot
    node.send_hello()
    harness.merge()
    assert harness.server.dropped_slots == [old]

    harness.server.messages.append((old, BatchEncoder().encode(node.records(step=1), 2, 2, 0.0)))
    assert summarize(harness.merge()) == []
    node.send(*node.records(step=1))
    assert summarize(harness.merge()) == [(2, 0, 1), (3, 0, 1)]


@pytest.mark.parametrize("reason", ["damaged", "repeated", "gap"])
def test_a_message_out_of_order_is_counted_and_ends_the_session(harness, reason):
    node = harness.start_nodes()
    data = node.send(*node.records(step=1))
    if reason == "gap":
        harness.server.messages.clear()
        node.send(*node.records(step=2))
    harness.merge()
    if reason == "damaged":
        harness.server.messages.append((node.slot, b"garbage"))
    if reason == "repeated":
        harness.server.messages.append((node.slot, data))
    harness.merge()

    assert refusal_counts(harness.counters) == {reason: 1.0}
    assert harness.server.dropped_slots == [node.slot]
    node.send_hello()
    harness.merge()
    node.last_row = 2 if reason != "gap" else 1
    node.send(*node.records(step=2))
    assert summarize(harness.merge()) == [(2, 0, 2), (3, 0, 2)]


def test_attempts_of_nodes_are_mapped_to_one_attempt_of_the_run(harness):
    harness.start_nodes()
    late = harness.add_node("c", (2, 3), run="other")
    harness.merge(*harness.own_node.records(Event.START, attempt=1))
    late.send(*late.records(Event.START, attempt=7), *late.records(step=1, attempt=7))

    records = harness.merge()

    assert summarize(records, Event.START) == [(2, 1, 1), (3, 1, 1)]
    assert summarize(records) == [(2, 1, 1), (3, 1, 1)]


def test_the_attempt_map_survives_a_restart_of_the_head(harness):
    node = harness.start_nodes()
    harness.merge(*harness.own_node.records(Event.START, attempt=1))
    node.send(*node.records(Event.START, attempt=4))
    harness.merge()
    harness.connection.close()

    harness.start_agent()
    node.send_hello()
    harness.merge()
    node.send(*node.records(step=3, attempt=4))
    assert summarize(harness.merge()) == [(2, 1, 3), (3, 1, 3)]


def test_a_start_expects_all_ranks_of_the_run(harness):
    (first, *_) = harness.merge(*harness.own_node.records(Event.START))

    assert first.values["expected_ranks"] == 4.0


@pytest.mark.parametrize("off", [3600.0, -3600.0])
def test_times_of_a_node_with_clock_skew_are_corrected(harness, off):
    harness.merge(*harness.own_node.records(Event.START))
    node = harness.add_node(clock_offset=off)
    node.send(*node.records(Event.START), *node.records(step=1))

    records = harness.merge(seconds=0.0)

    assert {record.time for record in records} == {harness.now}
    assert harness.head.node_status()[1]["skew_seconds"] == -off


def test_the_heartbeats_of_all_nodes_become_one(harness):
    node = harness.start_nodes()
    node.send(node.heartbeat())

    (heartbeat,) = harness.merge(harness.own_node.heartbeat())

    assert heartbeat.rank == WHOLE_RUN
    assert (heartbeat.values["nodes"], heartbeat.values["nodes_lost"]) == (2.0, 0.0)
    assert heartbeat.values["ranks_running"] == 4.0


def test_the_heartbeat_of_many_nodes_is_made_once_a_second(harness, monkeypatch):
    """The nodes send theirs no more often, and merging those of thousands takes time."""
    node = harness.start_nodes()
    harness.merge(seconds=5.0)
    assert len(harness.advance(4.0, others=[node])) == 8

    monkeypatch.setattr(head, "NODES_PER_INTERVAL", 1)
    monkeypatch.setattr(head, "HEARTBEAT_INTERVAL_SECONDS", 100.0)
    harness.merge(seconds=5.0)
    assert len(harness.advance(4.0, others=[node])) == 4

    harness.head.is_shutting_down = True
    (last,) = harness.merge(harness.own_node.heartbeat(), seconds=0.0)
    assert last.attributes["final"] == "yes"


def test_a_flood_of_hellos_is_acknowledged_and_changes_no_heartbeat(harness):
    harness.start_nodes()
    for number in range(500):
        Node(harness, f"host-{number}", (), run=f"r{number}").send_hello()
    harness.merge()

    assert len(harness.server.acks) >= 500
    assert last_heartbeat(harness.merge(harness.own_node.heartbeat())).values["nodes"] == 2.0


def test_records_of_nodes_with_the_same_name_are_all_accepted(harness):
    """As of containers that all have one host name and one run id."""
    harness.world_size = 6
    one = harness.start_nodes()
    two = Node(harness, "b", (4, 5), spool_id="other")
    received = []
    for step in range(1, 6):
        for node in (one, two):
            node.send_hello()
            harness.merge()
            (row,) = [row for slot, _, row, _ in harness.server.acks[-1:] if slot == node.slot]
            node.last_row = max(node.last_row, row)
            node.send(*(node.records(Event.START) if step == 1 else ()), *node.records(step=step))
            received += summarize(harness.merge())

    assert sorted(received) == [(rank, 0, step) for rank in (2, 3, 4, 5) for step in range(1, 6)]


def test_a_gathered_start_does_not_claim_the_rank_of_its_own_node(harness):
    """After a collective ends, the ranks' own agents continue in the same attempt."""
    gathered = [harness.own_node.record(rank, Event.START, via_collective="yes") for rank in (2, 3)]
    harness.merge(*harness.own_node.records(Event.START), *gathered)
    node = harness.add_node()
    node.send(*node.records(Event.START), *node.records(step=3))

    records = harness.merge(*harness.own_node.records(step=3))

    assert summarize(records) == [(0, 0, 3), (1, 0, 3), (2, 0, 3), (3, 0, 3)]
    assert harness.head.attempt_map.current == 0


def test_late_gathered_records_are_ignored_once_the_own_node_has_joined(harness):
    """Rank 0 writes gathered records at its next step, which may take minutes."""
    gathered = [harness.own_node.record(rank, Event.START, via_collective="yes") for rank in (2, 3)]
    harness.merge(*harness.own_node.records(Event.START), *gathered)
    late = [harness.own_node.record(rank, step=3) for rank in (2, 3)]
    assert summarize(harness.merge(*late)) == [(2, 0, 3), (3, 0, 3)]
    node = harness.add_node()
    node.send(*node.records(Event.START), *node.records(step=3), *node.records(step=4))
    harness.merge()
    ends = [harness.own_node.record(rank, Event.STOP, outcome="finished") for rank in (2, 3)]
    records = harness.merge(*harness.own_node.records(step=4), *late, *gathered, *ends)

    assert summarize(records) == [(0, 0, 4), (1, 0, 4)]
    assert summarize(records, Event.START) == []
    assert summarize(records, Event.STOP) == [(2, 0, 1), (3, 0, 1)]


@pytest.mark.parametrize(
    "end",
    [{"outcome": "unknown"}, {"outcome": "finished", "collective": "off: rank 3 ended"}],
    ids=["unknown", "elsewhere"],
)
def test_a_head_waits_for_nodes_whose_ranks_are_no_longer_gathered(harness, end):
    """They raise shortly after rank 0, and only then start an agent, which must find its head."""
    gathered = [harness.own_node.record(rank, Event.START, via_collective="yes") for rank in (2, 3)]
    harness.merge(*harness.own_node.records(Event.START), *gathered)
    ends = [harness.own_node.record(rank, Event.STOP, **end) for rank in (2, 3)]
    harness.merge(*harness.own_node.records(Event.STOP, outcome="exception"), *ends)
    harness.advance(ABANDON_AFTER_SECONDS - 5)
    assert (harness.head.finished, harness.server.run_finished) == (False, False)
    node = harness.add_node()
    node.send(*node.records(Event.START), *node.records(Event.STOP, step=9, outcome="exception"))
    assert summarize(harness.merge(), Event.STOP) == [(2, 0, 9), (3, 0, 9)]
    harness.advance(10.0)

    assert (harness.head.finished, harness.server.run_finished) == (True, True)


def test_a_head_is_finished_once_all_ranks_have_ended(harness):
    node = harness.start_nodes()
    node.send(*node.records(Event.STOP, outcome="exception"), node.heartbeat("failed"))
    harness.merge(
        *harness.own_node.records(Event.STOP, outcome="exception"),
        harness.own_node.heartbeat("failed"),
    )

    assert harness.server.run_finished


def test_a_node_whose_attempts_restart_at_0_joins_the_newest_attempt(harness):
    """A restarted container has its old name, and counts its attempts from 0 again."""
    node = harness.start_nodes()
    node.send(*node.records(step=1), *node.records(step=2))
    harness.merge()
    harness.merge(*harness.own_node.records(Event.START, attempt=1))
    node.send_hello(spool_id="another")
    harness.merge()
    node.last_row, node.started_at = 0, 0.0
    node.send(*node.records(Event.START), *node.records(step=1))

    assert summarize(harness.merge()) == [(2, 1, 1), (3, 1, 1)]
