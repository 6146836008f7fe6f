"""Lightning: a module and a Trainer, monitored by one decorator.

python examples/lightning_loop.py
"""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader

import sentinel

STEPS = 200


class Sine(pl.LightningModule):
    """Fits a sine. Values given to `self.log` are recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))

    def training_step(self, x: torch.Tensor) -> torch.Tensor:
        """The error of one batch."""
        error = self.model(x) - x.sin()
        self.log("worst_error", error.abs().max())
        return error.square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


@sentinel.monitor(run="lightning-loop", max_steps=STEPS)
def train() -> None:
    """Train for a few hundred steps."""
    data = DataLoader(torch.rand(64 * STEPS, 1) * 6 - 3, batch_size=64)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=STEPS,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Sine(), data)


if __name__ == "__main__":
    train()
