"""A tracker for `accelerate.Accelerator`, instead of the decorator.

from sentinel.integrations.callbacks.accelerate import AccelerateTracker

accelerator = Accelerator(log_with=AccelerateTracker(run="my-run"))
accelerator.init_trackers("my-project", config={"beta": 0.05})
...
accelerator.end_training()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate.tracking import GeneralTracker

from sentinel.client.session import current_session
from sentinel.integrations.callbacks.owned_session import OwnedSession
from sentinel.model.record import Event

_SECRET_WORDS = ("token", "key", "secret", "password", "credential")
"""Parts of the names of settings that are never recorded."""


class AccelerateTracker(GeneralTracker):  # type: ignore[misc]
    """Monitors each process from `init_trackers` to `end_training`; takes `monitor`'s arguments.

    If the decorator or `sentinel run` monitors the process already, it only adds the configuration.
    Raises SettingsError for an unknown argument or an invalid value.
    """

    name = "sentinel"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._session = OwnedSession(settings)

    @property
    def tracker(self) -> AccelerateTracker:
        """The tracker itself, since it wraps no other object."""
        return self

    def start(self) -> None:
        """Start the session."""
        self._session.begin()

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Record numbers and texts of the configuration, on rank 0."""
        session = current_session()
        if session is not None and session.identity.rank == 0:
            settings = {name: _metadata_value(name, values[name]) for name in values}
            known = {name: value for name, value in settings.items() if value is not None}
            session.recorder.record_event(Event.METADATA, None, known)

    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Do nothing: the integration captures the values in `Accelerator.log`."""

    def finish(self) -> None:
        """End the session."""
        self._session.end()


def _metadata_value(name: Any, value: Any) -> str | float | None:
    if any(word in str(name).lower() for word in _SECRET_WORDS):
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str | int | float) else None
