"""A sink worker with its outbox, a local receiver and a clock that the test advances."""

from __future__ import annotations

from contextlib import closing, contextmanager

from support.clocks import FakeClock
from support.notifications import NOW
from support.webhook_receiver import Receiver, deadlines_from_silence

from sentinel.model.counters import Counters
from sentinel.notify import outbox
from sentinel.notify.outbox import QueueRules
from sentinel.notify.sink_worker import DELIVERIES_METRIC, DeliveryTiming, SinkWorker
from sentinel.sinks.slack import Slack
from sentinel.store.database import connect


class WorkerFixture:
    """A worker of the sink `slack`, its outbox, its receiver and its clock."""

    def __init__(self, connection, receiver):
        self.receiver = receiver
        self.clock = FakeClock(NOW)
        self.connection = connection
        self.worker = SinkWorker(
            "slack",
            Slack(url=receiver.url),
            connection,
            Counters(),
            self.clock,
            DeliveryTiming(deadline_seconds=0.1, uniform_random=lambda: 0.5),
        )

    def enqueue(self, *notifications):
        can_update = ["slack"] if self.worker.sink.can_update else []
        for notification in notifications:
            outbox.enqueue(
                self.connection,
                notification,
                ["slack"],
                self.clock.now,
                QueueRules(updatable=can_update),
            )

    def deliver_all(self, after=1.0, tries=40):
        """Try that often, `after` seconds apart."""
        for _ in range(tries):
            self.deliver_next(after)

    def deliver_next(self, after=1.0):
        """Advance the clock by `after` seconds and try the next delivery."""
        self.clock.now += after
        return self.worker.deliver_next()

    def row(self):
        """State, tries, seconds until the next try and last error of the oldest row."""
        query = "select state, tries, next_at - ?, last_error from outbox order by rowid"
        return self.connection.execute(query, [self.clock.now]).fetchone()

    def outcomes(self):
        counts = self.worker.counters.values
        return {
            label: total for (family, label), total in counts.items() if family == DELIVERIES_METRIC
        }


@contextmanager
def sink_worker(folder):
    """A worker whose database is in that folder."""
    receiver = Receiver()
    with (
        closing(connect(folder / "sentinel.db")) as connection,
        receiver,
        deadlines_from_silence(receiver),
    ):
        yield WorkerFixture(connection, receiver)
