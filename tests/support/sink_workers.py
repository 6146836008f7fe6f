"""A lane on a bench: its outbox, its receiver, and a clock moved by hand."""

from __future__ import annotations

from contextlib import closing, contextmanager

from support.notifications import NOW
from support.webhook_receiver import Receiver, deadlines_from_silence

from sentinel.model.counters import Counters
from sentinel.notify import outbox
from sentinel.notify.sink_worker import DELIVERIES_METRIC, DeliveryTiming, SinkWorker
from sentinel.sinks.slack import Slack
from sentinel.store.database import connect


class Clock:
    """Seconds since the epoch, moved by hand."""

    def __init__(self):
        self.now = NOW

    def __call__(self):
        return self.now


class Bench:
    """A lane to Slack, its outbox, its receiver, and its clock."""

    def __init__(self, connection, there):
        self.there = there
        self.clock = Clock()
        self.connection = connection
        self.lane = SinkWorker(
            "slack",
            Slack(url=there.url),
            connection,
            Counters(),
            self.clock,
            DeliveryTiming(deadline_seconds=0.1, uniform_random=lambda: 0.5),
        )

    def enqueue(self, *pages):
        for told in pages:
            outbox.enqueue(self.connection, told, ["slack"], self.clock.now)

    def turn(self, after=1.0):
        """One turn, `after` seconds later than the last."""
        self.clock.now += after
        return self.lane.deliver_next()

    def row(self):
        query = "select state, tries, next_at - ?, last_error from outbox order by rowid"
        return self.connection.execute(query, [self.clock.now]).fetchone()

    def outcomes(self):
        counts = self.lane.counters.values
        return {
            label: total for (family, label), total in counts.items() if family == DELIVERIES_METRIC
        }


@contextmanager
def lane_on_bench(folder):
    """A lane to Slack in that folder, for as long as the context lasts."""
    there = Receiver()
    with (
        closing(connect(folder / "sentinel.db")) as connection,
        there,
        deadlines_from_silence(there),
    ):
        yield Bench(connection, there)
