"""Head: what ranks of all nodes say of a step in the same words goes on as one sheet."""

from __future__ import annotations

import pytest
from support.heads import House

from sentinel.model.record import Event
from sentinel.model.record_batch import RecordBatch


@pytest.fixture
def house(tmp_path):
    return House(tmp_path / "sentinel.db")


def entries(house, *local):
    """What a turn gives, as it is."""
    house.now += 0.5
    return house.head.merge(local)


def test_what_ranks_of_all_nodes_say_alike_is_one_sheet(house):
    node = house.running()
    node.decode(*node.says(step=5), node.tick())

    sheet, tick = entries(house, *house.own.says(step=5), house.own.tick())

    assert (sheet.run, sheet.step, sheet.differing_ranks) == ("run", 5, (0, 1, 2, 3))
    assert tick.event is Event.HEARTBEAT


def test_on_a_sheet_of_several_nodes_each_rank_keeps_its_order(house):
    node = house.running()
    two, three = node.differing_ranks
    node.decode(node.word(two, step=5), node.word(three, Event.STOP, 5))

    ours = [*house.own.says(step=5), house.own.word(0, Event.SAVE, 5), *house.own.says(step=5)]
    first, save, second, stop = entries(house, *ours)

    assert (first.differing_ranks, save.event, second.differing_ranks) == (
        (0, 1),
        Event.SAVE,
        (0, 1, two),
    )
    assert (stop.rank, stop.event) == (three, Event.STOP)


def test_words_of_an_attempt_that_is_over_are_on_no_sheet_with_those_of_the_next(house):
    node = house.running()
    node.decode(*node.says(step=5))

    again = [*house.own.says(Event.START, attempt=1), *house.own.says(step=5, attempt=1)]
    told = entries(house, *again)

    sheets = [each for each in told if isinstance(each, RecordBatch)]
    assert [(each.attempt, each.ranks) for each in sheets] == [(1, (0, 1)), (0, (2, 3))]
