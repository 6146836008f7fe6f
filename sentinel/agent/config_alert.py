"""Notifies of invalid settings that an agent ignores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sentinel.agent.agent_warning import AgentWarning
from sentinel.model.finding import Finding
from sentinel.model.notification import Notification
from sentinel.model.record import WHOLE_RUN, Event, Record

INCIDENT_LABEL = "invalid_settings"
"""Stands in for the name of a detector in the notification."""


def alert_name(run: str) -> str:
    """Name of the incident of this alert, the same in every agent of the run."""
    return f"{run}/{INCIDENT_LABEL}#1"


def ignored_text(names: Iterable[str]) -> str:
    """What becomes of the invalid settings with these names, without their values."""
    listed = ", ".join(sorted(names))
    return f"Invalid settings are ignored: {listed}. `sentinel doctor` shows each error."


class ConfigAlert:
    """Makes one warning notification per run, and its resolution when the run stops.

    `errors` are messages by the name of the setting. `was_notified` is whether an earlier agent of
    the run sent the warning; if the settings are valid now, the alert is resolved.
    """

    def __init__(self, run: str, errors: Mapping[str, str], *, was_notified: bool) -> None:
        self.run = run
        self.errors = dict(errors)
        self.is_firing = was_notified
        self.opening: Notification | None = None
        """The warning of this agent while it applies: it may be sent late, after a silence."""

    def update(self, record: Record) -> Iterator[Notification]:
        """The notifications that are due at this record."""
        # The first record of a run is its START, which sets how notifications are sent.
        if record.rank != WHOLE_RUN or record.event is Event.HEARTBEAT:
            return
        is_stop = record.event is Event.STOP
        if self.errors and not self.is_firing and not is_stop:
            self.is_firing = True
            self.opening = self._warning.opened(record)
            yield self.opening
        elif self.is_firing and (is_stop or not self.errors):
            self.is_firing, self.opening = False, None
            yield self._warning.resolved(record)

    @property
    def _warning(self) -> AgentWarning:
        summary = "The settings are valid again."
        if self.errors:
            summary = ignored_text(self.errors)
        return AgentWarning(
            self.run,
            INCIDENT_LABEL,
            subject="settings",
            episode=1,
            finding=Finding(summary, self.errors),
            remedy="Correct these settings. They apply from the next start of the agent.",
        )
