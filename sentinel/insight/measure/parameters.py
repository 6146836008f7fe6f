"""The parameters that a picture is about: all that are trained, adapters only, or one layer.

Their names are those of a checkpoint, so that a model in training and a saved one agree: without
what DDP, FSDP, `torch.compile` and activation checkpointing put into a name, and without the name
of a PEFT adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

Selection = str | Iterable[str] | Callable[[str, Any], bool] | None
"""None for those that require a gradient, a pattern or name, several of them, or a predicate of
name and parameter. The name of a module stands for all parameters below it."""

_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_DATA_PARALLEL = frozenset({"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"})
_MAX_NAMES = 5
"""Names that an error lists."""


def select_parameters(model: nn.Module, parameters: Selection = None) -> dict[str, nn.Parameter]:
    """The chosen parameters by name, in the order of the model; shared ones once.

    Raises ValueError if no parameter is chosen, and TypeError if `parameters` is of another type.
    """
    adapters = _adapter_names(model)
    named: dict[str, nn.Parameter] = {}
    for raw, parameter in model.named_parameters():
        name = plain_name(_without_data_parallel(model, raw), adapters)
        # Two adapters that are trained at once differ in nothing else.
        named[raw if name in named else name] = parameter
    chosen_names = choose_names(named, parameters)
    if parameters is None:
        chosen_names = [name for name in chosen_names if named[name].requires_grad]
        if not chosen_names:
            raise ValueError(
                "No parameter of the model requires a gradient: choose some with `parameters`, "
                'such as parameters="*".'
            )
    return {name: named[name] for name in chosen_names}


def choose_names(named: Iterable[str] | dict[str, Any], parameters: Selection) -> list[str]:
    """The names that a selection chooses, in their order; all of them if it is None.

    Raises ValueError if it chooses none, and TypeError if it is of another type.
    """
    values = named if isinstance(named, dict) else dict.fromkeys(named)
    if parameters is None:
        return [*values]
    if callable(parameters):
        chosen = [name for name, value in values.items() if parameters(name, value)]
        what = "the predicate `parameters`"
    elif isinstance(parameters, str | Iterable):
        patterns = [parameters] if isinstance(parameters, str) else [*parameters]
        if not all(isinstance(each, str) for each in patterns):
            raise TypeError("`parameters` must name parameters: give strings.")
        unmatched = [each for each in patterns if not any(_matches(name, each) for name in values)]
        chosen = [name for name in values if any(_matches(name, each) for each in patterns)]
        if chosen and unmatched:
            raise ValueError(f"No parameter matches {unmatched[0]!r}. {_known(values)}")
        what = " or ".join(repr(each) for each in patterns[:_MAX_NAMES]) or "an empty list"
    else:
        raise TypeError(
            "`parameters` must be a pattern, a list of names, a predicate (name, parameter) or "
            f"None, not {type(parameters).__name__}."
        )
    if not chosen:
        raise ValueError(f"No parameter matches {what}. {_known(values)}")
    return chosen


def plain_name(name: str, adapters: Iterable[str] = ()) -> str:
    """The name of a parameter as in a checkpoint.

    >>> plain_name("_orig_mod.layers.0._checkpoint_wrapped_module.weight")
    'layers.0.weight'
    >>> plain_name("base_model.model.q_proj.lora_A.default.weight", ["default"])
    'base_model.model.q_proj.lora_A.weight'
    """
    dropped = {*_WRAPPERS, *adapters, "modules_to_save"} if adapters else _WRAPPERS
    return ".".join(part for part in name.split(".") if part not in dropped)


def describe_selection(parameters: Selection) -> str:
    """The selection in words, for a caption."""
    if parameters is None:
        return "all trained parameters"
    if isinstance(parameters, str):
        return parameters
    if callable(parameters):
        name = getattr(parameters, "__name__", "")
        return name if name.isidentifier() else "chosen parameters"
    names = [*parameters]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or name.startswith(f"{pattern}.") or fnmatchcase(name, pattern)


def _known(names: Iterable[str]) -> str:
    first = [*names][:_MAX_NAMES]
    return f"Names are such as {', '.join(first)}." if first else "There are no parameters."


def _adapter_names(model: nn.Module) -> list[str]:
    """Names of the PEFT adapters of the model, which PEFT leaves out of the names it saves."""
    found: dict[str, None] = {}
    for module in model.modules():
        config = getattr(module, "peft_config", None)
        if isinstance(config, dict):
            found |= dict.fromkeys(map(str, config))
    return [*found]


def _without_data_parallel(model: Any, name: str) -> str:
    """The name without the prefix of each wrapper that holds the model as `module`."""
    while True:
        if type(model).__name__ in _DATA_PARALLEL:
            model, prefix = model.module, "module."
        elif type(model).__name__ == "OptimizedModule":
            model, prefix = model._orig_mod, "_orig_mod."  # noqa: SLF001 - its name in the state
        else:
            return name
        name = name.removeprefix(prefix)
