"""The state of a `TrajectoryRecorder` in a file beside a checkpoint: numbers and tensors alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sentinel.transport.replaced_file import replacing

FILE_NAME = "sentinel_trajectory.safetensors"
_METADATA = "state"


def write_recorder_state(path: Path, state: Mapping[str, Any]) -> None:
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


def read_recorder_state(path: Path) -> dict[str, Any]:
    """What `write_recorder_state` wrote. Raises ValueError for another file."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415

    try:
        with safe_open(path, "pt") as file:
            state = json.loads(file.metadata()[_METADATA])
            return {**state, **{name: file.get_tensor(name) for name in file.keys()}}  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} has no trajectory: {error}") from error
