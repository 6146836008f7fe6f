"""Loaded weights: whether a checkpoint that was loaded before the training gave the model any.

A checkpoint whose names have another prefix is loaded without an error, by `strict=False` or by
Transformers, and the model keeps its random weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar
from weakref import ref

from sentinel.client.capture.layer_names import module_path
from sentinel.client.capture.owned_modules import modules_of, named_parameters
from sentinel.client.checks.check import Check, Evidence
from sentinel.client.checks.weights import names_text

STEP = 3
"""The step after which it is known which model is trained."""
MAX_LOADS = 64
MAX_LOADED_SHARE = 0.1
"""Share of the tensors of a checkpoint, and of a module, that a load sets if it fails."""
MIN_NEW_SHARE = 0.5
"""Share of the elements of a model that is initialized where Transformers reports it. A new head
has far less, unless all of the model is tiny."""


class Loads:
    """The last load into each module of the process."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[Callable[[], Any], Evidence]] = {}
        """Weak reference to a module, and what it lacks if nearly everything, by its id."""

    def add_state_dict(self, module: Any, state_dict: Any, keys: Any) -> None:
        """Add a load of `state_dict`, with the keys that `load_state_dict` returned."""
        missing, unexpected = list(keys.missing_keys), len(keys.unexpected_keys)
        loaded = len(state_dict) - unexpected
        is_failed = loaded <= MAX_LOADED_SHARE * min(len(state_dict), loaded + len(missing))
        self._add(module, missing if is_failed and missing and unexpected else ())

    def add_pretrained(self, model: Any, missing: Iterable[str]) -> None:
        """Add a model that Transformers loaded, with the names of the weights it initialized."""
        names = {*missing}
        sizes = {name: each.numel() for name, each in named_parameters(model)}
        new = [name for name in sizes if name in names]
        # Parameters that another rank holds have no elements.
        is_failed = sum(map(sizes.__getitem__, new)) >= MIN_NEW_SHARE * sum(sizes.values()) > 0.0
        self._add(model, new if is_failed else ())

    def _add(self, module: Any, missing: Iterable[str]) -> None:
        modules = [*dict.fromkeys(map(module_path, missing))]
        evidence: Evidence = {"modules": names_text(modules)} if modules else {}
        if not modules:
            # A load of the whole makes up for one of a part, and that of a part for a failed one.
            inner = {id(each) for _, each in modules_of(module)}
            self.found = {
                at: (known, lack)
                for at, (known, lack) in self.found.items()
                if at not in inner and not (lack and _contains(known(), module))
            }
        self.found = {at: each for at, each in self.found.items() if each[0]() is not None}
        if len(self.found) < MAX_LOADS or id(module) in self.found:
            self.found[id(module)] = ref(module), evidence


def _contains(whole: Any, module: Any) -> bool:
    return whole is not None and any(each is module for _, each in modules_of(whole))


class LoadedWeights(Check):
    """Looks whether the last load into the model that is trained gave it weights."""

    name: ClassVar[str] = "loaded_weights"

    def after_step(self) -> None:
        """Judge the loads, once."""
        if self.training.steps != STEP:
            return
        ids = {*map(id, self.training.parameters)}
        loads = ((known(), evidence) for known, evidence in self.training.loads.found.values())
        own = [
            evidence
            for module, evidence in loads
            if module is not None and any(id(each) in ids for _, each in named_parameters(module))
        ]
        failed = [each for each in own if each]
        if failed:
            self.set_result("not_loaded", failed[0])
        elif own:
            self.set_result("")
