"""Ranks of a data-parallel training that differ, or that must."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch.optim import AdamW
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from silent_trainings.case import case
from silent_trainings.loops import RANK_STEPS, examples, loss_of, network, replicated, update

GITHUB = "https://github.com/"


@case(GITHUB + "jingyaogong/minimind/pull/854", "replicas_differ", ranks=2)
def called_through_module(*, sick: bool) -> None:
    """The forward pass goes through `.module` and not through DDP: no gradient is exchanged."""
    model = replicated(network())
    optimizer = AdamW(model.parameters())
    for _ in range(RANK_STEPS):
        update(optimizer, loss_of(model.module if sick else model, examples()))


@case(GITHUB + "modelscope/FunASR/pull/3472", "replicas_differ", ranks=2)
def no_sync_at_the_last_pass(*, sick: bool) -> None:
    """`no_sync` is on at the last micro-batch of each update instead of the others."""
    model = replicated(network())
    optimizer = AdamW(model.parameters())
    for _ in range(RANK_STEPS):
        optimizer.zero_grad()
        for micro_batch in range(4):
            is_exchanged = micro_batch == (0 if sick else 3)
            with nullcontext() if is_exchanged else model.no_sync():
                (loss_of(model, examples()) / 4).backward()
        optimizer.step()


@case(GITHUB + "coqui-ai/Trainer/issues/144", "repeated_batches", ranks=2)
def same_data_on_each_rank(*, sick: bool) -> None:
    """Without a DistributedSampler each rank has the same batches."""
    torch.manual_seed(0)
    data = TensorDataset(*examples(640))
    model = replicated(network())
    optimizer = AdamW(model.parameters())
    sampler = None if sick else DistributedSampler(data)
    for _, batch in zip(range(RANK_STEPS), DataLoader(data, 8, sampler=sampler), strict=False):
        update(optimizer, loss_of(model, batch))
