"""Names of an optimizer's parameters, and the layers that they are grouped in.

An optimizer usually holds parameters without names. They are found in the model that owns them,
which is searched once among all objects of the process if it is not given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

from sentinel.client.capture.owned_modules import named_parameters, root_modules
from sentinel.signals.layer_statistics import MAX_LAYERS

_WRAPPERS = re.compile(
    r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|modules_to_save\.[^.]+"
    r"|base_layer|original_module)\."
)
"""Parts of a path that a wrapper of a module adds."""
_PREFIXES = re.compile(r"^((module|base_model\.model)\.)+")
_ADAPTER = re.compile(r"(?<![^.])(lora_|ia3_|vera_|parametrizations(?=\.))")
"""The part of a path from which on it names an adapter or a parametrization of its module."""


def name_parameters(
    parameters: Sequence[Any], model: Any = None, names: Sequence[str] | None = None
) -> list[tuple[int, str]]:
    """Place in `parameters` and name of each of them, in the order of the model.

    `names` are those that the optimizer knows, if any. Parameters of no module are last.
    """
    found = _names_in_modules(parameters, model)
    known = names if names is not None and len(names) == len(parameters) else None
    order = {each: at for at, each in enumerate(found)}
    places = sorted(range(len(parameters)), key=lambda at: order.get(id(parameters[at]), inf))
    return [
        (
            at,
            clean_name(found.get(id(parameters[at])) or (known[at] if known else f"parameter{at}")),
        )
        for at in places
    ]


def clean_name(name: str) -> str:
    """The name of a parameter without what wrappers of its module add.

    >>> clean_name("_orig_mod.module.layers.0._fsdp_wrapped_module.weight")
    'layers.0.weight'
    >>> clean_name("base_model.model.model.q_proj.lora_A.default.weight")
    'model.q_proj.lora_A.default.weight'
    """
    return _PREFIXES.sub("", _WRAPPERS.sub("", name))


def module_path(name: str) -> str:
    """The module of a parameter; of an adapter, the module that it adapts.

    >>> module_path("h.0.q_proj.lora_A.default.weight"), module_path("h.0.bias"), module_path("w")
    ('h.0.q_proj', 'h.0', 'w')
    """
    adapter = _ADAPTER.search(name)
    if adapter is not None and adapter.start():
        return name[: adapter.start() - 1]
    return name.rpartition(".")[0] or name


def group_layers(names: Iterable[str], limit: int = MAX_LAYERS) -> tuple[list[str], list[int]]:
    """At most `limit` layers in the order of the names, and the layer of each name.

    A layer is a module; if there are too many, modules with the same beginning of their path, as
    long as possible; if even these are too many, neighbours.

    >>> group_layers(["h.0.a.weight", "h.0.b.weight", "h.1.a.weight"], 2)
    (['h.0', 'h.1'], [0, 0, 1])
    """
    paths = [tuple(module_path(name).split(".")) for name in names]
    depth = max(map(len, paths), default=1)
    while depth > 1 and len({path[:depth] for path in paths}) > limit:
        depth -= 1
    keys = [".".join(path[:depth]) for path in paths]
    distinct = [*dict.fromkeys(keys)]
    width = -(-len(distinct) // limit) or 1
    runs = [distinct[at : at + width] for at in range(0, len(distinct), width)]
    layers = [run[0] if len(run) == 1 else f"{run[0]} … {run[-1]}" for run in runs]
    layer_of = {key: at for at, run in enumerate(runs) for key in run}
    return layers, [layer_of[key] for key in keys]


def _names_in_modules(parameters: Sequence[Any], model: Any) -> dict[int, str]:
    """Names by id of the parameter, in the modules that own most of them."""
    wanted = {id(each) for each in parameters}
    owned = [] if model is None else [_owned_names(model, wanted)]
    if not any(owned):
        # The trainer may have wrapped, and replaced, what it was given.
        owned = [_owned_names(root, wanted) for root in root_modules()]
    found: dict[int, str] = {}
    for names in sorted(filter(None, owned), key=len, reverse=True):
        new = names.keys() - found.keys()
        # Two models with one optimizer, such as an actor and a critic, may use the same names.
        prefix = "" if not found else f"model{len(found)}."
        found |= {each: prefix + names[each] for each in names if each in new}
        if len(found) == len(wanted):
            break
    return found


def _owned_names(root: Any, wanted: set[int]) -> dict[int, str]:
    """Names by id of these parameters in the module, in its order."""
    names: dict[int, str] = {}
    for name, parameter in named_parameters(root):
        if id(parameter) in wanted:
            names.setdefault(id(parameter), name)
    return names
