"""Selects the sinks that get a notification, and how it is queued for each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sentinel.config.route import Route
from sentinel.config.settings import Settings
from sentinel.model.delivery import Sink, closes_alerts, is_record
from sentinel.model.finding import Severity
from sentinel.model.notification import Notification, NotificationReason
from sentinel.notify.outbox import QueueRules, Substitutes
from sentinel.pipeline.cases import RUN_END_DETECTORS

_NEVER_HELD = RUN_END_DETECTORS | {"node_lost"}
"""Detectors whose notifications are not held: nothing is added to them within a second."""


@dataclass(frozen=True)
class Recipients:
    """The sinks by name with their routes, in the order of the settings.

    Those in `updatable` can change a message that they have sent, and the receivers of those in
    `closable` keep an alert open until its case is over. Those in `recording` send no notification.
    `hold_seconds` is the time for which the first notification of a case waits for a cause and for
    the estimate of its onset. `team` is the team of the run.
    """

    routes: Mapping[str, Route]
    updatable: Collection[str] = ()
    closable: Collection[str] = ()
    recording: Collection[str] = ()
    hold_seconds: float = 0.0
    team: str = ""

    @staticmethod
    def of_settings(settings: Settings, sinks: Mapping[str, Sink]) -> Recipients:
        """The recipients that the settings give."""
        return Recipients(
            {name: settings.routes.get(name, Route()) for name in sinks},
            [name for name, sink in sinks.items() if sink.can_update],
            [name for name, sink in sinks.items() if closes_alerts(sink)],
            [name for name, sink in sinks.items() if is_record(sink)],
            settings.hold_seconds,
            settings.team,
        )

    def select(
        self,
        notification: Notification,
        reached: Collection[str],
        now: float,
        *,
        is_suppressed: bool = False,
    ) -> tuple[list[str], QueueRules]:
        """The sinks for the notification, and how to queue it at `now` (epoch seconds).

        `reached` are the sinks that have a notification of its case: an update and the end of the
        case concern only those. An end that is no news, or is suppressed, is sent only to sinks
        that close an alert.
        """
        reason = notification.reason
        is_follow_up = reason in (NotificationReason.UPDATED, NotificationReason.RESOLVED)
        sinks = [
            name
            for name, route in self.routes.items()
            if name in reached or (not is_follow_up and self._permits(route, notification))
        ]
        is_silent = is_suppressed or notification.is_silent
        return sinks, QueueRules(
            self._hold_seconds(notification),
            self.updatable,
            self._withheld(notification, sinks, now),
            [name for name in sinks if is_silent and name not in self.closable],
        )

    def substitutes(self, notification: Notification, sink: str, now: float) -> Substitutes:
        """The sinks that may get what `sink` rejected, from the one after it in the settings on.

        Only what is critical may go to a sink whose route does not permit it. A sink that only
        records neither has substitutes nor is one.
        """
        is_recorded = sink in self.recording
        names = [
            name
            for name in self.routes
            if name == sink or not (is_recorded or name in self.recording)
        ]
        after = names.index(sink) + 1 if sink in names else 0
        order = [name for name in (*names[after:], *names[:after]) if name != sink]
        admitting = [name for name in order if self._permits(self.routes[name], notification)]
        is_critical = notification.incident.severity is Severity.CRITICAL
        others = [name for name in order if is_critical and name not in admitting]
        withheld = self._withheld(notification, order, now)
        return Substitutes(
            admitting, others, QueueRules(updatable=self.updatable, withheld=withheld)
        )

    def _permits(self, route: Route, notification: Notification) -> bool:
        incident = notification.incident
        return route.permits(incident.key.run, self.team, incident.severity)

    def _withheld(
        self, notification: Notification, sinks: Collection[str], now: float
    ) -> dict[str, float]:
        """The end of the quiet hours, for the sinks that get no new message before."""
        if notification.incident.severity is Severity.CRITICAL:
            return {}
        return {
            name: until
            for name in sinks
            if (until := self.routes[name].quiet_until(now)) is not None
        }

    def _hold_seconds(self, notification: Notification) -> float:
        is_complete = (
            notification.diagnosis is not None
            and notification.incident.severity is Severity.CRITICAL
        )
        is_never_held = notification.incident.key.detector in _NEVER_HELD
        return 0.0 if is_complete or is_never_held else self.hold_seconds
