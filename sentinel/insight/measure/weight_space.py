"""The selected weights of a model as one vector: its algebra, and moving the model along it.

A vector is a list of tensors, one for each selected parameter, with its shape. It has the precision
in which weights are moved: float64 for float64 weights, float32 for all others. For a parameter
that FSDP2 shards, it is a DTensor with the same placement: only sums communicate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sentinel.insight.measure.model_state import inner_tensors
from sentinel.insight.measure.surface_error import SurfaceError

if TYPE_CHECKING:
    import torch
    from torch import nn

Vector = list[Any]
"""One tensor for each selected parameter."""


class WeightSpace:
    """The space of the selected weights, with the current weights as its centre."""

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
        import torch  # noqa: PLC0415 - slow to import

        for name, parameter in parameters.items():
            if hasattr(parameter, "ds_id") and not parameter.numel():
                raise SurfaceError(
                    "DeepSpeed ZeRO-3 keeps the weights in pieces that cannot be moved: measure a "
                    "saved checkpoint, or train with FSDP2."
                )
            if not parameter.is_floating_point():
                raise SurfaceError(
                    f"The weight {name} is {_dtype_name(parameter)}, which cannot be moved in "
                    "small steps: choose others with `parameters`, such as the adapters of a "
                    'quantized model: parameters="*lora*".'
                )
        self.names = list(parameters)
        self.parameters = list(parameters.values())
        self._filter_dimensions = filter_dimensions(model)
        self.dtypes = [_vector_dtype(each) for each in self.parameters]
        with torch.no_grad():
            self.center: Vector = [
                each.detach().to(dtype, copy=True)
                for each, dtype in zip(self.parameters, self.dtypes, strict=True)
            ]

    @property
    def size(self) -> int:
        """Number of weights."""
        return sum(each.numel() for each in self.parameters)

    @property
    def coarsest_dtype(self) -> str | None:
        """The dtype of weights that store fewer than 24 bits of a value, if there are any."""
        import torch  # noqa: PLC0415 - slow to import

        coarse = [each for each in self.parameters if torch.finfo(each.dtype).eps > 1e-6]
        return _dtype_name(coarse[0]) if coarse else None

    def move(self, directions: Sequence[Vector], coordinates: Sequence[float]) -> None:
        """Set the weights to the centre plus a multiple of each direction."""
        for index, parameter in enumerate(self.parameters):
            value = self.center[index]
            for direction, coordinate in zip(directions, coordinates, strict=True):
                if coordinate:
                    value = value.add(direction[index], alpha=coordinate)
            self._write(parameter, value)

    def set_weights(self, weights: Vector) -> None:
        """Set the weights to these values."""
        for parameter, value in zip(self.parameters, weights, strict=True):
            self._write(parameter, value)

    @staticmethod
    def _write(parameter: torch.Tensor, value: torch.Tensor) -> None:
        # Through `data`: a graph that waits for its backward pass does not count it as a change.
        targets, values = inner_tensors(parameter.data), inner_tensors(value)
        for target, source in zip(targets, values, strict=True):
            target.data.copy_(source)

    def dot(self, one: Vector, two: Vector) -> float:
        """The inner product, summed in float64."""
        total = 0.0
        for a, b in zip(one, two, strict=True):
            product = (a.double() * b.double()).sum()
            total += float(_full(product))
        return total

    def norm(self, vector: Vector) -> float:
        """The L2 norm."""
        return float(self.dot(vector, vector) ** 0.5)

    def scaled(self, vector: Vector, factor: float) -> Vector:
        """A multiple of a vector."""
        return [each * factor for each in vector]

    def difference(self, one: Vector, two: Vector) -> Vector:
        """The first vector minus the second."""
        return [a - b for a, b in zip(one, two, strict=True)]

    def from_full(self, tensors: Mapping[str, torch.Tensor]) -> Vector:
        """The vector with these whole tensors, by name; every rank gives the same.

        Raises SurfaceError if one is missing or has another shape.
        """
        vector = []
        for name, parameter, dtype in zip(self.names, self.parameters, self.dtypes, strict=True):
            if name not in tensors:
                raise SurfaceError(f"The weight {name} is missing: give one for each parameter.")
            tensor = tensors[name]
            if tuple(tensor.shape) != tuple(parameter.shape):
                raise SurfaceError(
                    f"The weight {name} is {list(tensor.shape)} and that of the model "
                    f"{list(parameter.shape)}: give weights of the same model."
                )
            vector.append(_like(parameter, tensor.detach(), dtype))
        return vector

    def to_full(self, vector: Vector) -> dict[str, torch.Tensor]:
        """The whole tensors of a vector by name; the inverse of `from_full`."""
        return {name: _full(each) for name, each in zip(self.names, vector, strict=True)}

    def random(self, seed: int, *, normalise: bool) -> Vector:
        """A Gaussian direction, drawn for each parameter from the seed and its name.

        With `normalise` each filter has the norm of the filter of the weights, and biases and norms
        do not move (Li et al. 2018, "Visualizing the Loss Landscape of Neural Nets", section 4).
        """
        import torch  # noqa: PLC0415 - slow to import

        only_vectors = all(each.ndim <= 1 for each in self.parameters)
        drawn = []
        for name, parameter, center, dtype in zip(
            self.names, self.parameters, self.center, self.dtypes, strict=True
        ):
            generator = torch.Generator().manual_seed(_seed_of(seed, name))
            # Whole and on the host: every rank and every device draws the same.
            tensor = torch.randn(tuple(parameter.shape), generator=generator, dtype=torch.float32)
            tensor = tensor.to(dtype)
            if normalise:
                weights = _full(center).to("cpu")
                dimension = self._filter_dimensions.get(id(parameter), 0)
                tensor = normalise_filters(tensor, weights, dimension, vectors=only_vectors)
            drawn.append(_like(parameter, tensor, dtype))
        return drawn

    def to_array(self, vector: Vector) -> np.ndarray[Any, Any]:
        """The whole vector as a float64 array on every rank."""
        import torch  # noqa: PLC0415 - slow to import

        parts = [_full(each).double().reshape(-1).cpu() for each in vector]
        array: np.ndarray[Any, Any] = torch.cat(parts).numpy()
        return array

    def from_array(self, array: np.ndarray[Any, Any]) -> Vector:
        """The vector of an array; the inverse of `to_array`."""
        import torch  # noqa: PLC0415 - slow to import

        vector, start = [], 0
        for parameter, dtype in zip(self.parameters, self.dtypes, strict=True):
            part = torch.from_numpy(array[start : start + parameter.numel()].copy())
            start += parameter.numel()
            vector.append(_like(parameter, part.reshape(tuple(parameter.shape)), dtype))
        return vector

    def digest(self, vector: Vector) -> str:
        """A hash of the values that this rank holds."""
        digest = hashlib.blake2b(digest_size=16)
        for each in vector:
            for inner in inner_tensors(each):
                digest.update(tensor_bytes(inner))
        return digest.hexdigest()


def normalise_filters(
    direction: torch.Tensor, weights: torch.Tensor, dimension: int = 0, *, vectors: bool = False
) -> torch.Tensor:
    """The direction with the norm of each filter of the weights (Li et al. 2018).

    A filter is what belongs to one output: a row of a matrix, a kernel of a convolution. Biases and
    the weights of norms are vectors, and do not move: zero. With `vectors` each counts as one
    filter.
    """
    import torch  # noqa: PLC0415 - slow to import

    if weights.ndim <= 1:
        if not vectors:
            return torch.zeros_like(direction)
        whole: torch.Tensor = direction * (weights.norm() / direction.norm().clamp_min(1e-30))
        return whole
    filters, targets = direction.movedim(dimension, 0), weights.movedim(dimension, 0)
    norms = filters.flatten(1).norm(dim=1).clamp_min(1e-30)
    factors = targets.flatten(1).norm(dim=1) / norms
    scaled: torch.Tensor = filters * factors.reshape(-1, *[1] * (weights.ndim - 1))
    return scaled.movedim(0, dimension)


def filter_dimensions(model: nn.Module) -> dict[int, int]:
    """The dimension of the outputs, by id of the parameter, where it is not the first."""
    from torch.nn.modules.conv import _ConvTransposeNd  # noqa: PLC0415 - slow to import

    return {
        id(module.weight): 1
        for module in model.modules()
        # GPT-2 of Transformers stores its linear layers as (input, output).
        if isinstance(module, _ConvTransposeNd) or type(module).__name__ == "Conv1D"
        if getattr(module, "weight", None) is not None
    }


def tensor_bytes(tensor: torch.Tensor) -> Any:
    """The values of a tensor as a buffer of bytes."""
    import torch  # noqa: PLC0415 - slow to import

    flat = tensor.detach().contiguous().cpu().reshape(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else b""


def _full(tensor: Any) -> Any:
    """A DTensor as a whole tensor on every rank; others unchanged."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _like(parameter: Any, tensor: torch.Tensor, dtype: torch.dtype) -> Any:
    """The whole tensor in the place and the sharding of the parameter."""
    tensor = tensor.to(device=parameter.device, dtype=dtype)
    if not hasattr(parameter, "placements"):
        return tensor
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 - of PyTorch 2.5

    # Every rank has the whole tensor: nothing is sent.
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


def _vector_dtype(parameter: torch.Tensor) -> torch.dtype:
    import torch  # noqa: PLC0415 - slow to import

    return torch.float64 if parameter.dtype is torch.float64 else torch.float32


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _seed_of(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
