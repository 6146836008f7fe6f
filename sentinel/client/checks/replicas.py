"""Replicas: a checksum of the weights of each layer, which the agent compares between ranks.

Ranks of a DistributedDataParallel model, and of ZeRO 1 and 2, have the same weights to the last bit
after each step. So do ranks that hold the same part of weights that FSDP2 divides and replicates
(HSDP). The integers that the bits of a tensor are, summed exactly, differ if one element differs.
No collective runs.

Ranks that divide the layers of a model between them, as in tensor parallelism, compute one loss of
one batch, and each holds all of the norms. No rank knows its group, so the agent compares the norms
of ranks whose last losses are equal to the last bit.
"""

from __future__ import annotations

import struct
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, ClassVar
from zlib import crc32

from sentinel.client.capture.device_copy import is_capturing_graph
from sentinel.client.capture.grad_sharding import local_part
from sentinel.client.capture.layer_names import clean_name, group_layers
from sentinel.client.capture.owned_modules import (
    is_norm,
    modules_of,
    named_parameters,
    parameters_of,
)
from sentinel.client.checks.check import Check, CheckedTraining, group_of
from sentinel.client.process_group import process_group_size
from sentinel.model.record import CHECK_KEY, LOSSES_KEY

PLAN_STEP = 1
FIRST_STEPS = (3, 10)
STRIDES = (100, 200, 1_000, 2_000, 10_000)
"""Each is a multiple of the one before, so that ranks with different costs have common steps."""
MAX_STEP_TIME_FRACTION = 0.005
MAX_LAYERS = 64
MAX_TEXT_CHARS = 1000
COMPARED_LOSSES = 3
"""Losses by which ranks with one batch are found. A loss has some 20 bits that differ."""
_PIECES, _PIECE_BITS = 4, 16
"""A sum of 64 bits is copied from its device in numbers that a float32 holds."""


class Replicas(Check):
    """Sums at some steps the weights that ranks have in common."""

    name: ClassVar[str] = "replicas"

    def __init__(self, training: CheckedTraining) -> None:
        super().__init__(training)
        self._group: dict[str, float] = {}
        self._layer_of: list[int] = []
        self._layers: list[str] = []
        self._stride = STRIDES[0]
        self._are_ranks_known = False
        """Whether the ranks that have the same weights are known."""
        self._find_weights: Callable[[Any], list[tuple[str, Any]]] = _norm_weights
        self._losses: deque[Any] = deque(maxlen=COMPARED_LOSSES)
        """The last ones, on their device, if they are not."""

    def before_backward(self) -> None:
        """Keep the loss, if it shows which ranks have the same batch."""
        if self._group and not self._are_ranks_known and self.training.roots:
            loss = local_part(self.training.roots[0]).detach()
            if loss.numel() == 1:
                self._losses.append(loss.reshape(()).float())

    def after_step(self) -> None:
        """Sum the weights, if this step is compared."""
        steps = self.training.steps
        if steps == PLAN_STEP:
            self._plan()
        is_due = steps in FIRST_STEPS or steps % self._stride == 0
        root = self.training.find_model() if is_due and self._group else None
        if root is None or not _is_synchronized(root) or is_capturing_graph():
            return
        began = perf_counter()
        with sys.modules["torch"].no_grad():
            weights = self._find_weights(root)
            if steps == FIRST_STEPS[0]:
                names = [name for name, _ in weights]
                self._layers, self._layer_of = group_layers(names, MAX_LAYERS)
            if weights and len(weights) == len(self._layer_of):
                self._sum([each for _, each in weights])
        cost = perf_counter() - began
        wanted = cost / (MAX_STEP_TIME_FRACTION * max(self.training.step_seconds, 1e-6))
        self._stride = next((each for each in STRIDES if each >= wanted), STRIDES[-1])

    def _plan(self) -> None:
        """Find the ranks that may have weights in common."""
        training, size = self.training, process_group_size() or 1
        root, ranks = training.find_model(), training.find_replicas()
        if ranks:
            self._find_weights = _weights
        elif root is not None and size > 1:
            ranks = mesh_replicas(root)
            self._find_weights = partial(_weights_on, ranks=ranks) if ranks else _norm_weights
        self._are_ranks_known = bool(ranks)
        if ranks:
            self._group = group_of(ranks)
        elif size > 1 and not hasattr(root, "require_backward_grad_sync"):
            self._group = group_of(range(size))

    def _sum(self, weights: Sequence[Any]) -> None:
        torch = sys.modules["torch"]
        sums = [checksum(each) for each in weights]
        devices = {each.device for each in (*sums, *self._losses)}
        if len(devices) != 1:
            return
        total = torch.stack(sums)
        layers = torch.tensor(self._layer_of).to(total.device, non_blocking=True)
        # The place of a tensor counts: two that were exchanged differ.
        total = total * torch.arange(1, len(sums) + 1, device=total.device)
        by_layer = torch.zeros(len(self._layers), dtype=torch.int64, device=total.device)
        by_layer.index_add_(0, layers, total)
        shifts = [_PIECE_BITS * piece for piece in range(_PIECES)]
        mask = (1 << _PIECE_BITS) - 1
        vector = torch.stack([(by_layer >> shift) & mask for shift in shifts]).flatten().float()
        if self._losses:
            vector = torch.cat([vector, torch.stack([*self._losses])])
        self.training.read_vector(vector, self._write)

    def _write(self, numbers: Sequence[float]) -> None:
        count = len(self._layers)
        pieces, losses = numbers[: count * _PIECES], numbers[count * _PIECES :]
        if not self._are_ranks_known and len({*losses}) < 2:
            # Losses that are constant, as of 0, are equal on ranks that have other batches.
            return
        packed = (struct.pack(f"{_PIECES}d", *pieces[at::count]) for at in range(count))
        report: dict[str, float | str] = {
            CHECK_KEY: self.name,
            "sums": "".join(f"{crc32(each):08x}" for each in packed),
            "layers": "\n".join(self._layers)[:MAX_TEXT_CHARS],
            "rank": float(self.training.process.rank),
            **self._group,
        }
        if losses:
            report[LOSSES_KEY] = struct.pack(f"{len(losses)}f", *losses).hex()
        self.training.process.record(report)


