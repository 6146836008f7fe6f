"""A follower sends each record to the head once, in order, or holds it in its spool."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.followers import FollowerHarness, heartbeat, record, steps

from sentinel.cluster.follower import (
    FINAL_DELIVERY_TIMEOUT_SECONDS,
    FLOODED_HEAD_LOST_AFTER_SECONDS,
    HEAD_LOST_AFTER_SECONDS,
    HEAD_RETURN_SECONDS,
    HEARTBEAT_INTERVAL_SECONDS,
)
from sentinel.model.record import Event


@pytest.fixture
def harness(tmp_path):
    return FollowerHarness(tmp_path / "sentinel.db")


@pytest.mark.fault("A11")
def test_records_are_sent_in_order_and_deleted_once_acknowledged(harness):
    harness.client.accept()
    harness.forward(*harness.next_records(2))
    harness.forward(*harness.next_records(3))

    assert steps(harness.client.acknowledge()) == [1, 2]
    harness.forward(*harness.next_records())
    assert steps(harness.client.acknowledge()) == [3, 4, 5, 6]
    harness.forward()

    assert harness.spool.size_bytes == 0
    assert harness.follower.finished


def test_a_follower_evaluates_no_record_of_its_node(harness):
    harness.client.accept()

    assert harness.forward(*harness.next_records(3), heartbeat()) == []


def test_only_one_message_is_unacknowledged_at_a_time(harness):
    harness.client.accept()
    for _ in range(5):
        harness.forward(*harness.next_records())

    assert steps(harness.client.acknowledge()) == [1]
    harness.forward()
    assert steps(harness.client.acknowledge()) == [2, 3, 4, 5]


def test_a_row_that_is_not_stored_is_not_sent(harness):
    harness.client.accept()
    harness.follower.forward(harness.next_records(2))
    harness.follower.after_commit()

    assert harness.client.sent == []


def test_records_read_before_there_is_a_head_are_spooled(harness):
    harness.advance(5, record(1))
    harness.client.accept()
    harness.forward()

    assert steps(harness.client.receive()) == [1] * 10


@pytest.mark.fault("A11")
def test_unacknowledged_rows_are_sent_again_in_a_new_session(harness):
    harness.client.accept()
    harness.forward(*harness.next_records(2))
    harness.client.acknowledge()
    harness.forward(*harness.next_records(2))
    harness.client.receive()
    harness.client.is_connected = False
    harness.forward(*harness.next_records(2))

    harness.client.accept(last_row=1)
    harness.forward()

    message = harness.client.receive()
    assert (message.number, message.first_row, message.last_row) == (1, 2, 3)
    assert steps(message) == [3, 4, 5, 6]


def test_a_new_session_continues_after_the_last_row_of_the_head(harness):
    harness.client.accept()
    harness.forward(*harness.next_records(2))
    harness.client.is_connected = False
    harness.forward()

    harness.client.accept(last_row=1)
    harness.forward(*harness.next_records())

    assert steps(harness.client.receive()) == [3]


def test_a_head_without_its_database_receives_all_spooled_rows(harness):
    harness.client.accept()
    for _ in range(3):
        harness.forward(*harness.next_records())
        harness.client.acknowledge()
    harness.forward()
    harness.client.is_connected = False
    harness.forward(*harness.next_records())

    harness.client.accept(last_row=0)
    harness.forward()

    message = harness.client.receive()
    assert (message.first_row, message.last_row, steps(message)) == (4, 4, [4])


def test_a_restarted_follower_continues_its_spool(harness):
    harness.forward(*harness.next_records(2))
    spool_id = harness.spool.spool_id
    harness.start_agent()
    assert harness.spool.spool_id == spool_id

    harness.client.accept()
    harness.forward(*harness.next_records())
    assert steps(harness.client.acknowledge()) == [1, 2, 3]


def test_a_follower_with_a_new_database_has_another_spool_id(harness, tmp_path):
    harness.forward(*harness.next_records(2))
    spool_id = harness.spool.spool_id
    harness.start_agent(tmp_path / "other.db")

    assert harness.spool.spool_id != spool_id


def test_a_full_spool_drops_its_oldest_rows_and_sends_the_rest(tmp_path):
    harness = FollowerHarness(tmp_path / "sentinel.db", max_spool_bytes=2000)
    for _ in range(100):
        harness.forward(*harness.next_records())
    dropped = harness.counters.values["sentinel_dropped_records_total", "spool"]
    assert 0 < dropped < 100

    harness.client.accept()
    harness.forward()

    message = harness.client.receive()
    assert steps(message) == [*range(int(dropped) + 1, 101)]
    assert message.first_row == dropped + 1


def test_records_of_a_failed_transaction_are_not_spooled(harness):
    harness.forward(*harness.next_records())
    harness.follower.forward(harness.next_records())
    harness.connection.execute("begin")
    harness.follower.persist()
    harness.connection.execute("rollback")
    harness.connection.close()

    harness.start_agent()
    harness.client.accept()
    harness.forward()

    # The agent reads the other record from its ring again.
    assert steps(harness.client.receive()) == [1]


def test_heartbeats_are_sent_without_records(harness):
    harness.client.accept()
    harness.advance(HEARTBEAT_INTERVAL_SECONDS + 1, heartbeat(idle_seconds=4.0))
    first = harness.client.acknowledge()
    harness.advance(HEARTBEAT_INTERVAL_SECONDS + 1, heartbeat(idle_seconds=6.0))
    second = harness.client.acknowledge()

    assert [record.values["idle_seconds"] for record in first.entries] == [4.0]
    assert [record.values["idle_seconds"] for record in second.entries] == [6.0]
    assert (second.first_row, second.last_row) == (1, 0)
    assert harness.spool.size_bytes == 0


def test_measurements_since_the_last_message_are_in_the_newest_heartbeat(harness):
    harness.client.accept()
    harness.client.is_connected = False
    harness.forward(heartbeat(idle_seconds=1.0, memory_used=5.0, gpu_utilisation=50.0))
    harness.forward(heartbeat(idle_seconds=2.0))
    harness.client.is_connected = True
    harness.advance(HEARTBEAT_INTERVAL_SECONDS + 1)

    (newest,) = harness.client.acknowledge().entries
    assert newest.values["idle_seconds"] == 2.0
    assert newest.values["gpu_utilisation"] == 50.0


def test_a_follower_is_finished_once_all_rows_are_acknowledged(harness):
    harness.client.accept()
    harness.forward(*harness.next_records())
    assert not harness.follower.finished
    harness.client.acknowledge()
    harness.forward()

    assert harness.follower.finished


def test_a_follower_without_a_head_is_finished_a_while_after_its_last_record(harness):
    harness.advance(FINAL_DELIVERY_TIMEOUT_SECONDS + 30, record(1))
    assert not harness.follower.finished, "the last record was just read"

    harness.advance(FINAL_DELIVERY_TIMEOUT_SECONDS - 1)
    assert not harness.follower.finished
    harness.advance(2)
    assert harness.follower.finished


def test_the_head_is_not_lost_after_a_follower_was_suspended(harness):
    harness.client.accept()
    harness.forward(*harness.next_records())
    harness.forward(seconds=600.0)

    assert harness.follower.silent_seconds < HEAD_LOST_AFTER_SECONDS
    assert not harness.follower.finished


@pytest.mark.fault("T6")
def test_the_head_is_not_lost_after_a_step_of_the_clock(harness):
    harness.client.accept()
    harness.forward(*harness.next_records())
    for seconds in (3600.0, -7200.0, 3600.0):
        harness.forward(seconds=seconds)

    assert harness.follower.silent_seconds < HEAD_LOST_AFTER_SECONDS


def forward_until_head_is_lost(harness, *, is_deputy):
    """What the follower evaluates itself when the head falls silent while ranks are running."""
    harness.client.accept()
    harness.forward(*harness.next_records())
    harness.client.acknowledge(is_deputy=is_deputy)
    harness.forward(*harness.next_records())
    return harness.advance(HEAD_LOST_AFTER_SECONDS + 1, heartbeat(idle_seconds=0.0))


def test_the_deputy_reports_a_silent_head(harness):
    *_, last = forward_until_head_is_lost(harness, is_deputy=True)

    assert last.attributes["head_lost"] == "a:1"
    assert last.values["nodes_lost"] == 1.0


def test_a_head_that_reported_a_flood_is_lost_later(harness):
    """Nodes may not reach it, and it sends a notification itself."""
    forward_until_head_is_lost(harness, is_deputy=True)
    harness.client.is_connected = False
    assert harness.follower.confirms_loss()
    harness.client.is_head_flooded = True

    heartbeats = harness.advance(10.0, heartbeat(idle_seconds=0.0))
    assert {each.values["nodes_lost"] for each in heartbeats} == {0.0}
    assert not harness.follower.confirms_loss()
    *_, last = harness.advance(FLOODED_HEAD_LOST_AFTER_SECONDS, heartbeat(idle_seconds=0.0))
    assert last.values["nodes_lost"] == 1.0
    assert harness.follower.confirms_loss()


def test_a_follower_that_is_not_the_deputy_reports_no_silent_head(harness):
    assert forward_until_head_is_lost(harness, is_deputy=False) == []


def test_the_deputy_reports_no_silent_head_once_its_ranks_have_ended(harness):
    harness.client.accept()
    harness.forward(*harness.next_records())
    harness.client.acknowledge(is_deputy=True)
    harness.forward(record(2, Event.STOP))

    heartbeats = harness.advance(HEAD_LOST_AFTER_SECONDS + 1, heartbeat())

    assert heartbeats
    assert all(each.values["nodes_lost"] == 0.0 for each in heartbeats)


def test_the_status_has_connection_and_spooled_bytes(harness):
    harness.forward(*harness.next_records())

    status = harness.follower.status()

    assert status["connected"] is False
    assert status["spooled_bytes"] > 0


@pytest.mark.parametrize(("outcome", "nodes_lost"), [("exception", 1.0), ("finished", 0.0)])
def test_the_deputy_reports_ranks_that_fail_with_the_node_of_the_head(harness, outcome, nodes_lost):
    """With DDP the other ranks raise at once. Ranks that finished need no notification."""
    harness.client.accept()
    harness.forward(record(1))
    harness.client.acknowledge(is_deputy=True)
    stop = replace(record(2, Event.STOP), attributes={"outcome": outcome})
    harness.forward(stop)

    heartbeats = harness.advance(HEAD_LOST_AFTER_SECONDS + 1, heartbeat())

    assert not harness.follower.finished
    assert heartbeats[-1].values["nodes_lost"] == nodes_lost


def test_the_loss_of_the_head_is_sent_unless_the_head_is_back(harness, monkeypatch):
    """A head whose port answers again has some time to acknowledge a message."""
    forward_until_head_is_lost(harness, is_deputy=True)
    now = 100.0
    monkeypatch.setattr("sentinel.cluster.follower.time.monotonic", lambda: now)
    harness.client.is_connected = False
    assert harness.follower.confirms_loss()
    harness.client.is_reachable = True
    assert not harness.follower.confirms_loss()
    now += HEAD_RETURN_SECONDS
    assert harness.follower.confirms_loss()

    harness.client.accept()
    harness.forward()
    assert harness.follower.is_head_back
    assert not harness.follower.confirms_loss()
