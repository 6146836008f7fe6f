"""Runs on every rank: a few steps per ZeRO stage, without and with monitoring, and in PyTorch.

Writes the values it measured to `$OUT/<rank>.json`, for `test_deepspeed.py` to compare.
"""

import json
import os
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import deepspeed.ops
import torch
import torch.distributed as dist
from deepspeed.monitor.monitor import MonitorMaster
from deepspeed.runtime import engine as engines
from rank_state import CollectiveCounter, random_state
from torch.optim.lr_scheduler import LambdaLR

import sentinel
from sentinel.client.capture import gradient_flow

# Every step is measured, whatever it costs.
gradient_flow.WARM_UP_STRIDE = 1

# Otherwise DeepSpeed compiles it, which takes minutes.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

STEPS, GAS, LR, CLIP = 4, 2, 0.01, 0.5
OUT = Path(os.environ["OUT"])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CASES = {
    "zero0": {"stage": 0},
    "zero0-unclipped": {"stage": 0, "clip": 0.0},
    "zero1": {"stage": 1},
    "zero2": {"stage": 2},
    "zero3": {"stage": 3},
    "zero0-bf16": {"stage": 0, "dtype": torch.bfloat16},
    "zero1-bf16": {"stage": 1, "dtype": torch.bfloat16},
    "zero2-direct": {"stage": 2, "direct": True},
    "zero2-undivided": {"stage": 2, "undivided": True},
    "zero1-nan": {"stage": 1, "sick": 2},
}
kept_models = []


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def batch(step, micro, rank, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
    return torch.randn(4, 8, generator=generator).to(dtype)


def loss_of(model, x):
    return (model(x).float() - x.float().sum(1, keepdim=True)).pow(2).mean()


def rate(step):
    return 1.0 / (1 + step)


def config(name, stage, clip=CLIP, dtype=torch.float32):
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": GAS,
        "gradient_clipping": clip,
        "optimizer": {"type": "AdamW", "params": {"lr": LR, "torch_adam": True}},
        # Small enough for ZeRO-3 to step its optimizer several times a step.
        "zero_optimization": {"stage": stage, "sub_group_size": 100},
        "bf16": {"enabled": dtype == torch.bfloat16},
        "steps_per_print": 10**9,
        "csv_monitor": {
            "enabled": name == "zero1",
            "output_path": str(OUT / "csv"),
            "job_name": "csv",
        },
    }


def train(
    name,
    *,
    stage,
    clip=CLIP,
    dtype=torch.float32,
    direct=False,
    undivided=False,
    sick=None,
    save=None,
):
    model = net()
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config=config(name, stage, clip, dtype),
        lr_scheduler=lambda optimizer: LambdaLR(optimizer, rate),
    )
    kept_models.append(engine)
    measured = {"losses": [], "norms": [], "rates": [], "steps": []}
    for step in range(STEPS):
        measured["rates"].append(float(engine.get_lr()[0]))
        losses = []
        for micro in range(GAS):
            loss = loss_of(engine, batch(step, micro, RANK, dtype)) + 0 * torch.rand(1).sum()
            if (step, RANK) == (sick, 1):
                loss = loss * float("nan")
            losses.append(loss.item())
            if direct:
                loss.backward()
            elif undivided:
                engine.backward(loss / GAS, scale_wrt_gas=False)
            else:
                engine.backward(loss)
            engine.step()
        measured["losses"].append(sum(losses) / GAS)
        norm = engine.get_global_grad_norm()
        measured["norms"].append(None if norm is None else float(norm))
        measured["steps"].append(engine.global_steps)
        measured["skipped"] = engine.skipped_steps
    if save is not None:
        engine.save_checkpoint(str(save), tag="last")
    return measured


def train_in_pytorch(clip=CLIP):
    """The same in plain PyTorch, with the batches of both ranks and one gradient."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    scheduler = LambdaLR(optimizer, rate)
    measured = {"losses": [], "norms": [], "rates": []}
    for step in range(STEPS):
        own = []
        for rank in range(WORLD):
            losses = [loss_of(model, batch(step, micro, rank)) / GAS for micro in range(GAS)]
            (sum(losses) / WORLD).backward()
            own.append(float(sum(losses)))
        norm = sum(float((p.grad.double() ** 2).sum()) for p in model.parameters()) ** 0.5
        for p in model.parameters():
            p.grad.mul_(min(1.0, clip / norm) if clip else 1.0)
        measured["losses"].append(own[RANK])
        measured["norms"].append(norm)
        measured["rates"].append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return measured


def patched():
    owners = (engines.DeepSpeedEngine, engines, MonitorMaster, torch.Tensor, torch.autograd)
    return [dict(vars(owner)) for owner in owners]


def monitored(name):
    return sentinel.monitor(run=name, agent=False, strict=True, insight="gradient_flow")


def main():
    results = {"hand": {"": train_in_pytorch(), "unclipped": train_in_pytorch(clip=0.0)}}
    for name, case in CASES.items():
        with CollectiveCounter() as unmonitored_counter:
            unwatched = train(name, **case)
        before, state = patched(), random_state()
        save = OUT / "saved" if name == "zero2" else None
        with CollectiveCounter() as ours:
            watched = monitored(name)(train)(name, **case)
        results[name] = {
            "watched": watched,
            "unwatched": unwatched,
            "collectives": [unmonitored_counter.counts, ours.counts],
            "same_random_state": state == random_state(),
            "unpatched": before == patched(),
        }
        if save is not None:
            sentinel.monitor(run="saved", agent=False, strict=True)(train)(name, **case, save=save)
    (OUT / f"{RANK}.json").write_text(json.dumps(results))
    dist.barrier()


main()