def checksum(tensor: Any) -> Any:
    """The sum, modulo 2^64, of the integers that the bits of the elements are; on their device."""
    torch = sys.modules["torch"]
    real = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return real.view(kinds[real.dtype.itemsize]).sum(dtype=torch.int64)


def _is_synchronized(root: Any) -> bool:
    """Whether the step has gradients of all replicas.

    Without, as under `no_sync` or `set_requires_all_reduce(False)`, ranks take steps of their own,
    as in local SGD.
    """
    states = [
        module._get_fsdp_state()  # noqa: SLF001 - there is no public name
        for _, module in modules_of(root)
        if hasattr(module, "_get_fsdp_state")
    ]
    groups = [group for each in states for group in getattr(each, "_fsdp_param_groups", ())]
    return getattr(root, "require_backward_grad_sync", True) and all(
        getattr(each, "all_reduce_grads", True) and getattr(each, "reduce_grads", True)
        for each in groups
    )


def mesh_replicas(root: Any) -> tuple[int, ...]:
    """The ranks that hold the same parts of most parameters as this one, as with HSDP.

    Empty if the parameters are no DTensors of which some ranks hold the same part.
    """
    groups = [_ranks_of_part(each) for _, each in named_parameters(root)]
    ((ranks, count),) = Counter(groups).most_common(1) or [((), 0)]
    return ranks if 2 * count > len(groups) else ()


def _ranks_of_part(parameter: Any) -> tuple[int, ...]:
    """The ranks that hold the same part of a DTensor as this one; empty if it is alone."""
    mesh: Any = getattr(parameter, "device_mesh", None)
    own = None if mesh is None else mesh.get_coordinate()
    if mesh is None or own is None:
        return ()
    placements = zip(parameter.placements, own, strict=True)
    at = tuple(slice(None) if each.is_replicate() else place for each, place in placements)
    ranks = mesh.mesh[at].flatten().tolist()
    return tuple(ranks) if len(ranks) > 1 else ()


def _weights_on(root: Any, ranks: tuple[int, ...]) -> list[tuple[str, Any]]:
    """The parts of weights that are equal on these ranks with their names, in order."""
    weights = {
        id(each): (clean_name(name), local_part(each))
        for name, each in named_parameters(root)
        if _ranks_of_part(each) == ranks
    }
    return [*weights.values()]


def _weights(root: Any) -> list[tuple[str, Any]]:
    """The weights that are equal on all ranks with their names, in order; a tied one once.

    An expert of DeepSpeed's is on some ranks only.
    """
    ignored = getattr(root, "parameters_to_ignore", ())
    weights: dict[int, tuple[str, Any]] = {}
    for name, each in named_parameters(root):
        if name.removeprefix("module.") not in ignored and getattr(each, "allreduce", True):
            weights.setdefault(id(each), (clean_name(name), each))
    return [*weights.values()]


def _norm_weights(root: Any) -> list[tuple[str, Any]]:
    """The weights of norms of which this rank holds all, with their names, in order."""
    return [
        (clean_name(f"{path}.{name}"), local_part(each))
        for path, module in modules_of(root)
        if is_norm(module)
        for name, each in parameters_of(module)
        # Megatron marks the norms of divided heads.
        if not getattr(each, "_fsdp_flattened", False)
        and not getattr(each, "tensor_model_parallel", False)
        and all(placement.is_replicate() for placement in getattr(each, "placements", ()))
    ]
