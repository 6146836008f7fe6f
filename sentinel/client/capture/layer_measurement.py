"""Measures the layers of a model on their devices; nothing here waits for a device.

The norm of each gradient is computed in full. Everything else is of a fixed sample of at most
`MAX_SAMPLED_ELEMENTS` elements of each layer, at the same places of the gradient at this step and
the step before, and of the weights before and after the optimizer's step. The results of a device
are one vector, which the caller copies to the host.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, sqrt
from typing import Any

from sentinel.client.capture import scalars
from sentinel.client.capture.grad_norm import gradient_norms
from sentinel.client.capture.grad_sharding import GradientShare, gradient_share, local_part
from sentinel.client.capture.layer_names import group_layers, name_parameters
from sentinel.client.process_group import process_group_size
from sentinel.signals.layer_statistics import LayerSum

MAX_SAMPLED_ELEMENTS = 2048
"""Elements of a layer in its sample. Of 128 layers a sample takes 1 MiB; at most four exist: of the
gradient at two steps, and of the weights before and after the optimizer's step."""

MAX_SAMPLED_PARAMETERS = 128
"""Parameters of a layer in its sample; of more, evenly spaced ones."""

_BINS, _FIRST_EXPONENT = 64, -48
"""Powers of two of a histogram; smaller and larger elements count at its ends."""
_FLOAT32_BIAS, _FLOAT32_MANTISSA_BITS, _FLOAT32_EXPONENT_MASK = 127, 23, 0xFF
_COLUMNS = 7
"""Numbers of a layer before its histogram: see `DeviceLayers.finish`."""


class LayersChangedError(Exception):
    """A parameter has another size than when the layers were planned."""


@dataclass(slots=True)
class Member:
    """A parameter of a layer: `count` of its `numel` local elements, `step` apart, are sampled.

    `position` is its place among the parameters, `row` the place of its layer on the device. This
    rank counts `share` of the square of its norm.
    """

    position: int
    row: int
    numel: int
    share: float
    count: int = 0
    step: int = 1


@dataclass(slots=True)
class Measurement:
    """What is measured at one step: complete when the vectors of all `missing` devices arrived.

    `is_skipped` is whether a fused optimizer skipped the step, since a gradient overflowed.
    """

    missing: int
    sums: list[LayerSum]
    histogram: dict[str, list[int]] = field(default_factory=dict)
    is_skipped: bool = False


@dataclass
class Layers:
    """The layers of a model on all devices of this rank.

    `ids` are those of their parameters, in order.
    """

    names: list[str]
    ids: list[int]
    devices: list[DeviceLayers]
    is_sharded: bool
    world_size: int

    @property
    def is_on_device(self) -> bool:
        """Whether any layer is on a device that works asynchronously."""
        return any(each.device.type in scalars.ASYNC_DEVICE_TYPES for each in self.devices)

    def covers(self, parameters: Sequence[Any]) -> bool:
        """Whether these are the parameters of the layers."""
        return self.ids == [*map(id, parameters)]

    def capture(self, parameters: Sequence[Any], scale: Any, *, is_measured: bool) -> None:
        """Sample the gradients, divided by `scale` if there is one, and perhaps measure them."""
        for each in self.devices:
            each.capture(parameters, scale, is_measured=is_measured)

    def sample_weights(self, parameters: Sequence[Any]) -> None:
        """Sample the weights before the optimizer's step."""
        for each in self.devices:
            each.sample_weights(parameters)

    def finish(
        self,
        parameters: Sequence[Any],
        found_inf: Any,
        copy: Callable[[Any, Callable[[list[float]], None]], bool],
    ) -> Measurement | None:
        """What was measured at this step, after the optimizer's step; None if it is dropped.

        `copy(vector, deliver)` copies a vector to the host and calls `deliver` with its numbers. It
        returns False if it cannot.
        """
        vectors = [(each, each.finish(parameters, found_inf)) for each in self.devices]
        measurement = Measurement(len(vectors), [LayerSum()] * len(self.names))
        copies = [copy(vector, each.receiver(measurement, self.names)) for each, vector in vectors]
        return measurement if all(copies) else None

    def end_step(self) -> None:
        """The sample of this step's gradient, if there is one, is that of the last step now."""
        for each in self.devices:
            each.end_step()


