"""Runs on one rank: two engines over one model, then one over another, per ZeRO stage."""

import gc
import os

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import deepspeed.ops
import torch

import sentinel

# Otherwise DeepSpeed compiles it, which takes minutes.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

STEPS = 40


def net(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def train(model, stage):
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
        "steps_per_print": 10**9,
    }
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    for _ in range(STEPS):
        x = torch.randn(4, 8)
        engine.backward((engine(x) - x.sum(1, keepdim=True)).pow(2).mean())
        engine.step()
    engine.destroy()


for stage in (2, 3):
    with sentinel.monitor(run=f"stage{stage}", agent=False):
        first = net(0)
        for model in (first, first, net(1)):
            train(model, stage)
            gc.collect()
