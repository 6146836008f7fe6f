"""A small training under torchrun whose KL grows without bound; it runs until it is killed.

It logs every signal of the catalogue, and sometimes invalid values: NaN, and a text.
"""

from __future__ import annotations

import time
from math import nan

import torch
from torch import distributed, nn

import sentinel
from sentinel.signals.catalogue import SIGNALS

HEALTHY_STEPS = 80
MEASURED = {"loss", "grad_norm", "learning_rate", "step_time", "optimizer_steps", "global_step"}


@sentinel.monitor(run="runaway")
def train() -> None:
    distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = 0
    while True:
        step += 1
        inputs = torch.randn(4, 8)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        sentinel.log(logged(step), step=step)
        if step % 50 == 0 and distributed.get_rank() == 0:
            sentinel.mark("save", step=step)
        time.sleep(0.02)


def logged(step: int) -> dict[str, object]:
    values: dict[str, object] = dict.fromkeys(SIGNALS.keys() - MEASURED, 1.0 + 0.1 * (step % 5))
    values["kl_ref"] = 0.05 + 0.01 * (step % 3) if step < HEALTHY_STEPS else 20.0
    if step % 5 == 0:
        values |= {"entropy": nan, "note": "not a number"}
    return values


if __name__ == "__main__":
    torch.set_num_threads(1)
    train()
