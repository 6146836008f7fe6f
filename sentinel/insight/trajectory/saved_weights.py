"""Weights of saved checkpoints, read piece by piece, without unpickling objects.

Formats: `.safetensors`, alone or in shards with an index; files of `torch.save`, read with
`weights_only=True`; folders of Hugging Face models and of PEFT adapters; and folders with several
of them, such as `checkpoint-500`. Only the piece that is read is in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.insight.measure.parameters import plain_name, select_parameters

if TYPE_CHECKING:
    import torch

Source = Any
"""A path, a state dict (name to tensor), or a module."""

MAX_PIECE_ELEMENTS = 1 << 20
"""Elements that are read at once."""

_WEIGHT_FILES = (
    "model.safetensors.index.json",
    "model.safetensors",
    "adapter_model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "adapter_model.bin",
)
_SUFFIXES = frozenset({".safetensors", ".pt", ".pth", ".bin", ".ckpt"})
_NO_WEIGHTS = re.compile(
    r"optimizer|scheduler|scaler|rng_state|training_args|random_states|-\d+-of-\d+"
)
"""Files beside the weights with the same suffixes, and single shards of a checkpoint."""
_STATE_KEYS = ("state_dict", "model_state_dict", "model", "module")
"""Where a file of `torch.save` holds the weights, if not at its top level."""
_STEP_KEYS = ("global_step", "step", "iteration")
_BUFFERS = re.compile(r"(^|\.)(running_mean|running_var|num_batches_tracked)$")
"""Buffers of normalisation layers: they are no weights, which a file does not distinguish."""
_STEP = re.compile(r"(?:step|iter|checkpoint|ckpt)[^0-9a-z]{0,2}(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+)")
_SAFE_TORCH = (2, 6)
_MAX_INDEX_BYTES = 64 << 20
_MAX_PROBLEM_CHARS = 200


class CheckpointError(ValueError):
    """A checkpoint that cannot be read; the message names it and the remedy."""


@dataclass(frozen=True)
class SavedWeights:
    """The floating-point tensors of one checkpoint.

    `step` and `loss` are None where the checkpoint does not contain them.
    """

    name: str
    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str, int, int], torch.Tensor]
    """Rows (elements of the first dimension) of a tensor, from a start to an end."""
    step: int | None = None
    loss: float | None = None

    def pieces(self, names: Iterable[str]) -> Iterator[tuple[str, int, torch.Tensor]]:
        """The tensors as (name, position of the first element, flat piece), in that order.

        Raises CheckpointError if a tensor is not there.
        """
        for name in names:
            for start, stop in row_ranges(self.shape(name)):
                width = prod(self.shape(name)[1:])
                yield name, start * width, self.read(name, start, stop).reshape(-1)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor. Raises CheckpointError if it is not there."""
        if name not in self.shapes:
            raise CheckpointError(
                f"{self.name} has no weight {name!r}: compare checkpoints of one model, or choose "
                "weights that all of them have with `parameters`."
            )
        return self.shapes[name]


