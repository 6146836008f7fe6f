"""Batches: whether the data loader gives the same batch again, or to several ranks.

A fingerprint is a checksum of some elements of the first tensors of a batch, on the CPU. Batches
that are fetched without gradients are of evaluations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar
from weakref import ref
from zlib import crc32

from sentinel.client.checks.check import Check, CheckedTraining, Evidence
from sentinel.model.record import CHECK_KEY

REPEATS_TO_JUDGE = 5
"""Equal batches in a row."""
FINGERPRINTS = 8
"""Batches whose fingerprints are compared between ranks."""
MAX_TENSORS, MAX_DEPTH, SAMPLED_ELEMENTS = 16, 4, 256


class Batches(Check):
    """Compares each batch with the one before, and each pass over the data with the one before."""

    name: ClassVar[str] = "batches"

    def __init__(self, training: CheckedTraining) -> None:
        super().__init__(training)
        self._last = 0
        self._fingerprints: list[str] = []

    def on_first_batch(self, iterator: Any, batch: Any) -> None:
        """The first batch of a pass over the data arrived."""
        is_repeated = self.training.passes.add(iterator, batch)
        if is_repeated:
            self.set_result("same_order")
        elif is_repeated is False and self.problem == "same_order":
            self.set_result("")

    def on_batch(self, iterator: Any, batch: Any) -> None:
        """A batch arrived."""
        current = fingerprint(batch)
        if not current:
            return
        if self.training.steps and len(self._fingerprints) < FINGERPRINTS:
            self._add(current)
        self.count(is_wrong=current == self._last and batch_count(iterator) > 1)
        self._last = current
        if self.wrong_count >= REPEATS_TO_JUDGE:
            self.set_result("same_batch", {"batches": self.wrong_count + 1.0})
        elif self.right_count >= REPEATS_TO_JUDGE and self.problem != "same_order":
            self.set_result("")

    def _add(self, current: int) -> None:
        self._fingerprints.append(f"{current:08x}")
        if len(self._fingerprints) < FINGERPRINTS:
            return
        group = self.training.find_replicas()
        if group is not None:
            fingerprints, rank = "".join(self._fingerprints), float(self.training.rank)
            evidence: Evidence = {"fingerprints": fingerprints, "rank": rank, **group}
            self.training.record({CHECK_KEY: self.name, **evidence})


class SamplerPasses:
    """The last pass over the data of a DistributedSampler that shuffles."""

    def __init__(self) -> None:
        self._find_sampler: Callable[[], Any] = lambda: None
        self._last: tuple[Any, int] = (None, 0)
        """Its epoch, and the fingerprint of its first batch."""

    def add(self, iterator: Any, batch: Any) -> bool | None:
        """Add the first batch of a pass; whether it repeats the last pass in the same epoch.

        None without such a sampler, or if this is its first pass.
        """
        sampler = getattr(getattr(iterator, "_index_sampler", None), "sampler", None)
        distributed = sys.modules.get("torch.utils.data.distributed")
        if (
            distributed is None
            or not isinstance(sampler, distributed.DistributedSampler)
            or not sampler.shuffle
            or not batch_count(iterator) > 1
        ):
            return None
        last, self._last = self._last, (sampler.epoch, fingerprint(batch))
        if self._find_sampler() is sampler and self._last[1]:
            return self._last == last
        self._find_sampler = ref(sampler)
        return None


def batch_count(iterator: Any) -> float:
    """Batches of a pass over the data; infinite if its length is unknown."""
    try:
        return len(iterator)
    except TypeError:
        return float("inf")


def fingerprint(batch: Any) -> int:
    """A checksum of elements of the tensors of the batch on the CPU; 0 if they are constant."""
    torch, checksum = sys.modules["torch"], 0
    for _, tensor in zip(range(MAX_TENSORS), _tensors(batch, torch, MAX_DEPTH), strict=False):
        elements = tensor.detach()
        if not elements.is_contiguous() or elements.is_conj() or elements.is_neg():
            continue
        # By its bytes: NumPy takes a tenth of PyTorch's time for a slice, and knows no bfloat16.
        by_element = elements.view(torch.uint8).numpy().reshape(elements.numel(), -1)
        spacing = max(1, len(by_element) // SAMPLED_ELEMENTS)
        sampled = by_element[::spacing][:SAMPLED_ELEMENTS]
        content = sampled.tobytes()
        # A mask of ones; or what a training that makes its own data does not read.
        if content != content[: sampled.shape[1]] * len(sampled):
            checksum = crc32(content, checksum)
    return checksum


def _tensors(batch: Any, torch: Any, depth: int) -> Iterator[Any]:
    """The plain CPU tensors of a batch, in its order; nothing of another object is called."""
    if type(batch) is torch.Tensor:
        if batch.is_cpu and batch.layout is torch.strided and batch.numel() and batch.dim():
            yield batch
    elif depth and isinstance(batch, list | tuple):
        for each in batch:
            yield from _tensors(each, torch, depth - 1)
    elif depth and isinstance(batch, Mapping):
        for each in batch.values():
            yield from _tensors(each, torch, depth - 1)
    elif depth and isinstance(getattr(batch, "data", None), dict):
        yield from _tensors(batch.data, torch, depth - 1)
