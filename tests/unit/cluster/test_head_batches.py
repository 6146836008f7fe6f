"""The head returns records of one step with the same names as one record batch."""

from __future__ import annotations

import pytest
from support.heads import HeadHarness

from sentinel.model.record import Event
from sentinel.model.record_batch import RecordBatch


@pytest.fixture
def harness(tmp_path):
    return HeadHarness(tmp_path / "sentinel.db")


def entries(harness, *local):
    """The entries of one iteration, with batches as they are."""
    harness.now += 0.5
    return harness.head.merge(local)


def test_records_of_all_nodes_with_the_same_names_become_one_batch(harness):
    node = harness.start_nodes()
    node.send(*node.records(step=5), node.heartbeat())

    batch, heartbeat = entries(
        harness, *harness.own_node.records(step=5), harness.own_node.heartbeat()
    )

    assert (batch.run, batch.step, batch.ranks) == ("run", 5, (0, 1, 2, 3))
    assert heartbeat.event is Event.HEARTBEAT


def test_a_batch_of_several_nodes_preserves_the_order_of_each_rank(harness):
    node = harness.start_nodes()
    two, three = node.ranks
    node.send(node.record(two, step=5), node.record(three, Event.STOP, 5))

    local = [
        *harness.own_node.records(step=5),
        harness.own_node.record(0, Event.SAVE, 5),
        *harness.own_node.records(step=5),
    ]
    first, save, second, stop = entries(harness, *local)

    assert (first.ranks, save.event, second.ranks) == (
        (0, 1),
        Event.SAVE,
        (0, 1, two),
    )
    assert (stop.rank, stop.event) == (three, Event.STOP)


def test_records_of_two_attempts_are_never_in_one_batch(harness):
    node = harness.start_nodes()
    node.send(*node.records(step=5))

    again = [
        *harness.own_node.records(Event.START, attempt=1),
        *harness.own_node.records(step=5, attempt=1),
    ]
    merged = entries(harness, *again)

    batches = [each for each in merged if isinstance(each, RecordBatch)]
    assert [(each.attempt, each.ranks) for each in batches] == [(1, (0, 1)), (0, (2, 3))]
