"""A callback for `transformers.Trainer`, and for TRL's trainers, in place of the decorator.

from sentinel.integrations.callbacks.transformers import SentinelCallback

Trainer(..., callbacks=[SentinelCallback(run="my-run")]).train()
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from sentinel.client.arguments import checked
from sentinel.client.auto_session import begin, end
from sentinel.client.session import current


class SentinelCallback(TrainerCallback):  # type: ignore[misc]
    """Watches from the beginning of `train` to its end; it takes what `sentinel.monitor` takes.

    Where a run is on already, by a decorator or by `sentinel run`, this adds nothing to it. A
    `train` that raises ends the run with the interpreter. Raises SettingsError for a setting that
    is unknown or of the wrong kind; never anything later.
    """

    def __init__(self, **settings: Any) -> None:
        self._arguments = checked(settings)
        self._began = False

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Begin to watch, unless somebody does."""
        if current() is None:
            self._began = True
            begin(self._arguments)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """The run is over, if it was begun here."""
        if self._began:
            self._began = False
            end()
