"""Weights: whether each step of the optimizer changes the weights that have a gradient.

At some steps a sample of each weight is compared around the optimizer's step, on its device. A
backward pass whose parameters are in no optimizer is found in its graph.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter
from typing import Any, ClassVar
from weakref import ref

from sentinel.client.capture.device_copy import is_capturing_graph
from sentinel.client.capture.grad_sharding import local_part
from sentinel.client.capture.layer_names import clean_name, module_path
from sentinel.client.capture.owned_modules import (
    existing,
    modules_of,
    named_parameters,
    owner_of,
    parameters_of,
    root_modules,
)
from sentinel.client.capture.scalars import number_or_reason
from sentinel.client.checks.check import Check, CheckedTraining
from sentinel.client.checks.gradients import write_count
from sentinel.client.checks.untrained_parts import (
    idle_adapters,
    new_weights,
    norms_trained_alone,
)

FIRST_STEPS = (2, 4, 8, 16)
"""Steps that are measured whatever it costs."""
STRIDE, MAX_STEP_TIME_FRACTION = 100, 0.005
"""Later measurements: a multiple of so many steps, and the share of the time that they may take."""
MAX_TENSORS, SAMPLED_ELEMENTS = 512, 256
"""Weights that are sampled, evenly spaced ones of more, and elements of each."""
MEASUREMENTS_TO_JUDGE = 3
MIN_MOVED_SHARE = 0.003
"""Share of the elements with a gradient that a step must change in low precision. At a rate of 1e-6
a step of Adam changes 2 % of bf16 weights of a standard deviation of 0.02, at 1e-7 0.2 %."""
MIN_GRADIENT_SHARE = 1e-4
"""Share of the mean size of all elements, below which a gradient is none."""
GRAPH_STEP, MAX_GRAPH_NODES = 8, 20_000
"""The step whose graph is searched for parameters in no optimizer, and nodes that are visited."""
MAX_VIEWS = 8
"""Nodes between an operation and its parameter, such as a cast and a transposition."""
MAX_NAMES = 8
LASTING_PROBLEMS = frozenset({"not_in_optimizer", "recomputed", "adapter_not_used", "only_norms"})
"""What is found in the graph once, whatever steps change."""


@dataclass
class _Tally:
    """Elements of one weight over all measurements: with a gradient, and changed by the step."""

    with_gradient: float = 0.0
    moved: float = 0.0
    measurements: int = 0

    def add(self, elements: float, moved: float) -> None:
        """Add a measurement of so many elements with a gradient, of which so many moved."""
        self.with_gradient += elements
        self.moved += moved
        self.measurements += elements > 0


@dataclass
class _Measurement:
    """The sampled tensors on one device, and their samples before the step."""

    places: list[int]
    last_elements: Any
    """Where the sample of each tensor ends among all elements."""
    weights: Any
    has_gradient: Any
    write_counts: list[int]
    """The writes into each tensor so far."""
    largest_gradient: Any


class WeightUpdates(Check):
    """Samples the weights of the optimizer around its steps."""

    name: ClassVar[str] = "weights"

    def __init__(self, training: CheckedTraining) -> None:
        super().__init__(training)
        self._measurements: list[_Measurement] = []
        self._tallies: dict[int, _Tally] = {}
        self._due = FIRST_STEPS[0]
        self._cost_seconds = self._rate = self._highest_rate = 0.0
        self._steps_without_gradient = self._steps_without_rate = 0
        self._with_gradient: set[int] = set()
        """Ids of the parameters that have had a gradient, up to the step whose graph is searched.
        """
        # What was trained before has values, whether a checkpoint gave them or not.
        self._is_first = training.process.loads.are_sampled
        self._low_precision = _Tally()
        self._leaves: list[Callable[[], Any]] = []
        """Weak references to the parameters that get a gradient, while they are needed."""
        self._is_gradient_zero = False
        """Whether all gradients were 0 in the last measured step."""
        self._after_pass: Any = None
        """The size of the largest gradient after the last backward pass, while it is needed."""
        self._zeroed_steps = 0

    def before_backward(self) -> None:
        """Find the parameters of the pass while some without an optimizer are looked for."""
        is_graph_step = self.training.steps + 1 == GRAPH_STEP
        if (is_graph_step or self._steps_without_gradient) and not self._leaves:
            nodes = [*graph_nodes(each.grad_fn for each in self.training.roots)]
            found = graph_leaves(nodes)
            self._leaves = [ref(each) for each in found]
            if is_graph_step:
                # Those that are made in each forward pass are gone after it.
                self._find_omitted(nodes, found)

    def after_backward(self) -> None:
        """Measure the gradients while those of steps are 0."""
        if self._is_gradient_zero and not is_capturing_graph():
            self._after_pass = largest_gradient(self.training.parameters)

    def before_step(self) -> None:
        """Sample weights and gradients, if this step is measured."""
        if is_capturing_graph():
            return
        step, parameters = self.training.steps + 1, self.training.parameters
        before, self._after_pass = self._after_pass, None
        now = None if before is None else largest_gradient(parameters)
        if now is not None and now.device == before.device:
            self.training.read_vector(sys.modules["torch"].stack([before, now]), self._judge_zeroed)
        if step <= FIRST_STEPS[-1]:
            self._count_gradients(parameters)
            self._count_rates()
        else:
            self._steps_without_gradient = 0
        if step <= GRAPH_STEP:
            self._with_gradient.update(id(each) for each in parameters if each.grad is not None)
        if step == GRAPH_STEP and not self._steps_without_gradient:
            self._find_untrained(parameters)
        self._leaves = []
        if step < self._due:
            return
        began = perf_counter()
        self._measurements = []
        with sys.modules["torch"].no_grad():
            self._measure(parameters)
        self._cost_seconds = perf_counter() - began

    def after_step(self) -> None:
        """Compare the weights with their samples."""
        steps = self.training.steps
        if steps < self._due:
            return
        began = perf_counter()
        with sys.modules["torch"].no_grad():
            for each in self._measurements:
                self._finish(each)
        self._measurements = []
        self._cost_seconds += perf_counter() - began
        wanted = self._cost_seconds / (
            MAX_STEP_TIME_FRACTION * max(self.training.step_seconds, 1e-6)
        )
        later = (int(wanted) // STRIDE + 1) * STRIDE
        coming = [each for each in FIRST_STEPS if each > steps]
        self._due = coming[0] if coming else (steps // STRIDE) * STRIDE + later

    def _count_gradients(self, parameters: Sequence[Any]) -> None:
        """A step without any gradient changes nothing: look which parameters have one instead."""
        trained = [each for each in parameters if each.requires_grad]
        if not trained or any(each.grad is not None for each in trained):
            self._steps_without_gradient = 0
            return
        self._steps_without_gradient += 1
        if self._steps_without_gradient < MEASUREMENTS_TO_JUDGE:
            return
        evidence: dict[str, float | str] = {"parameters": float(len(trained))}
        own = {id(each) for each in parameters}
        leaves = [each for each in existing(self._leaves) if id(each) not in own]
        if leaves:
            evidence["modules"] = names_text(module_names(leaves))
        self.set_result("other_tensors" if leaves else "no_gradient", evidence)

    def _judge_zeroed(self, sizes: Sequence[float]) -> None:
        """Judge the largest gradient after the backward pass and in the step."""
        after_pass, in_step = sizes
        self._is_gradient_zero = not in_step
        self._zeroed_steps = self._zeroed_steps + 1 if after_pass and not in_step else 0
        if self._zeroed_steps >= MEASUREMENTS_TO_JUDGE:
            self._is_gradient_zero = False
            self.set_result("zeroed")

    def _count_rates(self) -> None:
        """All of the first steps at a rate of 0 change nothing; a warm-up has a few."""
        groups = self.training.find_optimizer().param_groups
        # One on a device is not read.
        has_rate = any(type(each.get("lr")) not in {int, float} or each["lr"] for each in groups)
        self._steps_without_rate += not has_rate
        if self._steps_without_rate == FIRST_STEPS[-1]:
            self.set_result("no_rate", {"steps": float(FIRST_STEPS[-1])})

    def _find_untrained(self, parameters: Sequence[Any]) -> None:
        """Find parts of the model that are not trained, where that is an error."""
        training, root = self.training, self.training.find_model()
        known = self._with_gradient
        found = {"recomputed": training.process.recomputed.without_gradient(parameters, known)}
        if root is not None:
            found["adapter_not_used"] = idle_adapters(root, parameters, known)
            if self._is_first:
                found["only_norms"] = norms_trained_alone(root, parameters, training.process.loads)
        # A block that is cut off may have the adapters.
        problem = next((name for name, own in found.items() if own), "")
        if problem:
            self.set_result(problem, {"modules": names_text(module_names(found[problem]))})

    def _find_omitted(self, nodes: Sequence[Any], leaves: Sequence[Any]) -> None:
        """Find parameters that get a gradient and that no optimizer holds, in a graph."""
        own = {*map(id, self.training.parameters)}
        held = own | {
            id(each)
            for optimizer in self.training.find_optimizers()
            for group in optimizer.param_groups
            for each in group["params"]
        }
        omitted = [each for each in leaves if id(each) not in held]
        root = self.training.find_model() if omitted else None
        # FSDP2 computes with other tensors than the optimizer holds.
        if root is None or any(hasattr(each, "_get_fsdp_state") for _, each in modules_of(root)):
            return
        ids = {*map(id, omitted)}
        order = [(clean_name(name), id(each)) for name, each in named_parameters(root)]
        owned = {each for _, each in order}
        outside = [each for each in omitted if id(each) not in owned]
        self._record_omitted(omitted, names_in_model(root, omitted), len(outside), leaves)
        first, last = (
            next((at for at, (_, each) in places if each in own), -1)
            for places in (enumerate(order), reversed([*enumerate(order)]))
        )
        new = {id(each) for each in new_weights(root, omitted, self.training.process.loads)}
        names = [
            name
            for at, (name, each) in enumerate(order)
            if each in ids and (first <= at <= last or each in new)
        ]
        modules = [*dict.fromkeys(map(module_path, names))]
        # Others than those of the model may be a backbone, or a loss with parameters.
        inner = {*map(id, leaves_between(nodes, own))} if outside else set()
        shapes = [" x ".join(map(str, each.shape)) for each in outside if id(each) in inner]
        if modules:
            self.set_result("not_in_optimizer", {"modules": names_text(modules)})
        elif shapes:
            text = f"layers that are no part of the model ({names_text(shapes)})"
            self.set_result("not_in_optimizer", {"modules": text})

    def _record_omitted(
        self, omitted: Sequence[Any], modules: Sequence[str], outside: int, leaves: Sequence[Any]
    ) -> None:
        """Record which parameters get a gradient for nothing, which may be on purpose."""
        if self.training.process.rank:
            return
        texts = [names_text(modules)] if modules else []
        texts += [f"{outside} parameters outside the model"] if outside else []
        share = sum(each.numel() for each in omitted) / sum(each.numel() for each in leaves)
        text = f"{' and '.join(texts)}, {share:.2%} of the elements with gradients"
        self.training.process.record_metadata({"modules_without_optimizer": text})

    def _measure(self, parameters: Sequence[Any]) -> None:
        """Sample the weights that have a gradient, with their gradients."""
        torch, optimizer = sys.modules["torch"], self.training.find_optimizer()
        rates = parameter_rates(optimizer)
        self._rate = max(rates, default=0.0)
        with_gradient = [
            at
            for at, each in enumerate(parameters)
            if each.requires_grad and each.grad is not None and rates[at] > 0.0
        ]
        by_device: dict[Any, tuple[list[int], list[Any], list[Any], list[float]]] = {}
        for at in evenly_spaced(with_gradient, MAX_TENSORS):
            weight, gradient = local_part(parameters[at]), local_part(parameters[at].grad)
            if is_sampled(weight) and is_sampled(gradient) and weight.shape == gradient.shape:
                places, weights, gradients, factors = by_device.setdefault(
                    weight.device, ([], [], [], [])
                )
                places.append(at)
                weights.append(sample(weight).float())
                gradients.append(sample(gradient).float())
                # Weights in low precision are counted even if they are too coarse for a step;
                # those in float64 are compared in float32.
                spacing = 0.0 if is_low_precision(weight) else torch.finfo(torch.float32).eps
                factors.append(2.0 * spacing / rates[at])
        is_adaptive = divides_by_gradient(optimizer)
        for device, (places, weights, gradients, factors) in by_device.items():
            # Together: an operation for each weight takes most of the time.
            values, size = torch.cat(weights), torch.cat(gradients).abs()
            counts = [each.numel() for each in weights]
            ends = torch.tensor([*accumulate(counts)]).to(device, non_blocking=True)
            factor = torch.tensor(factors).to(device, non_blocking=True)
            # Not `repeat_interleave`, which may wait for the counts.
            elements = torch.arange(sum(counts), device=device)
            owners = torch.bucketize(elements, ends, right=True)
            limit = values.abs() * factor.index_select(0, owners)
            # What a step changes: about the rate, or the rate times the gradient.
            is_moved = limit < 1.0 if is_adaptive else size > limit
            self._measurements.append(
                _Measurement(
                    places,
                    ends - 1,
                    values,
                    is_large(size) & is_moved,
                    [write_count(local_part(parameters[at])) for at in places],
                    size.amax(),
                )
            )

    def _finish(self, measurement: _Measurement) -> None:
        """Count the elements that moved, on the device."""
        torch, places = sys.modules["torch"], measurement.places
        parameters = self.training.parameters
        tensors = [local_part(parameters[at]) for at in places]
        weights = [sample(each).float() for each in tensors]
        is_written = [write_count(each) for each in tensors] != measurement.write_counts
        moved = (torch.cat(weights) != measurement.weights) & measurement.has_gradient
        # Up to the end of each tensor; the differences are taken on the host.
        sums = torch.stack([measurement.has_gradient, moved]).cumsum(1)
        counts = sums.index_select(1, measurement.last_elements).float()
        rate = self._rate

        def deliver(numbers: list[float]) -> None:
            self._is_gradient_zero = not numbers.pop()
            halves = numbers[: len(places)], numbers[len(places) :]
            pairs = zip(*(differences(each) for each in halves), strict=True)
            counts = dict(zip(places, pairs, strict=True))
            # Writes through `.data` are not counted.
            self.count(is_wrong=not is_written and not any(moved for _, moved in counts.values()))
            self._judge(rate, counts)

        largest = measurement.largest_gradient[None]
        self.training.read_vector(torch.cat([counts.flatten(), largest]), deliver)

    def _judge(self, rate: float, counts: Mapping[int, tuple[float, float]]) -> None:
        """Add the counts of one measurement, and report what is known now.

        `counts` has the elements with a gradient, and those of them that moved, by place.
        """
        parameters = self.training.parameters
        if max(counts, default=0) >= len(parameters):
            return
        self._add_low_precision(parameters, rate, counts)
        for at, (elements, moved) in counts.items():
            tally = self._tallies.setdefault(at, _Tally())
            tally.add(elements, moved)
        known = {
            at: each
            for at, each in self._tallies.items()
            if each.measurements >= MEASUREMENTS_TO_JUDGE and at < len(parameters)
        }
        if not known or 2 * len(known) < len(self._tallies):
            return
        # Whatever earlier steps moved. At the end of a training steps may write the same numbers.
        has_stopped = self.wrong_count >= MEASUREMENTS_TO_JUDGE
        # Single weights in low precision, such as a norm's of 1, need not move.
        static = [
            parameters[at]
            for at, each in known.items()
            if has_stopped or not (each.moved or is_low_precision(parameters[at]))
        ]
        # Where the matrices are in higher precision, the norms were to be so too.
        coarse = [
            parameters[at]
            for at, each in known.items()
            if not each.moved and is_low_precision(parameters[at]) and parameters[at].dim() < 2
        ]
        if any(is_low_precision(each) for each in parameters if each.dim() > 1):
            coarse = []
        evidence: dict[str, float | str] = {
            "weights": float(len(known)),
            "unchanged": float(len(static)),
            "learning_rate": rate,
        }
        low = self._low_precision
        if (
            low.measurements >= MEASUREMENTS_TO_JUDGE
            and low.moved < MIN_MOVED_SHARE * low.with_gradient
        ):
            dtypes = {str(each.dtype) for each in parameters if is_low_precision(each)}
            evidence["dtype"] = ", ".join(sorted(dtypes)).replace("torch.", "")
            evidence["moved_share"] = low.moved / low.with_gradient
            self.set_result("too_small", evidence)
        elif len(static) == len(known):
            self.set_result("unchanged", evidence)
        elif coarse and not static:
            evidence["modules"] = names_text(module_names(coarse))
            evidence["dtype"] = str(coarse[0].dtype).removeprefix("torch.")
            self.set_result("norms_too_coarse", evidence)
        elif static:
            evidence["modules"] = names_text(module_names(static))
            self.set_result("part_unchanged", evidence)
        elif self.problem not in LASTING_PROBLEMS:
            self.set_result("", evidence)

    def _add_low_precision(
        self, parameters: Sequence[Any], rate: float, counts: Mapping[int, tuple[float, float]]
    ) -> None:
        """Count the elements of low precision, from the end of a warm-up on."""
        # Matrices hold most of a model; a bias that begins at 0 moves at any rate.
        own = [
            counts[at]
            for at in counts
            if is_low_precision(parameters[at]) and parameters[at].dim() > 1
        ]
        elements, moved = sum(each for each, _ in own), sum(each for _, each in own)
        is_warm_up = rate > self._highest_rate > 0.0
        self._highest_rate = max(self._highest_rate, rate)
        if not elements:
            return
        if is_warm_up:
            self._low_precision = _Tally()
        self._low_precision.add(elements, moved)


def largest_gradient(parameters: Sequence[Any]) -> Any:
    """The size of the largest element of all gradients, a tensor; None without a gradient."""
    torch = sys.modules["torch"]
    gradients = [local_part(each.grad) for each in parameters if each.grad is not None]
    # Not of samples: a mask may leave the gradients of a few rows, as of new tokens.
    sizes = [
        torch.linalg.vector_norm(each.detach(), float("inf")).float()
        for each in gradients
        if each.device == gradients[0].device and is_sampled(each)
    ]
    return torch.stack(sizes).amax() if sizes else None


def differences(sums: Sequence[float]) -> list[float]:
    """What each of these sums adds to the one before.

    >>> differences([2.0, 2.0, 5.0])
    [2.0, 0.0, 3.0]
    """
    return [each - before for before, each in zip((0.0, *sums), sums, strict=False)]


def parameter_rates(optimizer: Any) -> list[float]:
    """The learning rate of each parameter; 0 if it is on a device, where reading it would wait."""
    rates = [
        (read_rate(group.get("lr")), len(group["params"]))
        for group in (() if optimizer is None else optimizer.param_groups)
    ]
    return [rate for rate, count in rates for _ in range(count)]


def read_rate(rate: Any) -> float:
    """A learning rate that is a number or a tensor on the CPU; 0 for another one."""
    number = number_or_reason(rate)
    return number if type(number) is float else 0.0


def divides_by_gradient(optimizer: Any) -> bool:
    """Whether a step is about as large as the rate, whatever the gradient, as Adam's."""
    name = type(optimizer).__name__.lower()
    return "betas" in getattr(optimizer, "defaults", ()) or "ada" in name or "rms" in name


