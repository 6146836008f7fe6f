"""Random projection of the weights of a model to a few hundred numbers.

Distances between projections estimate the distances between the weights. No projection matrix is
stored: signs and positions follow from a seed and from the name and shape of each parameter, so
that every run, rank and device projects alike, and the projections of shards add up to that of the
whole.

Two steps. A sparse one of `width` sums: a parameter is cut into blocks of `width` elements; each
block is multiplied by a window of a table of random signs and added to the sums at a random
rotation (feature hashing: Weinberger et al., 2009). Then a subsampled randomised Hadamard
transform from `width` to `size` (Ailon and Chazelle, 2009; Tropp, 2011). The square of a distance
is estimated without bias, with variance at most 2 / size + 4 / width of its square.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sentinel.insight.trajectory.saved_weights import row_ranges

if TYPE_CHECKING:
    import torch

    Pieces = Iterable[tuple[str, int, torch.Tensor]]
    """Name of a parameter, position of the first element in it, flat elements."""

DEFAULT_SIZE = 512
MIN_SIZE, MAX_SIZE = 8, 8192

_MIN_WIDTH_BITS, _MAX_WIDTH_BITS = 15, 22
_TARGET_BLOCKS_BITS = 10
"""A model of at most 4 billion parameters has at most about a thousand blocks, so that few calls
are made per record."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_POSITION_BITS = 24


class WeightProjection:
    """Projects weights of these names and shapes to `size` numbers.

    `error` is the standard error of a distance relative to it. Projections can be compared if and
    only if their `digest` is equal. Raises ValueError if `size` is not in 8..8192.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], size: int = DEFAULT_SIZE, seed: int = 0
    ) -> None:
        if not MIN_SIZE <= size <= MAX_SIZE:
            raise ValueError(f"The size of a projection is {MIN_SIZE} to {MAX_SIZE}, not {size}.")
        self.size, self.seed = size, seed
        self.parameter_count = sum(prod(shape) for shape in shapes.values())
        bits = max(1, self.parameter_count - 1).bit_length()
        # A small model needs less, but at least eight times the size.
        least_bits = min(_MIN_WIDTH_BITS, max(bits, (8 * size - 1).bit_length()))
        self.width = 1 << min(max(bits - _TARGET_BLOCKS_BITS, least_bits), _MAX_WIDTH_BITS)
        self.error = float((2 / size + 4 / self.width) ** 0.5 / 2)
        identity = repr((seed, size, sorted((name, tuple(s)) for name, s in shapes.items())))
        self.digest = blake2b(identity.encode(), digest_size=16).hexdigest()
        self._blocks = {name: self._block_places(name, tuple(s)) for name, s in shapes.items()}
        hashes = _hashes(_key(seed, "signs"), self.width)
        signs = np.where(hashes >> np.uint64(63), np.float32(1), np.float32(-1))
        # Twice, so that a window that wraps around is one slice.
        self._signs = np.concatenate([signs, signs])
        self._rows = np.sort(np.argsort(_hashes(_key(seed, "rows"), self.width))[:size])
        self._tables: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}

    def project(self, pieces: Pieces) -> torch.Tensor:
        """The projection of the weights given in pieces, on the device of the first that is not
        on the CPU. Waits for no device. Elements that are not given count as zero.
        """
        import torch  # noqa: PLC0415 - the trainer has imported it

        sums: dict[torch.device, torch.Tensor] = {}
        for name, start, piece in pieces:
            if piece.device not in sums:
                sums[piece.device] = torch.zeros(
                    2 * self.width, dtype=exact_type(piece.device), device=piece.device
                )
            self._add(sums[piece.device], name, start, piece)
        parts = sorted((self._reduce(each) for each in sums.values()), key=lambda p: p.is_cpu)
        if not parts:
            return torch.zeros(self.size, dtype=torch.float64)
        total = parts[0]
        for part in parts[1:]:
            total += part.to(total.device, non_blocking=True)
        return total

    def _add(self, sums: torch.Tensor, name: str, start: int, piece: torch.Tensor) -> None:
        signs, _ = self._device_tables(sums.device)
        places = self._blocks[name]
        stop = start + len(piece)
        for block in range(start // self.width, -(-stop // self.width)):
            first, last = max(start, block * self.width), min(stop, (block + 1) * self.width)
            offset, count = first - block * self.width, last - first
            sign, window, rotation = places[block]
            signed = piece[first - start : last - start] * signs[window + offset :][:count]
            sums[rotation + offset :][:count].add_(signed, alpha=sign)

    def _reduce(self, sums: torch.Tensor) -> torch.Tensor:
        """The chosen rows of the Hadamard transform of the sums.

        Only elementwise sums in a fixed order: every device gives the same bits.
        """
        import torch  # noqa: PLC0415

        _, rows = self._device_tables(sums.device)
        values: torch.Tensor = sums[: self.width] + sums[self.width :]
        step = 1
        while step < self.width:
            pairs = values.view(-1, 2, step)
            values = pairs.new_empty(pairs.shape)
            torch.add(pairs[:, 0], pairs[:, 1], out=values[:, 0])
            torch.sub(pairs[:, 0], pairs[:, 1], out=values[:, 1])
            step *= 2
        chosen: torch.Tensor = values.view(-1)[rows] / self.size**0.5
        return chosen

    def _block_places(self, name: str, shape: tuple[int, ...]) -> list[tuple[int, int, int]]:
        """Sign, start of the window of signs, and rotation of each block of a parameter."""
        count = -(-prod(shape) // self.width)
        hashes = _hashes(_key(self.seed, name, shape), count)
        mask = np.uint64(self.width - 1)
        signs = np.where(hashes >> np.uint64(63), 1, -1)
        windows, rotations = hashes & mask, (hashes >> np.uint64(_POSITION_BITS)) & mask
        return [*zip(signs.tolist(), windows.tolist(), rotations.tolist(), strict=True)]

    def _device_tables(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Signs and rows on the device; copied on first use."""
        if device not in self._tables:
            import torch  # noqa: PLC0415

            signs, rows = torch.from_numpy(self._signs), torch.from_numpy(self._rows)
            self._tables[device] = (signs.to(device), rows.to(device))
        return self._tables[device]


