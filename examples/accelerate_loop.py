"""Accelerate: a custom loop around an Accelerator, monitored by one decorator.

accelerate launch --cpu examples/accelerate_loop.py
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn

import sentinel

STEPS = 200


@sentinel.monitor(run="accelerate-loop", max_steps=STEPS)
def train() -> None:
    """Fit a sine with two batches per step. Values given to `accelerator.log` are recorded."""
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    for batch in range(1, 2 * STEPS + 1):
        with accelerator.accumulate(model):
            x = torch.rand(64, 1, device=accelerator.device) * 6 - 3
            error = model(x) - x.sin()
            accelerator.backward(error.square().mean())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            accelerator.log({"worst_error": error.abs().max()}, step=batch // 2)
    accelerator.end_training()


if __name__ == "__main__":
    train()