def row_ranges(shape: Sequence[int], max_elements: int | None = None) -> Iterator[tuple[int, int]]:
    """Ranges of rows with at most `max_elements` elements (`MAX_PIECE_ELEMENTS`), or one row."""
    rows, width = (shape[0], prod(shape[1:])) if shape else (1, 1)
    count = max(1, (max_elements or MAX_PIECE_ELEMENTS) // max(1, width))
    for start in range(0, rows if width else 0, count):
        yield start, min(start + count, rows)


def open_weights(source: Source, name: str = "") -> SavedWeights:
    """The weights of a checkpoint, a state dict or a module.

    Raises CheckpointError if there are none, or if reading them would unpickle objects.
    """
    if isinstance(source, SavedWeights):
        return source
    if isinstance(source, str | Path):
        return _open_path(Path(source), name)
    if isinstance(source, Mapping):
        return _from_tensors(source, name or "the state dict")
    if hasattr(source, "named_parameters"):
        tensors = select_parameters(source, "*")
        return _from_tensors(tensors, name or type(source).__name__)
    raise CheckpointError(
        f"Cannot read weights from {type(source).__name__}: give a path, a state dict or a module."
    )


def find_checkpoints(folder: Path | str) -> list[Path]:
    """The checkpoints at a path in the order of their steps: itself, or those in the folder.

    Raises CheckpointError if there is none.
    """
    path = Path(folder)
    try:
        if path.is_file() and path.suffix in _SUFFIXES | {".json"}:
            return [path]
        entries = sorted(path.iterdir()) if path.is_dir() else []
        numbered = [each for each in entries if each.is_dir() and _is_checkpoint(each)]
        if not numbered and _is_checkpoint(path):
            return [path]
        files = [
            each
            for each in entries
            if each.suffix in _SUFFIXES
            and not _NO_WEIGHTS.search(each.name)
            and each.name not in _WEIGHT_FILES
        ]
    except OSError as error:
        raise CheckpointError(f"Cannot read {path}: {error.strerror or error}.") from None
    found = numbered or files
    if not found:
        raise CheckpointError(_absence(path))
    return sorted(found, key=_natural_order)


def common_names(checkpoints: Sequence[SavedWeights]) -> list[str]:
    """Names of the tensors that all checkpoints have in one shape, without known buffers.

    Raises CheckpointError if there is none, and if a tensor changes its shape.
    """
    first, *others = checkpoints
    names = [
        name
        for name in first.shapes
        if not _BUFFERS.search(name) and all(name in each.shapes for each in others)
    ]
    for other in others:
        for name in names:
            if other.shapes[name] != first.shapes[name]:
                raise CheckpointError(
                    f"{name} is {list(first.shapes[name])} in {first.name} and "
                    f"{list(other.shapes[name])} in {other.name}: compare checkpoints of one model."
                )
    if not names:
        raise CheckpointError(
            f"{first.name} and {others[0].name if others else 'itself'} have no weight in common: "
            "compare checkpoints of one model."
        )
    return names


def _is_checkpoint(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _WEIGHT_FILES)


def _natural_order(path: Path) -> tuple[list[int], str]:
    step = step_of(path)
    return [step if step is not None else -1, *map(int, _NUMBER.findall(path.name))], path.name


def step_of(path: Path) -> int | None:
    """The step in the name of a checkpoint; None without a number.

    >>> step_of(Path("checkpoint-500")), step_of(Path("epoch=1-step=20.ckpt"))
    (500, 20)
    >>> step_of(Path("model_3.pt")), step_of(Path("model.safetensors"))
    (3, None)
    """
    named = _STEP.findall(path.stem) or _NUMBER.findall(path.stem)
    return int(named[-1]) if named else None


def _open_path(path: Path, name: str) -> SavedWeights:
    name = name or str(path)
    try:
        if path.is_dir():
            file = next((path / each for each in _WEIGHT_FILES if (path / each).is_file()), None)
            if file is None:
                raise CheckpointError(_absence(path))
        elif path.is_file():
            file = path
        else:
            raise CheckpointError(f"There is no checkpoint {path}.")
        weights = _open_shards(file, name) if file.suffix == ".json" else _open_file(file, name)
        step, loss = _trainer_state(file.parent if path.is_dir() else None)
        step = step_of(path) if step is None else step
        return replace(
            weights,
            step=step if weights.step is None else weights.step,
            loss=weights.loss if loss is None else loss,
        )
    except OSError as error:
        raise CheckpointError(f"Cannot read {path}: {error.strerror or error}.") from None


def _absence(path: Path) -> str:
    if not path.exists():
        return f"There is no checkpoint {path}."
    if (path / ".metadata").exists():
        return (
            f"{path} is a distributed checkpoint, whose metadata is a pickle: convert it with "
            f"`python -m torch.distributed.checkpoint.format_utils dcp_to_torch {path} FILE`."
        )
    return (
        f"There is no checkpoint in {path}: expected .safetensors, .pt, .pth, .bin or .ckpt files, "
        "or folders such as checkpoint-500."
    )


def _open_file(path: Path, name: str) -> SavedWeights:
    return (_open_safetensors if path.suffix == ".safetensors" else _open_torch_file)(path, name)


def _open_safetensors(path: Path, name: str) -> SavedWeights:
    try:
        from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - few callers need it
    except ImportError:
        raise CheckpointError(
            f"Reading {path} needs safetensors: pip install safetensors."
        ) from None
    try:
        file: Any = safe_open(str(path), framework="pt")
    except SafetensorError as error:
        raise CheckpointError(f"{path} is no safetensors file: {_brief(error)}.") from None
    names, shapes = {}, {}
    for raw in file.keys():  # noqa: SIM118 - it is no mapping
        part = file.get_slice(raw)
        if part.get_dtype().startswith(("F", "BF")):
            names[plain_name(raw)] = raw
            shapes[plain_name(raw)] = tuple(part.get_shape())

    def read(tensor: str, start: int, stop: int) -> Any:
        if not shapes[tensor]:
            return file.get_tensor(names[tensor]).reshape(1)
        return file.get_slice(names[tensor])[start:stop]

    return _checked(SavedWeights(name, shapes, read))


def _open_torch_file(path: Path, name: str) -> SavedWeights:
    """The state dict in a file, with the step and the loss beside it."""
    import torch  # noqa: PLC0415

    if tuple(map(int, torch.__version__.split(".")[:2])) < _SAFE_TORCH:
        raise CheckpointError(
            f"Files of torch.save such as {path} are read with PyTorch 2.6 or newer only, since "
            "before that one may run code (CVE-2025-32434): save the state dict as .safetensors."
        )
    try:
        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:
            # Files of the format before PyTorch 1.6 cannot be mapped.
            content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:
        # Damaged bytes raise any of a dozen classes.
        if "weights_only" in str(error):
            raise CheckpointError(
                f"{path} holds more than tensors, which would run code when it is loaded: save its "
                f"state dict as .safetensors. {_brief(error)}"
            ) from None
        raise CheckpointError(f"{path} is no file of torch.save: {_brief(error)}.") from None
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path} holds no state dict but {type(content).__name__}.")
    for key in _STATE_KEYS:
        if isinstance(content.get(key), Mapping):
            return _from_tensors(content[key], name, *_numbers_beside(content))
    return _from_tensors(content, name)


