"""A session that a callback starts and ends, unless the run is monitored already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.client.arguments import parse_arguments
from sentinel.client.auto_session import begin_auto_session, end_auto_session
from sentinel.client.session import current_session


class OwnedSession:
    """Starts and ends a session with the arguments of `sentinel.monitor`.

    `begin` does nothing while another session is active, which the decorator or `sentinel run`
    started; `end` ends only a session that `begin` started.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Raises SettingsError for an unknown argument or an invalid value."""
        self._arguments = parse_arguments(settings)
        self._is_active = False

    def __getstate__(self) -> dict[str, Any]:
        """The state of a copy, which has started no session and ends none."""
        return {"_arguments": self._arguments, "_is_active": False}

    def begin(self) -> None:
        """Start the session. Never raises."""
        if current_session() is None:
            self._is_active = True
            begin_auto_session(self._arguments)

    def end(self, error: BaseException | None = None) -> None:
        """End the session, with `error` as its outcome."""
        if self._is_active:
            self._is_active = False
            end_auto_session(error)
