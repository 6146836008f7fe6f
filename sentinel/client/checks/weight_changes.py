"""Weight changes: whether weights change that should not, between two steps or though frozen.

A weight that is initialized again has values that are unrelated to those before. What trainings do
on purpose between steps, such as clipping, projecting, averaging or masking, leaves a relation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from weakref import ref

from sentinel.client.capture import scalars
from sentinel.client.capture.device_copy import is_capturing_graph
from sentinel.client.capture.grad_sharding import local_part
from sentinel.client.capture.layer_names import clean_name
from sentinel.client.capture.owned_modules import modules_of, parameters_of
from sentinel.client.checks.check import Check, CheckedTraining
from sentinel.client.checks.untrained_parts import second_models, with_parts
from sentinel.client.checks.weights import (
    evenly_spaced,
    is_sampled,
    module_names,
    names_text,
    sample,
)

REPORT_STEPS = (6, 12, 18)
"""Steps whose result is read; no other check reads a device then. The last one is compared last."""
MAX_TENSORS, ROW = 32, 64
"""Matrices that are sampled, evenly spaced ones of more, and elements of each."""
MAX_CORRELATION, MIN_CHANGED_SHARE, MIN_NONZERO_SHARE = 0.5, 0.9, 0.5
"""Of the elements of a weight that is set anew. Samples of 64 elements without a relation have a
correlation of 0.125; clipping to any bound leaves one of 0.8."""
STEPS_TO_JUDGE = 2
"""Steps in a row that change a frozen weight."""
SECOND_MODEL_STEP, MAX_TIES = 4, 8

_Tie = tuple[str, list[tuple[Callable[[], Any], str]]]
"""The first name of a weight that several modules have, and these with their names of it."""


class WeightChanges(Check):
    """Compares the first matrices after each of the first steps with those before the next one."""

    name: ClassVar[str] = "weight_changes"

    def __init__(self, training: CheckedTraining) -> None:
        super().__init__(training)
        self._weights: list[Callable[[], Any]] = []
        """Weak references to the sampled weights."""
        self._samples: dict[Any, tuple[list[int], Any]] = {}
        """Places among these and rows of elements after the last step, by device."""
        self._steps_of: dict[Any, tuple[list[int], Any]] = {}
        """Places, and the step after which each was set anew or 0, by device."""
        self._found: dict[int, float] = {}
        """The same on the host, without the zeros."""
        self._reports = [*REPORT_STEPS]
        self._frozen: list[Any] = []
        self._frozen_before: list[Any] = []
        self._ties: list[_Tie] = []
        self._once_training: set[int] = set()
        """Ids of the models that were in training mode in one of the first backward passes."""
        self._trained: set[int] = set()
        """Ids of the weights that required a gradient in a backward pass since the last step."""

    def on_load(self) -> None:
        """The state of a module is loaded."""
        self._samples = {}

    def before_backward(self) -> None:
        """Note what the pass trains: for another one it may be frozen, or evaluated in turn."""
        if self.training.steps < SECOND_MODEL_STEP:
            models = with_parts(self.training.process.seen_modules.modules())
            self._once_training.update(at for at, each in models.items() if each.training)
        self._trained.update(id(each) for each in self.training.parameters if each.requires_grad)

    def before_step(self) -> None:
        """Compare the weights with those after the last step; sample frozen ones with gradients."""
        if is_capturing_graph():
            self._samples = {}
            return
        with sys.modules["torch"].no_grad():
            if self._samples:
                self._compare()
            # A gradient from before they were frozen, and momentum and decay with it.
            frozen = [
                each
                for each in self.training.parameters
                if not each.requires_grad
                and each.grad is not None
                and id(each) not in self._trained
            ]
            self._frozen = [each for each in frozen if is_sampled(local_part(each))][:MAX_TENSORS]
            self._frozen_before = [sample(local_part(each)).clone() for each in self._frozen]

    def after_step(self) -> None:
        """Sample the weights, and report what is known."""
        self._trained.clear()
        if is_capturing_graph():
            return
        self._look_at_models()
        frozen, self._frozen = self._frozen, []
        before, self._frozen_before = self._frozen_before, []
        steps = self.training.steps
        with sys.modules["torch"].no_grad():
            if frozen:
                self._count_frozen(frozen, before)
            if not self._reports:
                return
            if not self._weights:
                self._weights = [ref(each) for each in _matrices(self.training.parameters)]
            if steps >= self._reports[0] and self._report():
                self._reports = [each for each in self._reports if each > steps]
            self._samples = self._sample() if self._reports else {}

    def _look_at_models(self) -> None:
        """Whether tied weights are still one, and whether a second model is trained, as once."""
        training = self.training
        if training.steps == 1:
            root = training.find_model()
            self._ties = [] if root is None else _find_ties(root)
        elif training.steps == SECOND_MODEL_STEP:
            models = second_models(training.process.seen_modules.modules(), training.parameters)
            found = [each for each in models if id(each) not in self._once_training]
            if found:
                self.set_result("second_model", {"kind": type(found[0]).__name__})
        untied = [name for name, places in self._ties if not _is_one(places)]
        if untied:
            self.set_result("untied", {"weights": names_text(untied)})
            self._ties = []

    def _sample(self) -> dict[Any, tuple[list[int], Any]]:
        torch = sys.modules["torch"]
        by_device: dict[Any, tuple[list[int], list[Any]]] = {}
        for at, known in enumerate(self._weights):
            weight = known()
            local = None if weight is None else local_part(weight)
            if local is not None and is_sampled(local) and local.numel() >= ROW:
                places, rows = by_device.setdefault(local.device, ([], []))
                places.append(at)
                rows.append(sample(local, ROW).float())
        return {device: (places, torch.stack(rows)) for device, (places, rows) in by_device.items()}

    def _compare(self) -> None:
        """Note, on each device, after which step a weight was first set anew."""
        torch, steps = sys.modules["torch"], float(self.training.steps)
        before, self._samples = self._samples, {}
        for device, (places, rows) in self._sample().items():
            if before.get(device, ((),))[0] != places:
                continue
            default = places, torch.zeros_like(rows[:, 0])
            known_places, known = self._steps_of.setdefault(device, default)
            # To know that nothing changed costs a wait for a device, and little on the host.
            is_on_host = device.type not in scalars.ASYNC_DEVICE_TYPES
            is_equal = is_on_host and torch.equal(before[device][1], rows)
            if known_places == places and not is_equal:
                is_new = is_set_anew(before[device][1], rows)
                known = torch.where((known == 0.0) & is_new, steps, known)
                self._steps_of[device] = places, known

    def _report(self) -> bool:
        """Read the steps from their devices; whether all will arrive."""
        are_read = [
            self.training.read_vector(known, self._deliver(places, self.training.steps))
            for places, known in self._steps_of.values()
        ]
        return all(are_read)

    def _deliver(self, places: Sequence[int], steps: int) -> Callable[[list[float]], None]:
        def deliver(numbers: list[float]) -> None:
            self._found |= {at: each for at, each in zip(places, numbers, strict=True) if each}
            self._judge(steps)

        return deliver

    def _judge(self, steps: int) -> None:
        weights = {at: known() for at, known in enumerate(self._weights) if at in self._found}
        found = [each for each in weights.values() if each is not None]
        nn = sys.modules["torch"].nn
        kind: Any = object
        if 2 * len(found) < len(self._weights):
            # Codebooks, memories and rare tokens may be renewed on purpose.
            kind = nn.Linear, nn.modules.conv._ConvNd  # noqa: SLF001
        names = module_names(found, kind) if found else []
        if names:
            # The step that ends now is not recorded yet.
            steps_ago = steps - 1 - min(self._found.values())
            self.set_result("set_anew", {"modules": names_text(names), "steps_ago": steps_ago})
        elif self.problem is None:
            self.set_result("")

    def _count_frozen(self, frozen: Sequence[Any], before: Sequence[Any]) -> None:
        """Count, on the device, the elements that the step changed."""
        torch = sys.modules["torch"]
        moved = [
            (sample(local_part(each)) != old).sum().to(frozen[0].device, non_blocking=True)
            for each, old in zip(frozen, before, strict=True)
        ]
        known = [ref(each) for each in frozen]

        def deliver(numbers: list[float]) -> None:
            pairs = zip((each() for each in known), numbers, strict=True)
            changed = [each for each, count in pairs if each is not None and count]
            self.count(is_wrong=bool(changed))
            if self.wrong_count >= STEPS_TO_JUDGE:
                self.set_result("frozen", {"modules": names_text(module_names(changed))})

        self.training.read_vector(torch.stack(moved).float(), deliver)


def is_set_anew(before: Any, after: Any) -> Any:
    """Which rows of elements have new values without a relation to those before; on their device.

    The relation of sizes counts too: a projection may turn signs. A weight that is constant, or
    most of whose elements are zero, is not.
    """
    relation = (
        correlation(before, after).abs().maximum(correlation(before.abs(), after.abs()).abs())
    )
    changed = (before != after).float().mean(1)
    nonzero = (after != 0.0).float().mean(1)
    varies = (before.std(1) > 0.0) & (after.std(1) > 0.0)
    is_new = (relation < MAX_CORRELATION) & (changed > MIN_CHANGED_SHARE)
    return is_new & (nonzero > MIN_NONZERO_SHARE) & varies


def correlation(first: Any, second: Any) -> Any:
    """The correlation of each row of one matrix with that of another; on their device."""
    first = first - first.mean(1, keepdim=True)
    second = second - second.mean(1, keepdim=True)
    return sys.modules["torch"].nn.functional.cosine_similarity(first, second, dim=1, eps=1e-30)


def _matrices(parameters: Sequence[Any]) -> list[Any]:
    """Evenly spaced ones of the weights that are compared, with the last one."""
    found = [each for each in parameters if each.requires_grad and each.dim() > 1]
    return [*evenly_spaced(found[::-1], MAX_TENSORS)][::-1]


def _find_ties(root: Any) -> list[_Tie]:
    """The weights that several modules of a model have in common."""
    places: dict[int, _Tie] = {}
    for path, module in modules_of(root):
        for name, weight in parameters_of(module):
            tie = places.setdefault(id(weight), (clean_name(f"{path}.{name}"), []))
            tie[1].append((ref(module), name))
    return [each for each in places.values() if len(each[1]) > 1][:MAX_TIES]


def _is_one(places: Sequence[tuple[Callable[[], Any], str]]) -> bool:
    """Whether the modules still have the same weight, those that exist and have one."""
    pairs = [(known(), name) for known, name in places]
    weights = [vars(each)["_parameters"].get(name) for each, name in pairs if each is not None]
    return len({id(each) for each in weights if each is not None}) < 2
