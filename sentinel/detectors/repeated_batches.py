"""Repeated batches: the data loader gives the same batch or example again, or to several ranks.

Formula
    fingerprint = a checksum of elements of the first tensors of a batch
    Finding     = 6 batches in a row are equal; or
                  the examples of each of 5 batches in a row are equal, and those of the batches are
                  not, although a sampler draws each example once; or
                  5 batches of the workers of an iterable data set are equal to the one before, each
                  within a turn of all workers, and no first batch of a turn is; or
                  the code of a data set with an index, or of its transforms, draws from a generator
                  that it holds, and names nothing that seeds one, with two or more workers and no
                  `worker_init_fn`; or
                  a DistributedSampler that shuffles gives the same order as in the pass before, in
                  the same epoch; or
                  two ranks of a DistributedDataParallel model have the same 8 batches in a row

Units
    There are no settings. Batches: those of the steps that the checks observe, which are the first
    20 and six of every 100; the first one of each pass over the data.

Source
    The notes of PyTorch on DistributedSampler: without `set_epoch` each epoch has the same order;
    without the sampler each rank has all of the data. Stack Overflow question 67180955: each worker
    copies the generator of the data set. `next(iter(loader))` at each step makes a new
    iterator, which begins with the first batch.

Defaults
    Loaders of one batch, batches without tensors on the CPU and those fetched without gradients, as
    in an evaluation, are left out. Loaders that do not shuffle are on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sentinel.detectors._training_check import Problem, ReportedCheck, first_step
from sentinel.model.finding import DetectorOutput, Finding
from sentinel.model.record import CHECK, CHECK_KEY, PROBLEM_KEY, Record

MAX_RANKS = 4096

_SAMPLER = (
    "Give the DataLoader a `DistributedSampler`, or let the trainer prepare it. Each rank then has "
    "its own part of the data."
)


class RepeatedBatches(ReportedCheck):
    """Evaluates the check `batches`, and compares its evidence between ranks."""

    check = "batches"
    unreported = (
        "The check needs 6 batches of a DataLoader, with tensors on the CPU. Whether each epoch "
        "has another order is seen after a whole pass over the data."
    )
    signal = "loss"
    remedy = "Check what the data loader gives at each step, and on each rank."
    problems: ClassVar[Mapping[str, Problem]] = {
        "same_batch": Problem(
            "The data loader gave the same batch {batches:.0f} times in a row.",
            "Make the iterator of the data loader once for each epoch, not at each step: "
            "`next(iter(loader))` gives its first batch. Check that the data set uses the index it "
            "is given.",
        ),
        "same_example": Problem(
            "All examples of a batch are the same one, in {batches:.0f} batches in a row.",
            "Check `collate_fn`: it is to stack all examples that it is given, and not the first "
            "one again. Check that the data set does not write all examples into one tensor.",
        ),
        "same_on_each_worker": Problem(
            "Each of the {workers:.0f} workers of the data loader gives all of the data: every "
            "batch comes {workers:.0f} times.",
            "Give each worker a part of the data: in `__iter__` of the data set take every n-th "
            "example from `torch.utils.data.get_worker_info()`, or seed its generator with the "
            "worker's number.",
        ),
        "same_random_numbers": Problem(
            "The workers of the data loader draw the same random numbers: each has a copy of the "
            "generator `{name}`, so that augmentations are repeated.",
            "Make the generator in each worker, as by `numpy.random.default_rng("
            "torch.initial_seed())` in a `worker_init_fn`; or draw from `torch`, `random` or "
            "`numpy.random`, which PyTorch seeds in each worker.",
        ),
        "same_order": Problem(
            "Two passes over the data had the same order, although the sampler shuffles.",
            "Call `sampler.set_epoch(epoch)` before each epoch: DistributedSampler shuffles by the "
            "number of the epoch.",
        ),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self._rank_of: dict[str, int] = {}
        """The first rank with these fingerprints, by attempt, group and fingerprints."""

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one report, or the fingerprints of one rank."""
        is_evidence = PROBLEM_KEY not in record.attributes
        if (
            record.event is not CHECK
            or record.attributes.get(CHECK_KEY) != self.check
            or not is_evidence
        ):
            return super().update(record)
        rank = int(record.values.get("rank", 0.0))
        group = f"{record.attempt} {record.values.get('first_rank', 0.0):.0f}"
        key = f"{group} {record.attributes.get('fingerprints', '')}"
        other = self._rank_of.setdefault(key, rank)
        if len(self._rank_of) > MAX_RANKS:
            del self._rank_of[next(iter(self._rank_of))]
        if other == rank:
            return None
        return Finding(
            summary=f"Ranks {other} and {rank} are given the same batches.",
            evidence={"ranks": f"{other}, {rank}"},
            onset_step=first_step(record),
            remedy=_SAMPLER,
        )
