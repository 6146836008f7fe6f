"""DDP: the same on several processes; every rank speaks for itself, and one agent hears them all.

torchrun --nproc-per-node 2 examples/ddp.py
"""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sentinel

STEPS = 200


@sentinel.monitor(run="ddp", max_steps=STEPS)
def train() -> None:
    """Tell which of ten classes a noisy point is of; each rank draws points of its own."""
    torch.manual_seed(0)
    centres = torch.randn(10, 16)
    model = DistributedDataParallel(nn.Linear(16, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    torch.manual_seed(dist.get_rank())
    for step in range(1, STEPS + 1):
        label = torch.randint(10, (64,))
        scores = model(centres[label] + 0.5 * torch.randn(64, 16))
        loss = nn.functional.cross_entropy(scores, label)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        right = (scores.argmax(1) == label).float().mean()
        # The mean over ranks is the agent's affair: each rank gives its own.
        sentinel.log({"accuracy": right}, step=step)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.barrier()
    # What still refers to the process group keeps its threads into the interpreter's end, which
    # they may abort (pytorch/pytorch#179291).
    gc.collect()
    dist.destroy_process_group()
