"""Loaded weights: whether the model that is trained has the weights that a checkpoint gave it.

A checkpoint whose names have another prefix is loaded without an error, by `strict=False` or by
Transformers, and the model keeps its random weights. An initialization after a load replaces the
loaded weights.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from types import FrameType
from typing import Any, ClassVar, NamedTuple
from weakref import ref

from sentinel.client.capture.grad_sharding import local_part
from sentinel.client.capture.layer_names import module_path
from sentinel.client.capture.owned_modules import existing, modules_of, named_parameters
from sentinel.client.checks.check import Check, Evidence
from sentinel.client.checks.weight_changes import (
    MAX_CORRELATION,
    MAX_TENSORS,
    ROW,
    correlation,
    is_set_anew,
)
from sentinel.client.checks.weights import (
    evenly_spaced,
    is_sampled,
    module_names,
    names_in_model,
    names_text,
    sample,
)

STEP = 3
"""The step after which it is known which model is trained."""
MAX_LOADS = 64
_LOADS = re.compile(r"^_*load(_|$)|pretrained")
"""The name of a function that loads a model."""
MAX_FRAMES = 12
"""Functions on the stack between a load and a module that it sets to evaluation mode."""
MAX_LOADED_SHARE = 0.1
"""Share of the tensors of a checkpoint, and of a module, that a load sets if it fails."""
MIN_NEW_SHARE = 0.5
"""Share of the elements of a model that is initialized where Transformers reports it. A new head
has far less, unless all of the model is tiny."""
MIN_LOST_SHARE = 0.9
"""Share of the matrices of a load that are set anew if it is lost. New heads, and last layers that
are initialized on purpose, are fewer."""


class Sample(NamedTuple):
    """Elements of a matrix that was loaded, its shape, and a weak reference to it."""

    find_weight: Callable[[], Any]
    shape: Sequence[int]
    row: Any


class Load(NamedTuple):
    """A load into a module.

    `lack` is what it lacks if nearly everything. `samples` are of the matrices that were loaded, by
    their id; `loaded` weak references to all parameters. `overwritten` are the names of those that
    are gone while the module has others under their names. `is_evaluated` is whether batches were
    read before the training while these existed.
    """

    find_module: Callable[[], Any]
    lack: Evidence
    samples: dict[int, Sample]
    loaded: Sequence[Callable[[], Any]]
    overwritten: list[str]
    is_evaluated: bool = False


class Loads:
    """The last load into each module of the process."""

    def __init__(self) -> None:
        self.found: dict[int, Load] = {}
        """By the id of the module."""
        self.has_file = False
        """Whether `torch.load` has read a file, which may hold a model."""
        self.are_sampled = True
        """Those before the first step of the process."""

    def add_state_dict(self, module: Any, state_dict: Any, keys: Any) -> None:
        """Add a load of `state_dict`, with the keys that `load_state_dict` returned."""
        missing, unexpected = list(keys.missing_keys), len(keys.unexpected_keys)
        loaded = len(state_dict) - unexpected
        is_failed = loaded <= MAX_LOADED_SHARE * min(len(state_dict), loaded + len(missing))
        self._add(module, missing, is_failed=is_failed and bool(missing) and unexpected > 0)

    def add_pretrained(self, model: Any, missing: Iterable[str]) -> None:
        """Add a model that Transformers loaded, with the names of the weights it initialized."""
        names = {*missing}
        sizes = {name: each.numel() for name, each in named_parameters(model)}
        new = [name for name in sizes if name in names]
        # Parameters that another rank holds have no elements.
        is_failed = sum(map(sizes.__getitem__, new)) >= MIN_NEW_SHARE * sum(sizes.values()) > 0.0
        self._add(model, new, is_failed=is_failed)

    def add_file(self) -> None:
        """Note that `torch.load` reads a file."""
        self.has_file = True

    def add_evaluation(self) -> None:
        """Note that batches are read before the first step: loads may be for an evaluation."""
        self._add_evaluation(None)

    def add_eval(self, module: Any) -> None:
        """Note that a module is set to evaluation mode before the first step.

        That is no evaluation where it is a part of a load, as in `from_pretrained`.
        """
        if self.found and self.are_sampled and not _is_loading():
            self._add_evaluation({id(each) for _, each in named_parameters(module)})

    def _add_evaluation(self, ids: Collection[int] | None) -> None:
        """Note an evaluation of the loaded weights with these ids, or of all."""
        self.found = {
            at: load._replace(
                is_evaluated=load.is_evaluated
                or any(ids is None or id(each) in ids for each in existing(load.loaded))
            )
            for at, load in self.found.items()
        }

    def _add(self, module: Any, missing: Collection[str], *, is_failed: bool) -> None:
        modules = [*dict.fromkeys(map(module_path, missing))]
        evidence: Evidence = {"modules": names_text(modules)} if is_failed else {}
        parameters = dict(named_parameters(module))
        lacking = {*missing}
        loaded = {name: each for name, each in parameters.items() if name not in lacking}
        ids = {*map(id, loaded.values())}
        if not is_failed:
            # A load of the whole makes up for one of a part, and that of a part for a failed one.
            inner = {id(each) for _, each in modules_of(module)}
            self.found = {
                at: load
                for at, load in self.found.items()
                if not (at in inner and _is_repeated(load, ids))
                and not (load.lack and _contains(load.find_module(), module))
            }
        self.found = {at: each for at, each in self.found.items() if each.find_module() is not None}
        for load in self.found.values():
            for at in ids:
                load.samples.pop(at, None)
        if len(self.found) < MAX_LOADS or id(module) in self.found:
            samples = _samples(loaded.values()) if self.are_sampled and not is_failed else {}
            overwritten: list[str] = []
            references = [
                ref(each, partial(_note_overwritten, ref(module), name, overwritten))
                for name, each in loaded.items()
            ]
            self.found[id(module)] = Load(ref(module), evidence, samples, references, overwritten)


def _is_loading() -> bool:
    """Whether a function that loads a model calls this one."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as `inspect` does
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        if _LOADS.search(frame.f_code.co_name):
            return True
        frame = frame.f_back
    return False