def plan_layers(
    parameters: Sequence[Any],
    model: Any = None,
    names: Sequence[str] | None = None,
    flattened_shares: Any = None,
) -> Layers:
    """The layers of these parameters.

    `model` owns them, by default any model of the process; `names` are used where no module has
    one. `flattened_shares` are those of FSDP1. Raises RejectedValueError if it is unknown which
    part of a gradient this rank holds.
    """
    # A layer whose gradient cannot be read must not look like one that has none.
    named = [
        (at, name)
        for at, name in name_parameters(parameters, model, names)
        if _is_readable(parameters[at].grad)
    ]
    layers, layer_of = group_layers([name for _, name in named])
    world_size = process_group_size() or 1
    shares = {at: gradient_share(parameters[at], flattened_shares) for at, _ in named}
    is_sharded = any(each is not None and each.replicas < each.ranks for each in shares.values())
    by_device: dict[Any, list[tuple[int, int]]] = {}
    for (position, _), layer in zip(named, layer_of, strict=True):
        device = local_part(parameters[position]).device
        if device.type == "cpu" or device.type in scalars.ASYNC_DEVICE_TYPES:
            by_device.setdefault(device, []).append((layer, position))
    devices = []
    for device, placed in by_device.items():
        rows = sorted({layer for layer, _ in placed})
        row_of = {layer: row for row, layer in enumerate(rows)}
        members = [
            Member(
                position,
                row_of[layer],
                _numel(local_part(parameters[position])),
                _square_share(shares[position], world_size) if is_sharded else 1.0,
            )
            for layer, position in sorted(placed, key=lambda each: each[0])
        ]
        _choose_sample(members, [local_part(parameters[each.position]) for each in members])
        devices.append(DeviceLayers(device, rows, members))
    return Layers(layers, [*map(id, parameters)], devices, is_sharded, world_size)


def _is_readable(gradient: Any) -> bool:
    """Whether the gradient, if there is one, can be measured without waiting for its device."""
    if gradient is None:
        return True
    is_dense = gradient.layout == sys.modules["torch"].strided
    return bool(is_dense and (gradient.is_floating_point() or gradient.is_complex()))


def _square_share(share: GradientShare | None, world_size: int) -> float:
    """The share of this rank in the square of a norm; those of all ranks sum to 1."""
    if share is None:
        return 1.0 / world_size
    return share.ranks / (share.replicas * world_size)


def _numel(part: Any) -> int:
    """Elements of a part, of which a complex one is two."""
    return int(part.numel()) * (2 if part.is_complex() else 1)


