"""DDP: a loop on several processes. Every rank records its values, and one agent combines them.

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
    """Classify noisy points into ten classes; each rank draws its own points."""
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
        accuracy = (scores.argmax(1) == label).float().mean()
        # Each rank logs its own value; the agent computes the mean over ranks.
        sentinel.log({"accuracy": accuracy}, step=step)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.barrier()
    # Objects that refer to the process group keep its threads alive until the interpreter exits,
    # and these may abort the process (pytorch/pytorch#179291).
    gc.collect()
    dist.destroy_process_group()
