"""A callback for `transformers.Trainer` and TRL's trainers, instead of the decorator.

from sentinel.integrations.callbacks.transformers import TransformersCallback

Trainer(..., callbacks=[TransformersCallback(run="my-run")]).train()
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from sentinel.integrations.callbacks.owned_session import OwnedSession


class TransformersCallback(TrainerCallback):  # type: ignore[misc]
    """Monitors a training from its start to its end; takes the arguments of `sentinel.monitor`.

    It does nothing if the decorator or `sentinel run` monitors the process already. If `train`
    raises, the run ends with the interpreter. Raises SettingsError for an unknown argument or an
    invalid value, and nothing later.
    """

    def __init__(self, **settings: Any) -> None:
        self._session = OwnedSession(settings)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Start the session."""
        self._session.begin()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """End the session."""
        self._session.end()
