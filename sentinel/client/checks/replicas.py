"""Replicas: a checksum of the weights of each layer, which the agent compares between ranks.

Ranks of a DistributedDataParallel model have the same weights to the last bit after each step. The
integers that the bits of a tensor are, summed exactly, differ if one element differs. No collective
runs.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any, ClassVar
from zlib import crc32

from sentinel.client.capture.device_copy import is_capturing_graph
from sentinel.client.capture.layer_names import clean_name, group_layers
from sentinel.client.capture.owned_modules import named_parameters
from sentinel.client.checks.check import Check, CheckedTraining
from sentinel.model.record import CHECK_KEY

FIRST_STEPS = (3, 10)
STRIDES = (100, 200, 1_000, 2_000, 10_000)
"""Each is a multiple of the one before, so that ranks with different costs have common steps."""
MAX_STEP_TIME_FRACTION = 0.005
MAX_LAYERS = 64
MAX_TEXT_CHARS = 1000
_PIECES, _PIECE_BITS = 4, 16
"""A sum of 64 bits is copied from its device in numbers that a float32 holds."""


class Replicas(Check):
    """Sums the weights of a DistributedDataParallel model at some steps."""

    name: ClassVar[str] = "replicas"

    def __init__(self, training: CheckedTraining) -> None:
        super().__init__(training)
        self._group: dict[str, float] = {}
        self._layer_of: list[int] = []
        self._layers: list[str] = []
        self._stride = STRIDES[0]

    @property
    def has_result(self) -> bool:
        """Whether there are replicas, which the agent compares."""
        return bool(self._layers)

    def after_step(self) -> None:
        """Sum the weights, if this step is compared."""
        steps = self.training.steps
        if steps == FIRST_STEPS[0]:
            self._plan()
        is_due = steps in FIRST_STEPS or steps % self._stride == 0
        root = self.training.find_model() if is_due and self._layers else None
        # Under `no_sync` the ranks take steps of their own, as in local SGD.
        if root is None or not root.require_backward_grad_sync or is_capturing_graph():
            return
        began = perf_counter()
        with sys.modules["torch"].no_grad():
            self._sum(root)
        cost = perf_counter() - began
        wanted = cost / (MAX_STEP_TIME_FRACTION * max(self.training.step_seconds, 1e-6))
        self._stride = next((each for each in STRIDES if each >= wanted), STRIDES[-1])

    def _plan(self) -> None:
        root = self.training.find_model()
        group = self.training.find_replicas()
        if group is not None:
            names = [name for name, _ in _weights(root)]
            self._group, (self._layers, self._layer_of) = group, group_layers(names, MAX_LAYERS)

    def _sum(self, root: Any) -> None:
        torch = sys.modules["torch"]
        sums = [checksum(each) for _, each in _weights(root)]
        devices = {each.device for each in sums}
        if len(sums) != len(self._layer_of) or len(devices) != 1:
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
        self.training.read_vector(vector, self._write)

    def _write(self, pieces: Sequence[float]) -> None:
        count = len(self._layers)
        packed = (struct.pack(f"{_PIECES}d", *pieces[at::count]) for at in range(count))
        self.training.record(
            {
                CHECK_KEY: self.name,
                "sums": "".join(f"{crc32(each):08x}" for each in packed),
                "layers": "\n".join(self._layers)[:MAX_TEXT_CHARS],
                "rank": float(self.training.rank),
                **self._group,
            }
        )


def checksum(tensor: Any) -> Any:
    """The sum, modulo 2^64, of the integers that the bits of the elements are; on their device."""
    torch = sys.modules["torch"]
    real = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return real.view(kinds[real.dtype.itemsize]).sum(dtype=torch.int64)


def _weights(root: Any) -> list[tuple[str, Any]]:
    """The weights that are equal on all ranks with their names, in order; a tied one once."""
    weights: dict[int, tuple[str, Any]] = {}
    for name, each in named_parameters(root):
        if name.removeprefix("module.") not in root.parameters_to_ignore:
            weights.setdefault(id(each), (clean_name(name), each))
    return [*weights.values()]