def _samples(parameters: Iterable[Any]) -> dict[int, Sample]:
    """Samples of evenly spaced matrices, by their id."""
    matrices = [each for each in parameters if _is_compared(each) and each.dim() > 1]
    return {
        id(each): Sample(ref(each), each.shape, _row(each).clone())
        for each in evenly_spaced(matrices, MAX_TENSORS)
    }


def _is_compared(tensor: Any) -> bool:
    """Whether it is a plain tensor with enough elements, and neither quantized nor lazy."""
    torch, local = sys.modules["torch"], local_part(tensor)
    is_plain = type(local) in {torch.Tensor, torch.nn.Parameter}
    return is_plain and is_sampled(local) and local.numel() >= ROW


def _row(tensor: Any) -> Any:
    return sample(local_part(tensor), ROW).float()


def _note_overwritten(
    find_module: Callable[[], Any], path: str, overwritten: list[str], _: Any
) -> None:
    """A parameter of this path no longer exists; note it if the module has another one there."""
    *parents, name = path.split(".")
    module = find_module()
    for parent in parents:
        if module is not None:
            module = (vars(module).get("_modules") or {}).get(parent)
    if module is not None and (vars(module).get("_parameters") or {}).get(name) is not None:
        overwritten.append(path)


def _is_repeated(load: Load, ids: Collection[int]) -> bool:
    """Whether a later load sets weights with these ids, of which the load set some or lacked some.

    Adapters that were added to its module later are none of them.
    """
    if load.lack:
        return _has_any(load.find_module(), ids)
    return any(id(each) in ids for each in existing(load.loaded))


def _has_any(module: Any, ids: Collection[int]) -> bool:
    return module is not None and any(id(each) in ids for _, each in named_parameters(module))


def _contains(whole: Any, module: Any) -> bool:
    return whole is not None and any(each is module for _, each in modules_of(whole))


