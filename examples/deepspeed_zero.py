"""DeepSpeed: ZeRO-2 over two ranks, two batches per step, with the engine's gradient norm.

On a machine without GPUs, to avoid minutes of compiling extensions:

DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 examples/deepspeed_zero.py
"""

from __future__ import annotations

import deepspeed
import deepspeed.ops
import torch
from deepspeed.accelerator import get_accelerator
from torch import nn

import sentinel

STEPS, ACCUMULATION_STEPS = 100, 2
CONFIG = {
    "train_micro_batch_size_per_gpu": 64,
    "gradient_accumulation_steps": ACCUMULATION_STEPS,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    "steps_per_print": STEPS,
}


@sentinel.monitor(run="deepspeed-zero", max_steps=STEPS)
def train() -> None:
    """Fit a sine. Every second call of the engine's `step` is an optimizer step."""
    if get_accelerator().device_name() == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=CONFIG
    )
    torch.manual_seed(engine.global_rank)
    for _ in range(STEPS * ACCUMULATION_STEPS):
        x = torch.rand(64, 1, device=engine.device) * 6 - 3
        engine.backward((engine(x) - x.sin()).square().mean())
        engine.step()
    engine.destroy()


if __name__ == "__main__":
    train()