def is_low_precision(tensor: Any) -> bool:
    """Whether its elements have at most 16 bits."""
    return bool(tensor.dtype.itemsize <= 2)


def is_sampled(tensor: Any) -> bool:
    """Whether elements at the same places in memory are those of the same tensor."""
    torch = sys.modules["torch"]
    if tensor.layout is not torch.strided or not tensor.numel() or tensor.is_meta:
        return False
    dense = tensor.is_contiguous()
    if not dense and tensor.dim() == 4:
        dense = tensor.is_contiguous(memory_format=torch.channels_last)
    return bool(dense and tensor.is_floating_point())


def sample(tensor: Any, max_elements: int = SAMPLED_ELEMENTS) -> Any:
    """At most that many elements, evenly spaced in memory: a view."""
    numel = tensor.numel()
    spacing = max(1, numel // max_elements)
    if spacing > 1 and spacing % 2 == 0:
        # An even spacing often meets the same columns of a matrix.
        spacing -= 1
    count = min(numel, max_elements)
    return tensor.detach().as_strided((count,), (spacing,), tensor.storage_offset())


def evenly_spaced(items: Sequence[Any], max_items: int) -> Sequence[Any]:
    """At most that many of the items, with the first one.

    >>> evenly_spaced([1, 2, 3, 4, 5], 2)
    [1, 4]
    """
    return items[:: -(-len(items) // max_items) or 1]


def is_large(size: Any) -> Any:
    """Which elements of a gradient, given by their size, are not negligible.

    A bias before a normalization has a gradient of rounding errors, too small for its weight.
    """
    return size > MIN_GRADIENT_SHARE * size.mean()


def graph_nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    """These nodes of a graph and those that they lead to, at most `MAX_GRAPH_NODES`."""
    pending = [each for each in nodes if each is not None]
    seen = set(pending)
    while pending and len(seen) < MAX_GRAPH_NODES:
        node = pending.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)


def graph_leaves(nodes: Iterable[Any]) -> list[Any]:
    """The parameters for which a backward pass makes gradients in one of these nodes."""
    parameter = sys.modules["torch"].nn.Parameter
    found = (getattr(node, "variable", None) for node in nodes)
    return [*{id(each): each for each in found if isinstance(each, parameter)}.values()]


def leaves_between(nodes: Sequence[Any], held: Collection[int]) -> list[Any]:
    """The parameters of operations that lie between two with parameters whose ids are in `held`.

    The gradient reaches such an operation through one with a held matrix, and goes on through its
    input to another one.
    """
    hidden = sys.modules["torch"].autograd.function.BackwardCFunction
    following = {
        node: [each for each, _ in node.next_functions if each is not None] for node in nodes
    }
    before: dict[Any, list[Any]] = {}
    for node, others in following.items():
        for each in others:
            before.setdefault(each, []).append(node)
    # By the operation: its parameters, each behind views and casts alone, and its other inputs.
    inputs: dict[Any, list[Any]] = {}
    parameters: dict[Any, list[Any]] = {}
    for node, others in following.items():
        if len(others) > 1 and not isinstance(node, hidden):
            for each in others:
                leaf = _leaf_behind(each, following)
                if leaf is None:
                    inputs.setdefault(node, []).append(each)
                else:
                    parameters.setdefault(node, []).append(leaf)
    # A weight of a loss, or a temperature, is no layer.
    trained = [
        node
        for node, leaves in parameters.items()
        if any(id(each) in held and each.dim() > 1 for each in leaves)
    ]
    leading = _reachable(trained, before)
    below = _reachable([each for node in trained for each in following[node]], following)
    return [
        leaf
        for node, leaves in parameters.items()
        if node in below and any(each in leading for each in inputs.get(node, ()))
        for leaf in leaves
        if id(leaf) not in held
    ]


def _leaf_behind(node: Any, following: Mapping[Any, Sequence[Any]]) -> Any:
    """The leaf to which this node leads by a few of one input each; None if it leads elsewhere."""
    for _ in range(MAX_VIEWS):
        if len(following.get(node, ())) != 1:
            break
        node = following[node][0]
    return getattr(node, "variable", None)


def _reachable(nodes: Iterable[Any], following: Mapping[Any, Sequence[Any]]) -> set[Any]:
    """These nodes, and those to which they lead."""
    found = {*nodes}
    pending = [*found]
    while pending:
        for each in following.get(pending.pop(), ()):
            if each not in found:
                found.add(each)
                pending.append(each)
    return found


def module_names(tensors: Collection[Any], kind: Any = object) -> list[str]:
    """The paths of the modules of a kind that own these parameters, in the order of the model."""
    # Only where there is a problem: the search takes some tenths of a second.
    root = owner_of({id(each) for each in tensors}, root_modules())
    return [] if root is None else names_in_model(root, tensors, kind)


def names_in_model(root: Any, tensors: Collection[Any], kind: Any = object) -> list[str]:
    """The paths of the modules of that model and kind that own these parameters."""
    ids = {id(each) for each in tensors}
    return [
        clean_name(path)
        for path, module in modules_of(root)
        if isinstance(module, kind) and any(id(each) in ids for _, each in parameters_of(module))
    ]


def names_text(names: Sequence[str]) -> str:
    """The first names, and how many there are more; "no known module" without any.

    >>> names_text(["a", "b"])
    '`a`, `b`'
    """
    if not names:
        return "no known module"
    hidden = len(names) - MAX_NAMES
    more = f" and {hidden} more" if hidden > 0 else ""
    return ", ".join(f"`{each}`" for each in names[:MAX_NAMES]) + more
