"""Notifies that the storage of a run is degraded: its database was replaced, or is in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sentinel.agent.agent_warning import AgentWarning
from sentinel.model.finding import Finding
from sentinel.model.notification import Notification
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.storage_state import MEMORY, StorageState

INCIDENT_LABEL = "storage"
"""Stands in for the name of a detector in the notification."""


def alert_name(run: str, number: int) -> str:
    """Name of the incident of that `StorageState.number`, the same in every agent of the run."""
    return f"{run}/{INCIDENT_LABEL}#{number}"


class StorageAlert:
    """Makes one warning each time the storage becomes worse.

    It is resolved when the storage is complete again, or when the run stops with its data on the
    disk. If the run stops with its data in the runtime directory, the warning stays open with that
    text.
    `is_open` is whether the warning of that number was sent and not resolved.
    """

    def __init__(
        self, run: str, state: Callable[[], StorageState], is_open: Callable[[int], bool]
    ) -> None:
        self.run, self._state = run, state
        self._firing = {number for number in range(1, state().number + 1) if is_open(number)}
        self.opening: Notification | None = None
        """The newest warning while it applies: it may be sent late, after a silence."""
        self.has_started = False
        """Whether the START of the run was processed, which sets how notifications are sent."""

    def update(self, record: Record) -> Iterator[Notification]:
        """The notifications that are due at this record."""
        if record.rank != WHOLE_RUN:
            return
        self.has_started |= record.event is not Event.HEARTBEAT
        state, is_stop = self._state(), record.event is Event.STOP
        is_left = is_stop and state.mode == MEMORY
        if (is_stop and not is_left) or not state.is_degraded:
            for number in sorted(self._firing):
                yield self._warning(state, number).resolved(record, self.opening)
            self._firing.clear()
            self.opening = None
        elif is_left and self.opening is not None:
            self.opening = self._left_warning(state).updated(record, self.opening)
            yield self.opening
        elif self.has_started and state.number not in self._firing:
            self._firing.add(state.number)
            warning = self._warning(state, state.number)
            self.opening = (self._left_warning(state) if is_left else warning).opened(record)
            yield self.opening

    def _left_warning(self, state: StorageState) -> AgentWarning:
        """The warning of a run that ended with its data in the runtime directory."""
        return self._warning(state, state.number)._replace(
            finding=Finding(f"The run ended with its data in {state.folder}: {state.reason}."),
            remedy=f"Copy {state.folder} to a disk: the runtime directory is emptied when the "
            "machine restarts.",
        )

    def _warning(self, state: StorageState, number: int) -> AgentWarning:
        summary = state.text or "The run is stored on its disk again."
        return AgentWarning(
            self.run,
            INCIDENT_LABEL,
            subject="storage",
            episode=number,
            finding=Finding(summary),
            remedy=state.remedy,
        )
