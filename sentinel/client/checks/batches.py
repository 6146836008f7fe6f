"""Batches: whether the data loader gives the same batch again, or to several ranks.

A fingerprint is a checksum of some elements of the first tensors of a batch, on the CPU. Batches
that are fetched without gradients are of evaluations. Examples within a batch are compared where a
sampler draws all of them at random, and batches of several workers where their data set is a
stream: samplers and data sets may repeat them on purpose otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar
from weakref import ref
from zlib import crc32

from sentinel.client.checks.check import Check, CheckedTraining, Evidence, group_of
from sentinel.client.checks.worker_generators import copied_generator
from sentinel.model.record import CHECK_KEY

REPEATS_TO_JUDGE = 5
"""Equal batches in a row, or batches of equal examples."""
MIN_EXAMPLES = 4
"""Examples of a batch that are compared."""
FINGERPRINTS = 8
"""Batches whose fingerprints are compared between ranks."""
LASTING_PROBLEMS = frozenset({"same_order", "same_random_numbers"})
"""Those that different batches do not end."""
MAX_TENSORS, MAX_DEPTH, SAMPLED_ELEMENTS = 16, 4, 256


class Batches(Check):
    """Compares each batch with the one before, and each pass over the data with the one before."""

    name: ClassVar[str] = "batches"

    def __init__(self, training: CheckedTraining) -> None:
        super().__init__(training)
        self._last = 0
        self._fingerprints: list[str] = []
        self._of_one_example = 0
        """Batches in a row, each of another example than the last one."""
        self._equal_on_workers = 0
        """Batches of the workers of a stream that are equal to the one before."""
        self._find_iterator: Callable[[], Any] = lambda: None
        """That of the pass which began last."""
        self._first = self._equal_passes = 0
        """A checksum of its first batch, and passes in a row that begin with it and end early."""
        self._begun_at = 0
        """Steps when it began."""
        self._is_left_early = False

    def on_begin(self) -> None:
        """The first pass over the data has usually begun."""
        self._report_generator()

    def on_first_batch(self, iterator: Any, batch: Any) -> None:
        """The first batch of a pass over the data arrived."""
        is_repeated = self.training.process.passes.add(iterator, batch)
        self._report_generator()
        if is_repeated:
            self.set_result("same_order")
        elif is_repeated is False and self.problem == "same_order":
            self.set_result("")
        self._count_pass(iterator, batch)

    def _count_pass(self, iterator: Any, batch: Any) -> None:
        """Count passes of one update each, as of a loader that also fetches the next batch."""
        current, steps = fingerprint(batch), self.training.steps
        is_wrong = current == self._first and steps == self._begun_at + 1 and self._is_left_early
        self._equal_passes = self._equal_passes + 1 if is_wrong and current else 0
        self._first, self._begun_at, self._find_iterator = current, steps, ref(iterator)
        if self._equal_passes >= REPEATS_TO_JUDGE:
            self.set_result("same_batch", {"batches": self._equal_passes + 1.0})

    def on_batch(self, iterator: Any, batch: Any) -> None:
        """A batch arrived."""
        if iterator is not self._find_iterator():
            # The training has another pass, beside which this one is a probe.
            self._first = 0
        self._is_left_early = getattr(iterator, "_num_yielded", 0) < batch_count(iterator)
        current = fingerprint(batch)
        if not current:
            return
        if self.training.steps and len(self._fingerprints) < FINGERPRINTS:
            self._add(current)
        is_repeated = current == self._last
        self.count(is_wrong=is_repeated and batch_count(iterator) > 1)
        self._last = current
        is_of_one = not is_repeated and has_one_example(batch, drawn_examples(iterator))
        self._of_one_example = self._of_one_example + 1 if is_of_one else 0
        self._count_on_workers(iterator, is_repeated=is_repeated)
        if self.wrong_count >= REPEATS_TO_JUDGE:
            self.set_result("same_batch", {"batches": self.wrong_count + 1.0})
        elif self._of_one_example >= REPEATS_TO_JUDGE:
            self.set_result("same_example", {"batches": float(self._of_one_example)})
        elif self._equal_on_workers >= REPEATS_TO_JUDGE:
            self.set_result("same_on_each_worker", {"workers": float(iterator._num_workers)})  # noqa: SLF001 - there is no public name
        elif (
            self.right_count >= REPEATS_TO_JUDGE
            and self._equal_passes < REPEATS_TO_JUDGE
            and self.problem not in LASTING_PROBLEMS
        ):
            self.set_result("")

    def _report_generator(self) -> None:
        name = self.training.process.passes.generator
        if name and not self.problem:
            self.set_result("same_random_numbers", {"name": name})

    def _count_on_workers(self, iterator: Any, *, is_repeated: bool) -> None:
        """Count equal batches of the workers of a stream, while no other ones are equal.

        Workers take turns: those that give the same have equal batches within each turn alone.
        """
        workers = stream_workers(iterator)
        is_next_turn = workers > 1 and iterator._num_yielded % workers == 1  # noqa: SLF001 - there is no public name
        if workers < 2 or is_repeated is is_next_turn:
            self._equal_on_workers = 0
        elif is_repeated:
            self._equal_on_workers += 1

    def _add(self, current: int) -> None:
        self._fingerprints.append(f"{current:08x}")
        if len(self._fingerprints) < FINGERPRINTS:
            return
        ranks = self.training.find_replicas()
        if ranks:
            fingerprints, rank = "".join(self._fingerprints), float(self.training.process.rank)
            evidence: Evidence = {"fingerprints": fingerprints, "rank": rank, **group_of(ranks)}
            self.training.process.record({CHECK_KEY: self.name, **evidence})


class DataPasses:
    """What the passes over the data have in common.

    `generator` is the name of one that the workers of a pass copied; empty if there was none.
    """

    def __init__(self) -> None:
        self._find_sampler: Callable[[], Any] = lambda: None
        self._find_data: Callable[[], Any] = lambda: None
        """The data set of the last pass whose code was looked at."""
        self._last: tuple[Any, int] = (None, 0)
        """Of the last DistributedSampler that shuffles: its epoch, and a checksum of its first
        batch."""
        self.generator = ""

    def add(self, iterator: Any, batch: Any) -> bool | None:
        """Add the first batch of a pass; whether it repeats the last pass in the same epoch.

        None without a DistributedSampler that shuffles, or if this is its first pass.
        """
        data = getattr(iterator, "_dataset", None)
        if not self.generator and self._find_data() is not data and hasattr(data, "__weakref__"):
            self._find_data, self.generator = ref(data), copied_generator(iterator)
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


def stream_workers(iterator: Any) -> int:
    """The worker processes that iterate over an iterable data set; 0 for another one."""
    kinds = sys.modules["torch.utils.data.dataloader"]._DatasetKind  # noqa: SLF001 - there is no public name
    is_stream = getattr(iterator, "_dataset_kind", None) == kinds.Iterable
    return int(getattr(iterator, "_num_workers", 0)) if is_stream else 0


def drawn_examples(iterator: Any) -> int:
    """The examples of a batch that a sampler draws at random, each once; 0 for another sampler."""
    data, batches = sys.modules["torch.utils.data"], getattr(iterator, "_index_sampler", None)
    if batches is None or type(batches) is not data.BatchSampler:
        return 0
    sampler = batches.sampler
    if isinstance(sampler, data.RandomSampler):
        is_random = not sampler.replacement
    else:
        is_random = isinstance(sampler, data.DistributedSampler) and sampler.shuffle
    return int(batches.batch_size) if is_random else 0


def has_one_example(batch: Any, examples: int) -> bool:
    """Whether so many examples, of which the batch consists, are all the same and not constant.

    Not if the batch has anything but plain tensors on the CPU, which could differ.
    """
    torch, has_content = sys.modules["torch"], False
    for leaf in _leaves(batch, torch, MAX_DEPTH) if examples >= MIN_EXAMPLES else ():
        if not _is_read(leaf, torch) or len(leaf) != examples:
            return False
        by_example = _by_element(leaf, torch).reshape(examples, -1)
        first, spacing = by_example[0], max(1, by_example.shape[1] // SAMPLED_ELEMENTS)
        # Nearly all batches differ in these.
        if (by_example[-1, ::spacing] != first[::spacing]).any() or (by_example != first).any():
            return False
        size = leaf.element_size()
        content = first.tobytes()
        has_content |= content != content[:size] * (len(content) // size)
    return has_content


def fingerprint(batch: Any) -> int:
    """A checksum of elements of the tensors of the batch on the CPU; 0 if they are constant."""
    torch, checksum = sys.modules["torch"], 0
    read = (each for each in _leaves(batch, torch, MAX_DEPTH) if _is_read(each, torch))
    for _, tensor in zip(range(MAX_TENSORS), read, strict=False):
        by_element = _by_element(tensor, torch)
        spacing = max(1, len(by_element) // SAMPLED_ELEMENTS)
        sampled = by_element[::spacing][:SAMPLED_ELEMENTS]
        content = sampled.tobytes()
        # A mask of ones; or what a training that makes its own data does not read.
        if content != content[: sampled.shape[1]] * len(sampled):
            checksum = crc32(content, checksum)
    return checksum


def _by_element(tensor: Any, torch: Any) -> Any:
    """The bytes of each element of a tensor that is read.

    NumPy takes a tenth of PyTorch's time for a slice, and knows no bfloat16.
    """
    return tensor.detach().view(torch.uint8).numpy().reshape(tensor.numel(), -1)


def _is_read(leaf: Any, torch: Any) -> bool:
    """Whether it is a plain tensor on the CPU whose elements are dense in memory."""
    return (
        type(leaf) is torch.Tensor
        and leaf.is_cpu
        and leaf.layout is torch.strided
        and leaf.numel() > 0
        and leaf.dim() > 0
        and leaf.is_contiguous()
        and not leaf.is_conj()
        and not leaf.is_neg()
    )


def _leaves(batch: Any, torch: Any, depth: int) -> Iterator[Any]:
    """What a batch consists of, in its order; nothing of another object is called."""
    if type(batch) is torch.Tensor or not depth:
        yield batch
    elif isinstance(batch, list | tuple):
        for each in batch:
            yield from _leaves(each, torch, depth - 1)
    elif isinstance(batch, Mapping):
        for each in batch.values():
            yield from _leaves(each, torch, depth - 1)
    elif isinstance(getattr(batch, "data", None), dict):
        yield from _leaves(batch.data, torch, depth - 1)
    else:
        yield batch