class LoadedWeights(Check):
    """Looks whether the model that is trained has the weights that the last load gave it."""

    name: ClassVar[str] = "loaded_weights"

    def on_begin(self) -> None:
        """Compare the weights after the first step with those that were loaded."""
        torch, loads = sys.modules["torch"], self.training.process.loads
        loads.are_sampled = False
        # The other ranks may have been given the weights of the first one.
        if self.training.process.rank:
            return
        device = next((each.device for each in self.training.parameters), None)
        names, counts = [], []
        with torch.no_grad():
            replacements = self._find_replacements()
            if replacements:
                lost = torch.stack([_is_lost(*each) for each in replacements]).float()
                new = names_text(module_names([each for each, _ in replacements]))
                self.training.read_vector(lost, partial(self._judge_replaced, new))
            for load in self._own_loads():
                samples = [(each.find_weight(), each.row) for each in load.samples.values()]
                load.samples.clear()
                # Weights that were replaced, as by a larger embedding, are others.
                pairs = [
                    (weight, loaded)
                    for weight, loaded in samples
                    if weight is not None and weight.device == device and _is_compared(weight)
                ]
                if pairs:
                    modules = names_in_model(load.find_module(), [each for each, _ in pairs])
                    names.append((names_text(modules), MIN_LOST_SHARE * len(samples)))
                    counts.append(sum(_is_lost(*each) for each in pairs))
            if counts:
                vector = torch.stack(counts).float()
                self.training.read_vector(vector, partial(self._judge, names))

    def _find_replacements(self) -> list[tuple[Any, Any]]:
        """New trained weights with the shape of loaded ones that are gone, and elements of these.

        Only beside frozen weights that were loaded, as of a model with an adapter, and if no weight
        of the same load is left. An adapter that was unloaded or deleted, or was in no model, is
        dropped on purpose, unless the state of its optimizer was loaded as well.
        """
        loads = [each for each in self.training.process.loads.found.values() if not each.lack]
        left = {id(each): each for load in loads for each in existing(load.loaded)}
        if not any(not each.requires_grad for each in left.values()):
            return []
        new: dict[Sequence[int], list[Any]] = {}
        trained = [each for each in self.training.parameters if each.requires_grad]
        for each in trained:
            if id(each) not in left and each.device == trained[0].device and _is_compared(each):
                new.setdefault(each.shape, []).append(each)
        gone = [
            sample
            for load in loads
            if load.samples and (load.overwritten or self.training.is_resumed)
            if not load.is_evaluated and not existing(load.loaded)
            for sample in load.samples.values()
        ]
        if not all(sample.shape in new for sample in gone):
            return []
        pairs = [(each, sample.row) for sample in gone for each in new[sample.shape]]
        return pairs[:MAX_TENSORS]

    def _judge_replaced(self, modules: str, numbers: Sequence[float]) -> None:
        if all(numbers):
            self.set_result("replaced", {"modules": modules})

    def _judge(self, names: Sequence[tuple[str, float]], numbers: Sequence[float]) -> None:
        """Judge the lost matrices of each load, given by its modules and the least of a loss."""
        for (modules, least), lost in zip(names, numbers, strict=True):
            if lost >= least:
                self.set_result("set_anew", {"modules": modules})

    def after_step(self) -> None:
        """Judge the loads, once."""
        if self.training.steps != STEP:
            return
        own = self._own_loads()
        failed = [each.lack for each in own if each.lack]
        if failed:
            self.set_result("not_loaded", failed[0])
        elif own and not self.problem:
            self.set_result("")

    def _own_loads(self) -> list[Load]:
        """The loads into modules of which the optimizer holds a part."""
        ids = {*map(id, self.training.parameters)}
        pairs = [(each, each.find_module()) for each in self.training.process.loads.found.values()]
        return [load for load, module in pairs if _has_any(module, ids)]


def _is_lost(weight: Any, loaded: Any) -> Any:
    """Whether a weight has no relation to what was loaded, for another reason than the first step.

    A tensor of one element, on the device of the weight.
    """
    # A copy to the host that is not waited for has no content yet.
    before = loaded.to(weight.device, non_blocking=not weight.is_cpu)[None]
    after = _row(weight)[None]
    is_lost = is_set_anew(before, after)
    if weight.grad is not None and _is_compared(weight.grad):
        # A step at a high rate goes along the gradient, or its sign.
        step = correlation(after - before, _row(weight.grad).sign()[None])
        is_lost &= step.abs() < MAX_CORRELATION
    return is_lost[0]
