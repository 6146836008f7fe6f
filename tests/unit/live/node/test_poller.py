"""MetricPoller stores the latest result, retries failures and never blocks."""

from __future__ import annotations

import logging
from itertools import count
from threading import Event

from support.rank_processes import until

from sentinel.live.node.poller import MAX_RETRY_SECONDS, MetricPoller
from sentinel.model.counters import Counters

COUNTED = ("sentinel_node_read_errors_total", "gpu")


def failing():
    raise OSError("no driver")


def test_the_latest_result_is_stored_with_its_time():
    clock = count(100.0, 5.0)
    reads = iter(["first", "second"])
    poller = MetricPoller("gpu", lambda: next(reads), 5.0, Counters(), clock.__next__)

    assert poller.latest is None
    assert poller.poll_once() == 5.0
    assert poller.latest == (100.0, "first")
    poller.poll_once()
    assert poller.latest == (105.0, "second")


def test_a_failed_read_is_counted_logged_once_and_retried_with_backoff(caplog):
    poller = MetricPoller("gpu", failing, 5.0, counters := Counters())
    with caplog.at_level(logging.INFO):
        delays = [poller.poll_once() for _ in range(2000)]

    assert delays[:4] == [10.0, 20.0, 40.0, 80.0]
    assert delays[-1] == MAX_RETRY_SECONDS
    assert counters.values[COUNTED] == 2000.0
    (message,) = [record.getMessage() for record in caplog.records]
    assert "OSError: no driver" in message


def test_a_successful_read_resets_the_backoff():
    poller = MetricPoller("gpu", failing, 5.0, Counters())
    poller.poll_once()
    poller.read = lambda: "well"

    assert poller.poll_once() == 5.0
    assert poller.consecutive_failures == 0


def test_a_failed_read_leaves_the_latest_result():
    poller = MetricPoller("gpu", lambda: "well", 5.0, Counters(), lambda: 100.0)
    poller.poll_once()
    poller.read = failing
    poller.poll_once()

    assert poller.latest == (100.0, "well")


def test_a_hanging_read_blocks_neither_start_nor_stop():
    """Neither `start` nor `stop` waits for a read."""
    started, never = Event(), Event()

    def hang():
        started.set()
        never.wait()

    poller = MetricPoller("gpu", hang, 5.0, counters := Counters())
    poller.start()
    assert started.wait(240)
    poller.stop()

    assert poller.latest is None
    assert counters.values[COUNTED] == 0.0
    never.set()


def test_it_polls_until_it_is_stopped():
    counter = count()
    poller = MetricPoller("gpu", lambda: next(counter), 0.001, Counters())
    poller.start()
    until(lambda: poller.latest and poller.latest[1] >= 3, 240.0, "several looks")
    poller.stop()