def _choose_sample(members: Sequence[Member], parts: Sequence[Any]) -> None:
    """Set how many elements of each member are sampled, in proportion to its size."""
    by_row: dict[int, list[tuple[Member, Any]]] = {}
    for member, part in zip(members, parts, strict=True):
        if member.numel:
            by_row.setdefault(member.row, []).append((member, part))
    for of_row in by_row.values():
        chosen = of_row[:: -(-len(of_row) // MAX_SAMPLED_PARAMETERS)]
        total = sum(member.numel for member, _ in chosen)
        free = MAX_SAMPLED_ELEMENTS - len(chosen)
        for member, part in chosen:
            member.count = min(member.numel, 1 + free * member.numel // total)
            member.step = _spacing(member.numel // member.count, part.shape)


def _spacing(longest: int, shape: Sequence[int]) -> int:
    """A spacing of at most `longest` that does not sample a few columns of a matrix only."""
    width = shape[-1] if shape else 1
    for spacing in range(longest, max(1, longest - 64), -1):
        if gcd(spacing, width) == 1:
            return spacing
    return longest


class DeviceLayers:
    """The layers, or parts of layers, on one device.

    `layers` are their numbers in the model, one for each row; `members` are in the order of rows.
    """

    def __init__(self, device: Any, layers: Sequence[int], members: Sequence[Member]) -> None:
        torch = sys.modules["torch"]
        self.device, self.layers, self.members = device, layers, members
        counts = [0] * len(layers)
        for member in members:
            counts[member.row] += member.count
        self._width = max(1, *counts)
        self._padding = [self._width - count for count in counts]
        self._zeros = torch.zeros(self._width, device=device)
        self._zero = torch.zeros((), device=device)
        self._row_of_member = _on_device([each.row for each in members], torch.int64, device)
        shares = [each.share for each in members]
        self._shares = None
        if any(share != 1.0 for share in shares):
            self._shares = _on_device(shares, torch.float64, device)
        self._last: Any = None
        self._sample: Any = None
        self._norms: Any = None
        self._weights: Any = None
        self._elements: list[float] = []

    def capture(self, parameters: Sequence[Any], scale: Any, *, is_measured: bool) -> None:
        """Sample the gradients; if this step is measured, compute their norms."""
        torch = sys.modules["torch"]
        parts = [self._part(parameters[each.position].grad, each.numel) for each in self.members]
        self._norms = self._norms_by_layer(parts, torch) if is_measured else None
        self._sample = self._sampled(parts)
        self._elements = [0.0] * len(self.layers)
        for member, part in zip(self.members, parts, strict=True):
            if part is not None:
                self._elements[member.row] += member.count
        if scale is not None:
            scale = scale.to(self.device, non_blocking=True)
            self._sample = self._sample / scale
            self._norms = None if self._norms is None else self._norms / scale

    def sample_weights(self, parameters: Sequence[Any]) -> None:
        """Sample the weights before the optimizer's step."""
        self._weights = self._sampled_weights(parameters)

    def finish(self, parameters: Sequence[Any], found_inf: Any) -> Any:
        """The vector of this step, after the optimizer's step.

        Of each layer: norm, zeros, products of the sample with itself, the last one, and of the
        last one with itself, squares of the update and of the weights; then the histogram. The last
        number is whether the optimizer skipped the step.
        """
        torch = sys.modules["torch"]
        sample, last, weights = self._sample, self._last, self._weights
        nothing = torch.zeros(len(self.layers), device=self.device)
        columns = [
            nothing if self._norms is None else self._norms.float(),
            (sample == 0).sum(1).float(),
            (sample * sample).sum(1),
            nothing if last is None else (sample * last).sum(1),
            nothing if last is None else (last * last).sum(1),
        ]
        if weights is None:
            columns += (nothing, nothing)
        else:
            update = self._sampled_weights(parameters).sub_(weights)
            columns += ((update * update).sum(1), (weights * weights).sum(1))
        rows = torch.cat((torch.stack(columns, 1), self._histogram(sample, torch)), 1)
        skipped = self._zero
        if found_inf is not None:
            skipped = found_inf.detach().to(self.device, non_blocking=True).float().reshape(())
        self._norms = self._weights = None
        return torch.cat((rows.reshape(-1), skipped.reshape(1)))

    def receiver(
        self, measurement: Measurement, names: Sequence[str]
    ) -> Callable[[list[float]], None]:
        """A function that adds the numbers of the vector to the measurement."""
        layers, elements, padding = self.layers, self._elements, self._padding
        width, all_elements = _COLUMNS + _BINS, [self._width] * len(self.layers)

        def receive(numbers: list[float]) -> None:
            measurement.missing -= 1
            measurement.is_skipped |= numbers[-1] > 0.0
            for row, layer in enumerate(layers):
                norm, zeros, *products = numbers[row * width : row * width + _COLUMNS]
                bins = numbers[row * width + _COLUMNS : (row + 1) * width]
                # Padding, and parameters without a gradient, are zeros of the sample.
                absent = all_elements[row] - elements[row]
                own, dot, last, update, weights = products
                measurement.sums[layer] += LayerSum(
                    norm,
                    zeros - absent,
                    elements[row],
                    _root(update),
                    _root(weights),
                    _root(own),
                    _root(last),
                    dot,
                )
                if padding[row] < all_elements[row]:
                    _add_counts(measurement.histogram, names[layer], bins, zeros)

        return receive

    def end_step(self) -> None:
        """The sample of this step's gradient, if there is one, is that of the last step now."""
        self._last, self._sample = self._sample, None
        self._norms = self._weights = None

    def _part(self, tensor: Any, numel: int) -> Any:
        """The part of a gradient that this rank holds, as real numbers; None if it has none here.

        Raises LayersChangedError.
        """
        if tensor is None:
            return None
        part = local_part(tensor.detach())
        if part.layout != sys.modules["torch"].strided or part.device != self.device:
            return None
        if part.is_complex():
            part = sys.modules["torch"].view_as_real(part.resolve_conj())
        if part.numel() != numel:
            raise LayersChangedError
        return part if part.is_floating_point() else None

    def _norms_by_layer(self, parts: Sequence[Any], torch: Any) -> Any:
        present = [part for part in parts if part is not None]
        norms = gradient_norms(present, torch) if present else [self._zero]
        zero, remaining = self._zero.to(norms[0].dtype), iter(norms)
        of_members = [zero if part is None else next(remaining) for part in parts]
        squares = torch.stack(of_members).double() ** 2
        if self._shares is not None:
            squares = squares * self._shares
        sums = torch.zeros(len(self.layers), dtype=torch.float64, device=self.device)
        return sums.index_add_(0, self._row_of_member, squares).sqrt()

    def _sampled_weights(self, parameters: Sequence[Any]) -> Any:
        return self._sampled(
            [self._part(parameters[each.position], each.numel) for each in self.members]
        )

    def _sampled(self, parts: Sequence[Any]) -> Any:
        """The sample of these tensors: a row for each layer, filled with zeros."""
        pieces = []
        row = 0
        for member, part in zip(self.members, parts, strict=True):
            while row < member.row:
                pieces.append(self._zeros[: self._padding[row]])
                row += 1
            if member.count:
                pieces.append(
                    self._zeros[: member.count]
                    if part is None
                    else _every(part, member.count, member.step)
                )
        pieces += (self._zeros[:each] for each in self._padding[row:])
        joined = sys.modules["torch"].cat(pieces)
        return joined.float().reshape(len(self.layers), self._width)

    def _histogram(self, sample: Any, torch: Any) -> Any:
        """Counts by the exponent of the elements, as float32 holds it."""
        exponents = sample.view(torch.int32).bitwise_right_shift(_FLOAT32_MANTISSA_BITS)
        exponents = exponents.bitwise_and_(_FLOAT32_EXPONENT_MASK)
        bins = exponents.sub_(_FLOAT32_BIAS + _FIRST_EXPONENT).clamp_(0, _BINS - 1)
        counts = torch.zeros(len(self.layers), _BINS, device=self.device)
        ones = torch.ones((), device=self.device).expand_as(sample)
        return counts.scatter_add_(1, bins.long(), ones)


def _every(part: Any, count: int, step: int) -> Any:
    """`count` elements of a tensor, `step` apart in its memory; a view."""
    if not part.is_contiguous() and not _is_dense(part):
        part = part.contiguous()
    return part.as_strided((count,), (step,), part.storage_offset())


def _is_dense(part: Any) -> bool:
    """Whether the tensor fills a range of its memory, in any order of its dimensions."""
    strides = sorted(zip(part.stride(), part.shape, strict=True))
    expected = 1
    for stride, size in strides:
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _on_device(numbers: Sequence[float], dtype: Any, device: Any) -> Any:
    """The numbers on the device, without waiting for it."""
    tensor = sys.modules["torch"].tensor(numbers, dtype=dtype)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def _root(square: float) -> float:
    return sqrt(square) if square >= 0.0 else square


def _add_counts(
    histogram: dict[str, list[int]], name: str, bins: Iterable[float], zeros: float
) -> None:
    """Add the counts of a layer: the first exponent, then those up to the last that is not zero."""
    counts = [int(count) for count in bins]
    counts[0] -= int(zeros)
    used = [at for at, count in enumerate(counts) if count > 0]
    if not used:
        return
    first, last = used[0], used[-1]
    found = [_FIRST_EXPONENT + first, *counts[first : last + 1]]
    known = histogram.get(name)
    histogram[name] = found if known is None else merge_histograms(known, found)


def merge_histograms(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """The sum of two histograms.

    >>> merge_histograms([-3, 1, 2], [-2, 5, 7])
    [-3, 1, 7, 7]
    """
    first = min(one[0], other[0])
    counts = [0] * (max(one[0] + len(one), other[0] + len(other)) - 1 - first)
    for start, *added in (one, other):
        for at, count in enumerate(added, start - first):
            counts[at] += count
    return [first, *counts]


def with_noise(sums: LayerSum, mean_square: float, mean_dot: float) -> LayerSum:
    """The sums with these averages over measurements."""
    return replace(sums, mean_square=mean_square, mean_dot=mean_dot)
