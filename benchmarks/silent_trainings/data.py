"""Batches that repeat, that are all alike, or whose labels are masked."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import AdamW
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
    get_worker_info,
)

from silent_trainings.case import case
from silent_trainings.loops import (
    STEPS,
    endless,
    examples,
    loader,
    loss_of,
    network,
    sequences,
    update,
)

GITHUB = "https://github.com/"


@case(GITHUB + "ZhaoJ9014/face.evoLVe/pull/39", "repeated_batches/same_batch")
def first_batch_at_each_step(*, sick: bool) -> None:
    """A new iterator at each step gives the first batch again."""
    model, data = network(), loader()
    optimizer = AdamW(model.parameters())
    batches = endless(data)
    for _ in range(STEPS):
        update(optimizer, loss_of(model, next(iter(data)) if sick else next(batches)))


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Examples in one order, divided between the workers or not; each `repeats` times."""

    def __init__(self, *, is_divided: bool, repeats: int = 1) -> None:
        self.inputs, self.labels = examples(3200)
        self.is_divided, self.repeats = is_divided, repeats

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        worker = get_worker_info()
        is_divided = self.is_divided and worker is not None
        first, spacing = (worker.id, worker.num_workers) if is_divided else (0, 1)
        for at in range(first, len(self.inputs), spacing):
            for _ in range(self.repeats):
                yield self.inputs[at], self.labels[at]


@case(GITHUB + "huggingface/datasets/issues/3423", "repeated_batches/same_on_each_worker")
def stream_on_each_worker(*, sick: bool) -> None:
    """Each worker of an iterable data set gives all of it, so that each batch comes twice."""
    model = network()
    optimizer = AdamW(model.parameters())
    for batch in endless(DataLoader(Stream(is_divided=not sick), 16, num_workers=2)):
        update(optimizer, loss_of(model, batch))


class Batches(IterableDataset[tuple[Tensor, Tensor]]):
    """Batches, each of them several times in a row."""

    def __init__(self, repeats: int) -> None:
        self.repeats = repeats

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            batch = examples()
            for _ in range(self.repeats):
                yield batch


@case(GITHUB + "dscripka/openWakeWord/pull/202", "repeated_batches/same_batch")
def batch_of_each_worker(*, sick: bool) -> None:
    """As many steps in a row as there are workers get the same batch, here 16."""
    model = network()
    optimizer = AdamW(model.parameters())
    for batch in endless(DataLoader(Batches(16 if sick else 1), batch_size=None)):
        update(optimizer, loss_of(model, batch))


@case(
    GITHUB + "NVIDIA-Genomics-Research/AtacWorks/issues/207",
    "repeated_batches/same_example",
)
def one_example_in_each_batch(*, sick: bool) -> None:
    """All examples of a batch are the same one."""
    model, data = network(), loader(shuffle=True)
    optimizer = AdamW(model.parameters())
    if sick:
        data.collate_fn = lambda items: tuple(torch.stack([each] * len(items)) for each in items[0])
    for batch in endless(data):
        update(optimizer, loss_of(model, batch))


@case(GITHUB + "pytorch/pytorch/issues/31771", "repeated_batches/same_order")
def set_epoch_missing(*, sick: bool) -> None:
    """`set_epoch` is missing: each epoch has the same order."""
    model, data = network(), TensorDataset(*examples(160))
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    optimizer = AdamW(model.parameters())
    for epoch in range(STEPS // 10):
        if not sick:
            sampler.set_epoch(epoch)
        for batch in DataLoader(data, 16, sampler=sampler):
            update(optimizer, loss_of(model, batch))


@case(GITHUB + "pkmital/pycadl/pull/5")
def divided_twice(*, sick: bool) -> None:
    """Images are divided by 255 twice: the inputs are nearly 0."""
    model = network()
    inputs, labels = examples(160)
    data = DataLoader(TensorDataset(inputs / 255 if sick else inputs, labels), 16, shuffle=True)
    optimizer = AdamW(model.parameters())
    for batch in endless(data):
        update(optimizer, loss_of(model, batch))


def _language_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Embedding(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 20))


@case(GITHUB + "huggingface/trl/pull/6671", "labels_masked", "loss_zero")
def labels_all_masked(*, sick: bool) -> None:
    """Truncation leaves no completion: all labels are masked, and the loss is 0."""
    model = _language_model()
    optimizer = AdamW(model.parameters())
    for tokens in endless(DataLoader(torch.cat([sequences() for _ in range(40)]), 8, shuffle=True)):
        labels = tokens[:, 1:].clone()
        labels[:, : 12 if sick else 4] = -100
        losses = functional.cross_entropy(model(tokens[:, :-1]).mT, labels, reduction="sum")
        update(optimizer, losses / (labels != -100).sum().clamp(min=1))


@case(GITHUB + "huggingface/trl/pull/6357")
def end_of_text_masked(*, sick: bool) -> None:
    """The padding is the end of the text, so that every end is masked and none is learned."""
    model = _language_model()
    optimizer = AdamW(model.parameters())
    end = 0
    for _ in range(STEPS):
        tokens = sequences()
        # A token of 1 is the last one of its text.
        is_last = (tokens == 1).int()
        tokens[is_last.cumsum(1) > is_last] = end
        labels = tokens[:, 1:].clone()
        is_padding = labels == end
        labels[is_padding if sick else is_padding & (tokens[:, :-1] == end)] = -100
        update(optimizer, functional.cross_entropy(model(tokens[:, :-1]).mT, labels))
