"""A callback for `transformers.Trainer`, and for TRL's trainers, in place of the decorator.

from sentinel.integrations.callbacks.transformers import TransformersCallback

Trainer(..., callbacks=[TransformersCallback(run="my-run")]).train()
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from sentinel.client.arguments import parse_arguments
from sentinel.client.auto_session import begin_auto_session, end_auto_session
from sentinel.client.session import current_session


class TransformersCallback(TrainerCallback):  # type: ignore[misc]
    """Watches from the beginning of `train` to its end; it takes what `sentinel.monitor` takes.

    Where a run is on already, by a decorator or by `sentinel run`, this adds nothing to it. A
    `train` that raises ends the run with the interpreter. Raises SettingsError for a setting that
    is unknown or of the wrong kind; never anything later.
    """

    def __init__(self, **settings: Any) -> None:
        self._arguments = parse_arguments(settings)
        self._owns_session = False

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Begin to watch, unless somebody does."""
        if current_session() is None:
            self._owns_session = True
            begin_auto_session(self._arguments)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """The run is over, if it was begun here."""
        if self._owns_session:
            self._owns_session = False
            end_auto_session()
