"""The path of the weights, recorded by a callback. An error never reaches the training."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from sentinel.client import guard
from sentinel.insight.callbacks.loss_measurement import MAX_RESULTS, check_settings, print_message
from sentinel.insight.trajectory.recorder import TrajectoryRecorder
from sentinel.store.artifact import current_run_directory, save_artifact
from sentinel.transport.replaced_file import replacing

FILE_NAME = "sentinel_trajectory.safetensors"
"""The state of the recorder in a checkpoint: numbers and tensors alone."""
_METADATA = "state"


class RecordingCallback:
    """What the callbacks of every framework have that record the path of the weights."""

    def __init__(self, *, every: int = 10, **settings: Any) -> None:
        super().__init__()
        self._recording = Recording(every, settings)

    @property
    def recorder(self) -> Any:
        """The recorder of the current or last training; None before."""
        return self._recording.recorder

    @property
    def results(self) -> list[Any]:
        """The trajectory of each training."""
        return [*self._recording.results]


class Recording:
    """A `TrajectoryRecorder` for each training; `settings` are its arguments.

    Raises TypeError for an unknown one, and ValueError for an invalid `every`.
    """

    def __init__(self, every: int, settings: Mapping[str, Any]) -> None:
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"every is {every!r}: give a number of steps.")
        self._every = every
        self._settings = check_settings(settings, TrajectoryRecorder, {"model", "process_group"})
        self.recorder: Any = None
        self.results: deque[Any] = deque(maxlen=MAX_RESULTS)
        self.loss: float | None = None
        """The newest loss that is known."""
        self.continued: Mapping[str, Any] = {}
        """The state of the recorder that the next training continues; empty for a new path."""
        self._is_on = False

    def __getstate__(self) -> dict[str, Any]:
        """The state of a copy, which records nothing yet."""
        return self.__dict__ | {"recorder": None, "continued": {}, "_is_on": False}

    def start(
        self, model: Any, step: int, reference: Any = None, *, checkpoint: Path | None = None
    ) -> None:
        """Record the weights before the training; `reference` unless one was given.

        The path that is stored in `checkpoint` is continued, if there is one.
        """
        self._is_on = True
        self._run(self._start, model, step, reference, checkpoint)

    def state(self) -> dict[str, Any]:
        """What `continued` needs later. Sharded: a collective, on every rank. Never raises."""
        found: list[dict[str, Any]] = [{}]

        def read() -> None:
            self.recorder.all_reduce()
            found.append(self.recorder.state_dict())

        self._run(read)
        return found[-1]

    def save(self, checkpoint: Path, *, is_writing: bool) -> None:
        """Store the path in a checkpoint, on the rank that writes. Every rank calls it."""
        state = self.state()
        if is_writing and state and checkpoint.is_dir():
            self._run(_write_state, checkpoint / FILE_NAME, state)

    def log_loss(self, step: int, loss: float) -> None:
        """Take over the loss of a step, which may be recorded already."""
        self.loss = loss
        self._run(lambda: self.recorder.set_loss(step, loss))

    def record(self, step: int) -> None:
        """Record the weights, if it is time."""
        if step % self._every == 0:
            self._run(lambda: self.recorder.record(step, self.loss))

    def end(self, step: int) -> None:
        """Record the last weights, and store the trajectory with the run."""
        self._run(self._end, step)
        self._is_on = False

    def _start(self, model: Any, step: int, reference: Any, checkpoint: Path | None) -> None:
        self.loss = None
        settings = {"reference": reference} | self._settings
        self.recorder = TrajectoryRecorder(model, **settings)
        state, self.continued = self.continued, {}
        try:
            if checkpoint is not None and (checkpoint / FILE_NAME).is_file():
                state = _read_state(checkpoint / FILE_NAME)
            if state:
                self.recorder.load_state_dict(state)
        except (ValueError, OSError) as error:
            print_message(f"a new trajectory begins at step {step:,}: {error}")
        if step not in self.recorder.steps[-1:]:
            self.recorder.record(step)

    def _end(self, step: int) -> None:
        if self.recorder.steps[-1:] != [step]:
            self.recorder.record(step, self.loss)
        self.recorder.all_reduce()
        result = self.recorder.result()
        self.results.append(result)
        directory = current_run_directory()
        if directory is not None and result.runs:
            save_artifact(directory, result)

    def _run(self, body: Callable[..., None], *args: Any) -> None:
        if not self._is_on:
            return
        try:
            body(*args)
        except Exception as error:
            self._is_on = False
            guard.on_swallowed_error(error)
            reason = f"{type(error).__name__}: {error}"
            print_message(f"no trajectory: {reason} Training goes on as before.")


def _write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write what `TrajectoryRecorder.state_dict` returned; the file is there whole or not at all.

    Raises OSError if the file cannot be written.
    """
    from safetensors.torch import save_file  # noqa: PLC0415 - a package of its trainers

    tensors = {name: each for name, each in state.items() if isinstance(each, torch.Tensor)}
    rest = {name: each for name, each in state.items() if name not in tensors}
    with replacing(path) as partial:
        save_file(
            {name: each.contiguous() for name, each in tensors.items()},
            partial,
            {_METADATA: json.dumps(rest)},
        )


def _read_state(path: Path) -> dict[str, Any]:
    """What `_write_state` wrote. Raises ValueError for another file."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415

    try:
        with safe_open(path, "pt") as file:
            state = json.loads(file.metadata()[_METADATA])
            return {**state, **{name: file.get_tensor(name) for name in file.keys()}}  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} has no trajectory: {error}") from error
