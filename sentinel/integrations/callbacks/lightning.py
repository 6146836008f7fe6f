"""A callback for `lightning.Trainer`, in place of the decorator.

from sentinel.integrations.callbacks.lightning import LightningCallback

Trainer(..., callbacks=[LightningCallback(run="my-run")]).fit(module)

Lightning finds `factory` by an entry point, and asks it for callbacks whenever a trainer is built:
it has one only where the environment names the run, by SENTINEL_RUN_ID, and nobody watches it.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from sentinel.client.arguments import parse_arguments
from sentinel.client.auto_session import begin_auto_session, end_auto_session
from sentinel.client.session import current_session

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""Lightning's two names; a callback is one of the package that is loaded."""

_lightning: Any = import_module(
    next((name for name in _PACKAGES if name in sys.modules), _PACKAGES[0])
)


class LightningCallback(_lightning.Callback):  # type: ignore[misc]
    """Watches from the setup of `fit` to its end; it takes what `sentinel.monitor` takes.

    Where a run is on already, by a decorator or by `sentinel run`, this adds nothing to it. Raises
    SettingsError for a setting that is unknown or of the wrong kind; never anything later.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._arguments = parse_arguments(settings)
        self._owns_session = False

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 - Lightning names them
        """Begin to watch, unless somebody does."""
        if stage == "fit" and current_session() is None:
            self._owns_session = True
            begin_auto_session(self._arguments)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """The run is over, if it was begun here."""
        self._end(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """The run ended by that, if it was begun here."""
        self._end(exception)

    def _end(self, error: BaseException | None) -> None:
        if self._owns_session:
            self._owns_session = False
            end_auto_session(error)


def create_callbacks() -> list[Any]:
    """A callback where the environment asks for one, and none where somebody watches already."""
    asked = bool(os.environ.get("SENTINEL_RUN_ID")) and current_session() is None
    return [LightningCallback()] if asked else []