class LocalPart(NamedTuple):
    """The part of a parameter that this rank holds.

    `starts` is its first index in each dimension of the whole, whose shape is `shape`. `counts` is
    whether this rank counts it: of several ranks with the same part, one does.
    """

    tensor: torch.Tensor
    starts: tuple[int, ...]
    shape: tuple[int, ...]
    counts: bool


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a DTensor, of which each rank holds a part."""
    return hasattr(tensor, "placements")


def local_part(tensor: Any) -> LocalPart:
    """The part of a tensor that this rank holds; runs no collective.

    Raises ValueError if its values are not reduced yet.
    """
    if not is_sharded(tensor):
        return LocalPart(tensor, (0,) * tensor.ndim, tuple(tensor.shape), counts=True)
    if any(each.is_partial() for each in tensor.placements):
        raise ValueError("A parameter holds partial sums: its ranks have not reduced it yet.")
    chunk = tensor.__create_chunk_list__()[0]
    coordinate = tensor.device_mesh.get_coordinate()
    counts = coordinate is not None and all(
        index == 0
        for index, each in zip(coordinate, tensor.placements, strict=True)
        if each.is_replicate()
    )
    return LocalPart(tensor.to_local(), tuple(chunk.offsets), tuple(tensor.shape), counts)


def local_pieces(name: str, part: LocalPart) -> Iterator[tuple[str, int, torch.Tensor]]:
    """The pieces of a part, at their positions in the whole parameter."""
    tensor, starts, shape, _ = part
    if not tensor.numel():
        return
    if not tensor.ndim:
        yield name, 0, tensor.reshape(1)
        return
    width, is_whole = prod(shape[1:]), tensor.shape[1:] == shape[1:]
    if is_whole and tensor.is_contiguous():
        yield name, starts[0] * width, tensor.reshape(-1)
        return
    inner = tuple(slice(a, a + n) for a, n in zip(starts[1:], tensor.shape[1:], strict=True))
    for first, last in row_ranges((len(tensor), *shape[1:])):
        rows = tensor[first:last]
        if not is_whole:
            # Positions between those of this rank's columns are zero here.
            padded = rows.new_zeros((last - first, *shape[1:]))
            padded[(slice(None), *inner)] = rows
            rows = padded
        yield name, (starts[0] + first) * width, rows.reshape(-1)


def exact_type(device: torch.device) -> torch.dtype:
    """The type in which sums are exact enough: float64 where the device has it."""
    import torch  # noqa: PLC0415

    return torch.float32 if device.type == "mps" else torch.float64


def _key(seed: int, *parts: Any) -> np.uint64:
    digest = blake2b(repr((seed, *parts)).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def _hashes(key: np.uint64, count: int) -> npt.NDArray[np.uint64]:
    """Hashes of 0..count - 1 under a key (SplitMix64: Steele et al., 2014)."""
    with np.errstate(over="ignore"):
        x = key + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
