"""A small training under torchrun whose KL grows without bound; it runs until it is killed.

The KL is normal while the file HEALTHY_FILE of the environment exists. It logs every signal of the
catalogue, and sometimes invalid values: NaN, and a text.
"""

from __future__ import annotations

import os
import time
from math import nan
from pathlib import Path

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
    step, healthy_file = 0, Path(os.environ["HEALTHY_FILE"])
    while True:
        step += 1
        inputs = torch.randn(4, 8)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        is_healthy = step < HEALTHY_STEPS or healthy_file.exists()
        sentinel.log(logged(step, is_healthy=is_healthy), step=step)
        if step % 50 == 0 and distributed.get_rank() == 0:
            sentinel.mark("save", step=step)
        time.sleep(0.02)


def logged(step: int, *, is_healthy: bool) -> dict[str, object]:
    values: dict[str, object] = dict.fromkeys(SIGNALS.keys() - MEASURED, 1.0 + 0.1 * (step % 5))
    values["rewards/format/mean"] = 1.0
    values["kl_ref"] = 0.05 + 0.01 * (step % 3) if is_healthy else 20.0
    if step % 5 == 0:
        values |= {"entropy": nan, "note": "not a number"}
    return values


if __name__ == "__main__":
    torch.set_num_threads(1)
    train()
