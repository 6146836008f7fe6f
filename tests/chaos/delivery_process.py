"""Queues and delivers notifications in a process that the test kills."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.notifications import make_notification
from support.updating_sinks import UpdatingSink

from sentinel.model.counters import Counters
from sentinel.model.notification import NotificationReason
from sentinel.notify import outbox
from sentinel.notify.dispatcher import Dispatcher
from sentinel.notify.outbox import QueueRules
from sentinel.notify.sink_worker import DeliveryTiming
from sentinel.sinks.webhook import Webhook
from sentinel.store.database import connect

SINK = "webhook"
FAST = DeliveryTiming(
    min_interval_seconds=0.002,
    deadline_seconds=60.0,
    max_sleep_seconds=0.02,
    uniform_random=lambda: 0.02,
)
"""The receiver closes hanging requests long before the deadline."""

ENQUEUE_INTERVAL_SECONDS = 0.02
"""Long enough that kills interrupt queueing as well as delivery."""


def deliver(path: Path, url: str, count: int) -> None:
    """Queue `count` notifications, one a transaction, and return when all are delivered."""
    logging.disable()
    dispatcher = Dispatcher(path, {SINK: Webhook(url=url)}, Counters(), timing=FAST)
    dispatcher.start()
    with closing(connect(path)) as connection:
        (queued,) = connection.execute("select count(*) from outbox").fetchone()
        for episode in range(queued + 1, count + 1):
            connection.execute("begin")
            outbox.enqueue(connection, make_notification(episode=episode), [SINK])
            connection.execute("commit")
            dispatcher.wake()
            time.sleep(ENQUEUE_INTERVAL_SECONDS)
    while dispatcher.drain(1.0):
        pass
    dispatcher.stop(1.0)


def deliver_updates(path: Path, url: str, count: int) -> None:
    """Queue `count` cases, each opened and changed twice, and return when all are delivered."""
    logging.disable()
    dispatcher = Dispatcher(path, {SINK: UpdatingSink(url)}, Counters(), timing=FAST)
    dispatcher.start()
    reasons = (
        (NotificationReason.OPENED, 0),
        (NotificationReason.UPDATED, 1),
        (NotificationReason.UPDATED, 2),
    )
    with closing(connect(path)) as connection:
        for episode in range(1, count + 1):
            for reason, number in reasons:
                notification = make_notification(reason, episode=episode, summary=f"{number}")
                connection.execute("begin")
                outbox.enqueue(
                    connection,
                    replace(notification, number=number),
                    [SINK],
                    rules=QueueRules(updatable=[SINK]),
                )
                connection.execute("commit")
                dispatcher.wake()
                time.sleep(ENQUEUE_INTERVAL_SECONDS)
    while dispatcher.drain(1.0):
        pass
    dispatcher.stop(1.0)
