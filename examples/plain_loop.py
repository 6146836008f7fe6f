"""Plain loop: a PyTorch training loop, monitored by one decorator.

python examples/plain_loop.py
"""

from __future__ import annotations

import torch
from torch import nn

import sentinel

STEPS = 300


@sentinel.monitor(run="plain-loop", save_steps=100, max_steps=STEPS)
def train() -> None:
    """Fit a sine. Loss, gradient norm, learning rate and step time are captured automatically."""
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(1, STEPS + 1):
        x = torch.rand(64, 1) * 6 - 3
        error = model(x) - x.sin()
        loss = error.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sentinel.log({"worst_error": error.abs().max()}, step=step)


if __name__ == "__main__":
    train()
