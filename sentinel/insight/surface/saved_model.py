"""Models of saved checkpoints, built and loaded without unpickling and without code of theirs.

A folder with `config.json` is a Transformers model, one with `adapter_config.json` a PEFT adapter
on such a model; both are read from the disk only. Weights of any other checkpoint are loaded into
the module that a function of the user builds.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.insight.measure.parameters import plain_name
from sentinel.insight.trajectory.saved_weights import CheckpointError, open_weights

if TYPE_CHECKING:
    from torch import nn

_CONFIG, _ADAPTER_CONFIG = "config.json", "adapter_config.json"
_MAX_CONFIG_BYTES = 16 << 20
_MAX_NAMES = 3
"""Names that an error lists."""


def load_model(
    checkpoint: Path,
    *,
    build: Callable[[], nn.Module] | None = None,
    like: Path | None = None,
    base: Path | None = None,
) -> nn.Module:
    """The model of a checkpoint, on the CPU, in eval mode, with weights that require a gradient.

    For a checkpoint without a configuration, as one of a loop of your own, `build` returns the
    module, or `like` is the folder of a Transformers model of the same shape. `base` is the folder
    of the model below a PEFT adapter, if it has moved; of an adapter, only its own weights require
    a gradient.

    Raises CheckpointError if the model cannot be built or its weights do not fit.
    """
    if build is not None:
        model = build()
        _load_weights(model, checkpoint)
    elif like is not None:
        model = _load_pretrained(like)
        _load_weights(model, checkpoint)
    elif (checkpoint / _ADAPTER_CONFIG).is_file():
        model = _load_adapter(checkpoint, base)
    elif (checkpoint / _CONFIG).is_file():
        model = _load_pretrained(checkpoint)
    else:
        raise CheckpointError(
            f"{checkpoint} has no config.json that states how its model is built: give "
            "--model MODULE:FUNCTION, a function that returns the module, or the folder of a "
            "Transformers model."
        )
    return model.eval()


def import_function(target: str) -> Callable[..., Any]:
    """The function MODULE:FUNCTION; a module may be in the current directory.

    Raises CheckpointError if there is none.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise CheckpointError(f"{target!r} names no function: give MODULE:FUNCTION.")
    path = str(Path.cwd())
    sys.path.insert(0, path)
    try:
        found = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise CheckpointError(f"There is no function {target}: {error}.") from None
    finally:
        sys.path.remove(path)
    if not callable(found):
        raise CheckpointError(f"{target} is no function.")
    return found


def base_folder(checkpoint: Path) -> Path | None:
    """The model that a PEFT adapter names as its base; None for any other checkpoint."""
    if not (checkpoint / _ADAPTER_CONFIG).is_file():
        return None
    named = _read_config(checkpoint / _ADAPTER_CONFIG).get("base_model_name_or_path")
    return Path(named) if isinstance(named, str) else None


def _load_pretrained(folder: Path) -> nn.Module:
    transformers = _need("transformers", folder)
    config = _read_config(folder / _CONFIG)
    names = config.get("architectures") or []
    transformers.utils.logging.disable_progress_bar()
    if config.get("auto_map"):
        raise CheckpointError(
            f"{folder} brings code of its own (auto_map), which is not run: give "
            "--model MODULE:FUNCTION, a function that builds the model."
        )
    known = [getattr(transformers, str(each), None) for each in names]
    kind = next((each for each in known if each is not None), None)
    if kind is None or not hasattr(kind, "from_pretrained"):
        raise CheckpointError(
            f"{folder / _CONFIG} names {', '.join(map(str, names)) or 'no architecture'}, which "
            f"transformers {transformers.__version__} does not have: give --model MODULE:FUNCTION."
        )
    try:
        model = kind.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, weights_only=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"Cannot load {folder}: {error}") from None
    except Exception as error:
        # Its class is not imported: no module of sentinel imports `pickle`, which a test checks.
        if type(error).__name__ != "UnpicklingError":
            raise
        raise CheckpointError(
            f"{folder} has weights that are more than tensors, which are not unpickled: save them "
            "as safetensors."
        ) from None
    whole: nn.Module = model.float()
    return whole


def _load_adapter(folder: Path, base: Path | None) -> nn.Module:
    peft = _need("peft", folder)
    named = base_folder(folder)
    base = base or named
    if base is None or not (base / _CONFIG).is_file():
        raise CheckpointError(
            f"{folder} is an adapter of the model {named}, which is not a folder here: give "
            "--base FOLDER. Nothing is downloaded."
        )
    try:
        model: nn.Module = peft.PeftModel.from_pretrained(
            _load_pretrained(base), str(folder), is_trainable=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"Cannot load {folder}: {error}") from None
    return model


def _load_weights(model: nn.Module, checkpoint: Path) -> None:
    import torch  # noqa: PLC0415 - slow to import

    weights = open_weights(checkpoint)
    own = {plain_name(name): each for name, each in model.state_dict(keep_vars=True).items()}
    parameters = {plain_name(name) for name, _ in model.named_parameters()}
    missing = sorted(parameters - weights.shapes.keys())
    unknown = sorted(weights.shapes.keys() - own.keys())
    wrong = [
        name
        for name, shape in weights.shapes.items()
        if name in own and tuple(own[name].shape) != shape
    ]
    for names, what in ((missing, "lacks"), (unknown, "has also"), (wrong, "has other shapes of")):
        if names:
            raise CheckpointError(
                f"{checkpoint} does not fit the model: it {what} {', '.join(names[:_MAX_NAMES])}"
                f"{' ...' if len(names) > _MAX_NAMES else ''}."
            )
    with torch.no_grad():
        for name, shape in weights.shapes.items():
            own[name].copy_(weights.read(name, 0, shape[0] if shape else 1).reshape(shape))


def _read_config(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise CheckpointError(f"{path} is too large for a configuration.")
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"Cannot read {path}: {error}.") from None
    return value if isinstance(value, dict) else {}


def _need(package: str, folder: Path) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise CheckpointError(f"Reading {folder} needs {package}: pip install {package}.") from None
