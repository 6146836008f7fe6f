"""The delivering half of an agent, as a process that can be killed at any moment."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.notifications import page

from sentinel.model.counters import Counters
from sentinel.notify import outbox
from sentinel.notify.dispatcher import Dispatcher
from sentinel.notify.sink_worker import DeliveryTiming
from sentinel.sinks.webhook import Webhook
from sentinel.store.database import connect

SINK = "webhook"
QUICK = DeliveryTiming(
    min_interval_seconds=0.002,
    deadline_seconds=60.0,
    max_sleep_seconds=0.02,
    uniform_random=lambda: 0.02,
)
"""The receiver hangs up long before the deadline, so that no answer is ever too slow for it."""

BETWEEN_ALERTS = 0.02
"""Seconds; so that kills meet alerts being raised as well as delivered."""


def deliver(path: Path, url: str, pages: int) -> None:
    """Raise `pages` alerts, one a transaction, and see to their delivery; then end."""
    logging.disable()
    courier = Dispatcher(path, {SINK: Webhook(url=url)}, Counters(), timing=QUICK)
    courier.start()
    with closing(connect(path)) as connection:
        (raised,) = connection.execute("select count(*) from outbox").fetchone()
        for episode in range(raised + 1, pages + 1):
            connection.execute("begin")
            outbox.enqueue(connection, page(episode=episode), [SINK])
            connection.execute("commit")
            courier.wake()
            time.sleep(BETWEEN_ALERTS)
    while courier.drain(1.0):
        pass
    courier.stop(1.0)
