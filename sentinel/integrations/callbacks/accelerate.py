"""A tracker for `accelerate.Accelerator`, in place of the decorator.

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

from sentinel.client.arguments import parse_arguments
from sentinel.client.auto_session import begin_auto_session, end_auto_session
from sentinel.client.session import current_session
from sentinel.model.record import Event

_SECRET_WORDS = ("token", "key", "secret", "password", "credential")
"""What is in the name of a setting that is nobody's business."""


class AccelerateTracker(GeneralTracker):  # type: ignore[misc]
    """Watches every process from `init_trackers` to `end_training`; takes what `monitor` takes.

    Where a run is on already, by a decorator or by `sentinel run`, this adds nothing to it but the
    configuration. Raises SettingsError for a setting that is unknown or of the wrong kind.
    """

    name = "sentinel"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._arguments = parse_arguments(settings)
        self._owns_session = False

    @property
    def tracker(self) -> AccelerateTracker:
        """There is nothing behind it to be had."""
        return self

    def start(self) -> None:
        """Begin to watch, unless somebody does."""
        if current_session() is None:
            self._owns_session = True
            begin_auto_session(self._arguments)

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Hyper-parameters worth remembering: numbers and texts are, on the first rank."""
        session = current_session()
        if session is not None and session.identity.rank == 0:
            facts = {name: _fact_value(name, values[name]) for name in values}
            known = {name: fact for name, fact in facts.items() if fact is not None}
            session.recorder.record_event(Event.METADATA, None, known)

    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Nothing more: what goes through `Accelerator.log` was heard there."""

    def finish(self) -> None:
        """The run is over, if it was begun here."""
        if self._owns_session:
            self._owns_session = False
            end_auto_session()


def _fact_value(name: Any, value: Any) -> str | float | None:
    if any(word in str(name).lower() for word in _SECRET_WORDS):
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str | int | float) else None
