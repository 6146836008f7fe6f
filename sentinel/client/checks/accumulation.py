"""Accumulation: whether gradients that are to be accumulated are cleared in each backward pass.

Of an update with several passes only the last one counts then. Trainings that clear the gradients
of a pass on purpose change the weights before the next one, make gradients of their inputs, use the
graph again, compute other losses, keep the gradients or set them before the step; what shows that
is looked at before a report. Continual learning compares the gradient of a memory with that of the
batch, and uses one of them alone while they agree: its passes have batches of different sources.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple
from weakref import ref

from sentinel.client.capture.device_copy import is_capturing_graph
from sentinel.client.capture.grad_sharding import local_part
from sentinel.client.checks.check import Check, CheckedTraining
from sentinel.client.checks.gradients import find_with_gradient, is_plain, write_count
from sentinel.client.checks.replicas import checksum
from sentinel.client.checks.weights import graph_nodes, is_sampled, sample

UPDATES_TO_JUDGE, UPDATES_TO_PASS = 15, 3
"""Updates in a row whose passes are discarded, and of several passes that are accumulated."""
INSPECTED_PASSES = 3
"""Passes of the last one of these updates whose graph and weights are looked at."""
SAMPLED_ELEMENTS = 4096
MAX_LAST_NODES = 3
"""Nodes of a graph, from its root, among which the loss is divided by the number of passes."""
MIN_RELATION = 0.999
"""Cosine between the gradient of the last pass and that of the step: it may be scaled."""


class _Pass(NamedTuple):
    """A backward pass: names of its operations, shapes of their results, sources of its batch."""

    operations: Sequence[str]
    shapes: Sequence[Any]
    sources: Collection[int]

    def has_source_of(self, other: _Pass) -> bool:
        """Whether the batches of both are of one loader, or of the same shapes without a loader."""
        return self.sources == other.sources and (bool(self.sources) or self.shapes == other.shapes)


class Accumulation(Check):
    """Follows the gradient of one parameter through the backward passes of each update."""

    name: ClassVar[str] = "accumulation"

    def __init__(self, training: CheckedTraining) -> None:
        super().__init__(training)
        self._find_parameter: Callable[[], Any] = lambda: None
        self._before: Callable[[], Any] = lambda: None
        """Weak reference to the gradient before the current pass."""
        self._version_before = -1
        self._least_relation: Any = None
        """The least one of the updates in a row, on its device."""
        self._last_passes = 0
        """Passes of the update before."""
        self._sources: set[int] = set()
        """Ids of the iterators of data loaders that gave a batch since the last pass."""
        self._begin_update()

    def _begin_update(self) -> None:
        self._passes = 0
        """Passes of the update that wrote the gradient."""
        self._are_discarded = True
        self._gradient: Callable[[], Any] = lambda: None
        """Weak reference to the gradient after the last pass."""
        self._version = self._weight_version = -1
        """Writes into the gradient and the parameter up to then."""
        self._sample: Any = None
        self._newest_node = -1
        """The sequence number of the newest node in the graphs of the inspected passes."""
        self._first: _Pass | None = None
        """The first inspected pass."""
        self._sums: Any = None
        """Checksums of all weights before the first inspected pass."""
        self._differences: list[Any] = []
        """Elements that must be 0 where passes are discarded, on their device."""

    def on_batch(self, iterator: Any, _: Any) -> None:
        """A batch arrived."""
        self._sources.add(id(iterator))

    def before_backward(self) -> None:
        """Whether the gradient of the pass before was cleared, with the same weights."""
        sources, self._sources = self._sources, set()
        parameter = self._find_parameter()
        if parameter is None:
            return
        gradient = parameter.grad
        if self._passes:
            is_cleared = (
                gradient is None
                or gradient is not self._gradient()
                or write_count(gradient) != self._version
            )
            is_kept = gradient is not self._gradient() and self._gradient() is not None
            is_same_weight = write_count(parameter) == self._weight_version
            self._are_discarded &= is_cleared and is_same_weight and not is_kept
        self._before = (lambda: None) if gradient is None else ref(gradient)
        self._version_before = write_count(gradient)
        is_last_update = self.wrong_count == UPDATES_TO_JUDGE - 1
        if is_last_update and self._are_discarded and self._passes < INSPECTED_PASSES:
            if self.training.roots:
                self._inspect(parameter.device, gradient, sources)
            else:
                self._are_discarded = False

    def after_backward(self) -> None:
        """Count the pass if it wrote the gradient."""
        parameter = self._find_parameter()
        gradient = None if parameter is None else parameter.grad
        if gradient is None or (
            gradient is self._before() and write_count(gradient) == self._version_before
        ):
            return
        self._passes += 1
        self._gradient, self._version = ref(gradient), write_count(gradient)
        self._weight_version = write_count(parameter)
        self._sample = None
        is_wanted = self._passes > 1 and self._are_discarded
        if is_wanted and is_sampled(gradient) and not is_capturing_graph():
            # A sample in float32 is a view.
            self._sample = sample(gradient, SAMPLED_ELEMENTS).float().clone()

    def before_step(self) -> None:
        """Compare the gradient with that of the last pass: others may have been added."""
        parameter = self._find_parameter()
        gradient = None if parameter is None else parameter.grad
        if self._sample is None or gradient is None or gradient is not self._gradient():
            self._are_discarded = False
            return
        similarity = sys.modules["torch"].nn.functional.cosine_similarity
        current = sample(gradient, SAMPLED_ELEMENTS).float()
        relation = similarity(self._sample, current, dim=0, eps=1e-30)
        if self._least_relation is None or not self.wrong_count:
            self._least_relation = relation
        self._least_relation = self._least_relation.minimum(relation)

    def after_step(self) -> None:
        """Judge the update, and choose the parameter that is followed."""
        if self._passes > 1:
            # The passes of a GAN make gradients for the optimizer of the other model.
            is_alone = len([*self.training.find_optimizers()]) == 1
            self.count(is_wrong=self._are_discarded and is_alone)
            if self.wrong_count == UPDATES_TO_JUDGE:
                self._report(self._passes)
            elif self.right_count >= UPDATES_TO_PASS:
                self.set_result("")
        else:
            # Now and then a batch is left out.
            self.wrong_count = 0
        self._last_passes = self._passes
        self._begin_update()
        parameter = self._find_parameter()
        if parameter is None or parameter.grad is None:
            self._find_parameter = find_with_gradient(self.training.parameters)
            parameter = self._find_parameter()
        # FSDP keeps the gradients of the passes before in tensors of its own.
        is_flat = getattr(parameter, "_fsdp_flattened", False)
        if parameter is not None and (is_flat or not is_plain(parameter.grad)):
            self._find_parameter = lambda: None

    def _inspect(self, device: Any, gradient: Any, sources: Collection[int]) -> None:
        """Look at the graph of the pass that begins, its batch, the weights and the gradient."""
        torch, parameters = sys.modules["torch"], self.training.parameters
        own = {*map(id, parameters)}
        nodes = [*graph_nodes(each.grad_fn for each in self.training.roots)]
        leaves = [node.variable for node in nodes if hasattr(node, "variable")]
        numbers = [node._sequence_nr() for node in nodes if not hasattr(node, "variable")]  # noqa: SLF001 - there is no public name
        are_parameters = all(
            id(each) in own or isinstance(each, torch.nn.Parameter) for each in leaves
        )
        current = _Pass([node.name() for node in nodes], [*map(_shapes, nodes)], sources)
        self._first = self._first or current
        # Batches of one loader may have different shapes, and so may parts of one loss.
        is_alike = current.has_source_of(self._first) or self._last_passes in _divisors(nodes[0])
        # A graph that is used again has nodes from before the last pass, and parts of a loss that
        # are measured one by one have other operations.
        if (
            not numbers
            or not are_parameters
            or min(numbers) <= self._newest_node
            or current.operations != self._first.operations
            or not is_alike
        ):
            self._are_discarded = False
            return
        self._newest_node = max(numbers)
        with torch.no_grad():
            weights = [local_part(each) for each in parameters if each.device == device]
            sums = torch.stack([checksum(each) for each in weights if is_sampled(each)])
            self._sums = sums if self._sums is None else self._sums
            self._differences.append((sums != self._sums).sum())
            if gradient is not None and self._passes:
                self._differences.append((gradient != 0).sum())

    def _report(self, passes: int) -> None:
        """Report the problem, once what is on the device shows that there is no other reason."""
        torch = sys.modules["torch"]
        different = torch.stack(self._differences).sum().float()

        def deliver(numbers: list[float]) -> None:
            if not numbers[0] and numbers[1] > MIN_RELATION:
                evidence = {"updates": float(UPDATES_TO_JUDGE), "passes": float(passes)}
                self.set_result("discarded", evidence)

        vector = torch.stack([different, self._least_relation])
        if not self.training.read_vector(vector, deliver):
            # The next update is inspected in its place.
            self.wrong_count -= 1


def _shapes(node: Any) -> list[tuple[int, ...]]:
    """The shapes of the results of an operation, where PyTorch states them."""
    return [tuple(each.shape) for each in getattr(node, "_input_metadata", ())]


def _divisors(node: Any) -> Iterator[float]:
    """The numbers on the host by which a loss, of which this is the last operation, is divided."""
    for _ in range(MAX_LAST_NODES):
        name = "" if node is None else node.name()
        if name.startswith(("Div", "Mul")):
            other = getattr(node, "_saved_other", None)
            if other is not None and other.is_cpu and other.numel() == 1 and float(other):
                yield round(float(other) if name.startswith("Div") else 1.0 / float(other), 6)
        inputs = () if node is None else node.next_functions
        node = inputs[0][0] if inputs else None
