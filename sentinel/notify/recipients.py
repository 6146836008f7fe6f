"""Selects the sinks that get a notification, and how it is queued for each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sentinel.config.route import Route
from sentinel.model.finding import Severity
from sentinel.model.notification import Notification, NotificationReason
from sentinel.notify.outbox import QueueRules
from sentinel.pipeline.cases import RUN_END_DETECTORS

_NEVER_HELD = RUN_END_DETECTORS | {"node_lost"}
"""Detectors whose notifications are not held: nothing is added to them within a second."""


@dataclass(frozen=True)
class Recipients:
    """The sinks by name with their routes, in the order of the settings.

    Those in `updatable` can change a message that they have sent, and the receivers of those in
    `closable` keep an alert open until its case is over. `hold_seconds` is the time for
    which the first notification of a case waits for a cause. `team` is the team of the run.
    """

    routes: Mapping[str, Route]
    updatable: Collection[str] = ()
    closable: Collection[str] = ()
    hold_seconds: float = 0.0
    team: str = ""

    def select(
        self, notification: Notification, reached: Collection[str], now: float
    ) -> tuple[list[str], QueueRules]:
        """The sinks for the notification, and how to queue it at `now` (epoch seconds).

        `reached` are the sinks that have a notification of its case: an update and the end of the
        case concern only those. An end that is no news goes only to sinks that close an alert.
        """
        incident, reason = notification.incident, notification.reason
        is_follow_up = reason in (NotificationReason.UPDATED, NotificationReason.RESOLVED)
        sinks = [
            name
            for name, route in self.routes.items()
            if name in reached
            or (not is_follow_up and route.permits(incident.key.run, self.team, incident.severity))
        ]
        if notification.is_silent:
            sinks = [name for name in sinks if name in self.closable]
        is_silent = self.updatable if is_follow_up else ()
        withheld = {
            name: until
            for name in sinks
            if incident.severity is not Severity.CRITICAL
            and name not in is_silent
            and (until := self.routes[name].quiet_until(now)) is not None
        }
        return sinks, QueueRules(self._hold_seconds(notification), self.updatable, withheld)

    def _hold_seconds(self, notification: Notification) -> float:
        is_complete = (
            notification.diagnosis is not None
            and notification.incident.severity is Severity.CRITICAL
        )
        is_never_held = notification.incident.key.detector in _NEVER_HELD
        return 0.0 if is_complete or is_never_held else self.hold_seconds
