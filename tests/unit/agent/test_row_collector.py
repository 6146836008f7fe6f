"""Which rows the agent stores when an incident opens."""

from contextlib import closing
from dataclasses import replace
from struct import pack

import pytest
from support.notifications import make_notification

from sentinel.agent.row_collector import (
    NO_LOADER,
    NO_RANKS,
    OTHER_NODES,
    SWITCHED_OFF,
    TOO_OLD,
    RowCollector,
)
from sentinel.model.notification import NotificationReason
from sentinel.model.record import WHOLE_RUN, Record, Spread
from sentinel.pipeline.engine import Result
from sentinel.store.database import connect
from sentinel.store.incident_rows import IncidentRows, RankRows, load_incident_rows
from sentinel.transport.command_page import ROWS_OFF_WORD, command_page_path, open_or_create
from sentinel.transport.row_page import RowPage, row_page_path

RUN = "sft-1"
STRIDE = 16
"""The trainer counts samples, not steps."""


@pytest.fixture
def connection(tmp_path):
    with closing(connect(tmp_path / "sentinel.db")) as opened:
        yield opened


@pytest.fixture
def pages(tmp_path):
    """Rings of four ranks, and the row page of each."""
    rings = {rank: tmp_path / f"0-{rank}.ring" for rank in range(4)}
    made = {rank: RowPage(row_page_path(ring), 2) for rank, ring in rings.items()}
    yield rings, made
    for page in made.values():
        page.close()


def write_steps(pages, first, last):
    for rank, page in pages.items():
        for index in range(first, last + 1):
            # A rank knows the number of a step only after it.
            page.write(index, 0, pack("2q", index, rank), 2)


def step(index, worst=0, bad=()):
    spread = Spread(4, 1.0, 0.5, 2.0, 4.0, 0.5, 0, worst, bad)
    return Result(
        Record(RUN, WHOLE_RUN, STRIDE * index, 0.0, step_index=index, spread={"loss": spread})
    )


def opened(onset_index, index, detector="loss_spike", rank=WHOLE_RUN):
    notification = make_notification(run=RUN, detector=detector, rank=rank)
    notification.incident.onset_step = STRIDE * onset_index
    return replace(step(index), notifications=(notification,))


def collect(connection, rings, *results, **settings):
    collector = RowCollector(connection, lambda: rings, **settings)
    for result in results:
        collector.update(result)
    name = results[-1].notifications[0].incident.name
    return load_incident_rows(connection, [name]).get(name)


def test_the_rows_of_the_onset_are_stored_first_and_those_of_the_departing_ranks(connection, pages):
    rings, made = pages
    write_steps(made, 1, 40)
    found = collect(
        connection, rings, step(29), step(30, worst=2, bad=(3,)), step(31), opened(30, 32)
    )

    assert [each.rank for each in found.of_step] == [3, 2, 0, 1]
    assert found.of_step[0] == RankRows(3, 30 * STRIDE, 2, (30, 3))
    assert [each.rows[0] for each in found.ranks[::4]] == [30, 29, 31, 32]
    assert found.gap == ""


def test_a_step_that_the_agent_did_not_see_is_found_by_its_number(connection, pages):
    rings, made = pages
    write_steps(made, 1, 40)
    result = opened(0, 30)
    result.notifications[0].incident.onset_step = 30 * STRIDE - 2

    assert collect(connection, rings, result).ranks[0].rows[0] == 28


@pytest.mark.parametrize(("last", "gap"), [(0, NO_LOADER), (100_000, TOO_OLD)])
def test_without_rows_the_reason_is_stored(connection, pages, last, gap):
    rings, made = pages
    write_steps(made, max(1, last - 1500), last)
    if gap == NO_LOADER:
        rings = {rank: path.with_name(f"1-{rank}.ring") for rank, path in rings.items()}
    assert collect(connection, rings, step(30), opened(30, 30)) == IncidentRows([], gap)


def test_a_reason_of_the_ranks_is_stored(connection, pages):
    rings, made = pages
    made[2].set_gap(1)
    assert "iterable" in collect(connection, rings, opened(30, 30)).gap


def test_a_log_has_no_rows(connection):
    assert collect(connection, {}, opened(30, 30)) == IncidentRows([], NO_RANKS)


def test_rows_of_other_nodes_are_named_as_missing(connection, pages):
    rings, made = pages
    write_steps(made, 1, 40)
    start = Result(Record(RUN, WHOLE_RUN, 0, 0.0, values={"world_size": 8.0}))
    assert collect(connection, rings, start, step(30), opened(30, 30)).gap == OTHER_NODES


def test_an_incident_that_is_no_matter_of_rows_or_did_not_open_has_none(connection, pages):
    rings, made = pages
    write_steps(made, 1, 40)
    assert collect(connection, rings, opened(30, 30, "reward_stalled")) is None
    result = opened(30, 30)
    (notification,) = result.notifications
    closed = replace(notification, reason=NotificationReason.RESOLVED)
    assert collect(connection, rings, replace(result, notifications=(closed,))) is None


def test_the_rows_of_an_incident_that_opens_again_are_kept(connection, pages):
    rings, made = pages
    write_steps(made, 1, 40)
    first = collect(connection, rings, step(30), opened(30, 30))
    assert collect(connection, rings, step(35), opened(35, 35)) == first


def test_ranks_are_asked_to_note_none_if_rows_are_off(connection, pages):
    rings, made = pages
    write_steps(made, 1, 40)
    collector = RowCollector(connection, lambda: rings, is_on=False)
    # The ranks have no command page yet.
    collector.poll()
    with closing(open_or_create(command_page_path(rings[0], 0))) as page:
        assert not page.words[ROWS_OFF_WORD]
        collector.poll()
        assert page.words[ROWS_OFF_WORD]
    assert collect(connection, rings, opened(30, 30), is_on=False) == IncidentRows([], SWITCHED_OFF)
