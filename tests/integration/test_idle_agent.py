"""How often an agent polls where no record arrives: for scans of rings, or seldom after the end."""

from __future__ import annotations

import pytest
from support.rank_processes import ranks

from sentinel.agent.main import (
    ENDED_POLL_INTERVAL_SECONDS,
    POLL_INTERVAL_SECONDS,
    POLLS_PER_GAP,
    Agent,
)
from sentinel.config.settings import load_settings
from sentinel.live.rings import FAILURE_SETTLE_SECONDS, SCAN_INTERVAL_SECONDS


@pytest.fixture
def waits(monkeypatch):
    """The waits of an agent whose clock advances by them; it serves the run until it ends."""

    def serve(max_waits=400):
        now, found = [1000.0], []
        agent = Agent(
            "live", load_settings({"port": 0, "linger_seconds": 30.0}), clock=lambda: now[0]
        )

        def wait(seconds):
            found.append(seconds)
            now[0] += seconds
            if len(found) == max_waits:
                agent.request_stop("SIGTERM")

        monkeypatch.setattr(agent.source, "wait", wait)
        agent.serve()
        return found

    return serve


def test_before_the_first_rank_an_agent_polls_as_often_as_it_scans(waits):
    assert set(waits(max_waits=20)) == {SCAN_INTERVAL_SECONDS}


def test_a_run_that_ended_a_while_ago_is_polled_once_a_second(waits):
    with ranks() as begin:
        begin(0, world=1, steps=5, ending="finished")
        found = waits()

    assert found[0] == POLL_INTERVAL_SECONDS
    assert found[-1] == ENDED_POLL_INTERVAL_SECONDS
    often = [wait for wait in found if wait <= POLL_INTERVAL_SECONDS]
    assert often == found[: len(often)]
    assert sum(often) >= FAILURE_SETTLE_SECONDS


def test_the_interval_grows_with_the_time_without_a_record(waits):
    with ranks() as begin:
        begin(0, world=1, steps=5)
        found = waits(max_waits=60)

    assert found[0] == POLL_INTERVAL_SECONDS
    assert found == sorted(found)
    assert found[-1] == SCAN_INTERVAL_SECONDS
    assert sum(found[: found.index(SCAN_INTERVAL_SECONDS)]) >= SCAN_INTERVAL_SECONDS * POLLS_PER_GAP
