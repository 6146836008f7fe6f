"""A callback for `lightning.Trainer`, instead of the decorator.

from sentinel.integrations.callbacks.lightning import LightningCallback

Trainer(..., callbacks=[LightningCallback(run="my-run")]).fit(module)

Lightning finds `create_callbacks` by an entry point and calls it whenever a trainer is created. It
returns a callback only if SENTINEL_RUN_ID names the run and the process is not monitored already.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from sentinel.client.session import current_session
from sentinel.integrations.callbacks.owned_session import OwnedSession

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""The two names of Lightning; the callback derives from the package that is loaded."""

_lightning: Any = import_module(
    next((name for name in _PACKAGES if name in sys.modules), _PACKAGES[0])
)


class LightningCallback(_lightning.Callback):  # type: ignore[misc]
    """Monitors from the setup of `fit` to its end; takes the arguments of `sentinel.monitor`.

    It does nothing if the decorator or `sentinel run` monitors the process already. Raises
    SettingsError for an unknown argument or an invalid value, and nothing later.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._session = OwnedSession(settings)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 - names are Lightning's
        """Start the session, if the stage is `fit`."""
        if stage == "fit":
            self._session.begin()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """End the session."""
        self._session.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """End the session with that exception as its outcome."""
        self._session.end(exception)


def create_callbacks() -> list[Any]:
    """A callback if the environment names a run and the process is not monitored, else none."""
    requested = bool(os.environ.get("SENTINEL_RUN_ID")) and current_session() is None
    return [LightningCallback()] if requested else []
