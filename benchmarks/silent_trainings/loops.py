"""What the trainings share: their loop, an evaluation, and a model on several ranks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import cycle
from typing import Any

import torch
from support.checked_trainings import examples, loader, loss_of, network
from support.checked_trainings import train as train_steps
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer

STEPS, RANK_STEPS = 120, 30
"""Steps of a training, and of one on several ranks."""
CHECKPOINT_VARIABLE = "SILENT_ERRORS_CHECKPOINT"

_kept_alive: list[DistributedDataParallel] = []

__all__ = (
    "CHECKPOINT_VARIABLE", "RANK_STEPS", "STEPS", "checkpoint", "endless", "evaluate", "examples",
    "loader", "loss_of", "network", "replicated", "sequences", "train", "update",
    "write_checkpoint",
)  # fmt: skip


def train(model: nn.Module, optimizer: Optimizer, *, steps: int = STEPS, **options: Any) -> None:
    """A training loop as users write it; see `support.checked_trainings`."""
    train_steps(model, optimizer, steps=steps, **options)


def update(optimizer: Optimizer, loss: Tensor) -> None:
    """One step."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def endless(batches: Iterable[Any], steps: int = STEPS) -> Iterator[Any]:
    """As many batches, pass after pass, each with a new iterator."""
    count = 0
    for each in cycle([batches]):
        for batch in each:
            if count == steps:
                return
            count += 1
            yield batch


def evaluate(model: nn.Module, batches: Iterable[Iterable[Tensor]]) -> float:
    """The mean loss over these batches, in the mode that the model is in."""
    with torch.no_grad():
        losses = [float(loss_of(model, batch)) for batch in batches]
    return sum(losses) / len(losses)


def sequences(length: int = 12) -> Tensor:
    """Eight sequences of tokens from 1 to 19, each of which is given by the one before."""
    return (torch.randint(19, (8, 1)) + 3 * torch.arange(length)) % 19 + 1


def write_checkpoint(path: str) -> None:
    """Write the weights of a network that has learned the labels of `examples`."""
    model = network()
    optimizer = AdamW(model.parameters(), 3e-3)
    for _ in range(300):
        update(optimizer, loss_of(model, examples(64)))
    torch.save(model.state_dict(), path)


def checkpoint() -> dict[str, Tensor]:
    """Those weights, from the file named by the environment."""
    weights: dict[str, Tensor] = torch.load(os.environ[CHECKPOINT_VARIABLE], weights_only=True)
    return weights


def replicated(model: nn.Module, **options: Any) -> DistributedDataParallel:
    """The model with a replica on each rank, alive until the process ends."""
    wrapped = DistributedDataParallel(model, **options)
    _kept_alive.append(wrapped)
    return wrapped