def _numbers_beside(content: Mapping[str, Any]) -> tuple[int | None, float | None]:
    """Step and loss that a training script saved beside the weights."""
    steps = [content[each] for each in _STEP_KEYS if isinstance(content.get(each), int)]
    loss: Any = content.get("loss")
    if hasattr(loss, "numel") and loss.numel() == 1:
        loss = loss.item()
    is_known = isinstance(loss, int | float) and isfinite(loss)
    return steps[0] if steps else None, float(loss) if is_known else None


def _open_shards(index: Path, name: str) -> SavedWeights:
    """The checkpoint whose index maps each tensor to a file beside it."""
    if index.stat().st_size > _MAX_INDEX_BYTES:
        raise CheckpointError(f"{index} is no index of a checkpoint: it is too large.")
    try:
        files = json.loads(index.read_bytes())["weight_map"]
        distinct = sorted({str(each) for each in files.values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is no index of a checkpoint: {_brief(error)}.") from None
    shards = []
    for each in distinct:
        if Path(each).name != each:
            raise CheckpointError(f"{index} names {each!r}, which is not a file beside it.")
        shards.append(_open_file(index.parent / each, str(index.parent / each)))
    owners = {tensor: shard for shard in shards for tensor in shard.shapes}

    def read(tensor: str, start: int, stop: int) -> torch.Tensor:
        return owners[tensor].read(tensor, start, stop)

    shapes = {tensor: owner.shapes[tensor] for tensor, owner in owners.items()}
    return _checked(SavedWeights(name, shapes, read))


def _from_tensors(
    tensors: Mapping[str, Any], name: str, step: int | None = None, loss: float | None = None
) -> SavedWeights:
    import torch  # noqa: PLC0415

    # A file of a DDP model: every name has the prefix.
    raw_names = [key for key in tensors if isinstance(key, str)]
    prefix = "module." if raw_names and all(k.startswith("module.") for k in raw_names) else ""
    known: dict[str, torch.Tensor] = {}
    for key in raw_names:
        value = tensors[key]
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            if hasattr(value, "placements"):
                raise CheckpointError(
                    f"{name} is sharded over ranks: gather it with get_model_state_dict(model, "
                    "options=StateDictOptions(full_state_dict=True))."
                )
            known[plain_name(key.removeprefix(prefix))] = value.detach()

    def read(tensor: str, start: int, stop: int) -> torch.Tensor:
        value = known[tensor]
        return value[start:stop] if value.ndim else value.reshape(1)

    shapes = {key: tuple(value.shape) for key, value in known.items()}
    return _checked(SavedWeights(name, shapes, read, step, loss))


def _checked(weights: SavedWeights) -> SavedWeights:
    if not weights.shapes:
        raise CheckpointError(f"{weights.name} has no floating-point tensors.")
    return weights


def _trainer_state(folder: Path | None) -> tuple[int | None, float | None]:
    """Step and newest loss that the trainer of Hugging Face wrote beside the weights."""
    file = folder / "trainer_state.json" if folder else None
    if file is None or not file.is_file() or file.stat().st_size > _MAX_INDEX_BYTES:
        return None, None
    try:
        state = json.loads(file.read_bytes())
        step = int(state["global_step"])
        losses = [
            float(row["loss"])
            for row in state.get("log_history", [])
            if isinstance(row.get("loss"), int | float) and row.get("step", step) <= step
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, None
    return step, losses[-1] if losses and isfinite(losses[-1]) else None


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:_MAX_PROBLEM_CHARS].rstrip(".")
