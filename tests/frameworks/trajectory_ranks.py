"""Runs on every rank: trainings of one model, replicated and sharded, whose weights are recorded.

Writes what each recorded to `$OUT/<rank>.json`, for `test_trajectory_ranks.py` to compare.
"""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from rank_state import CollectiveCounter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import sentinel
from sentinel.insight import TrajectoryRecorder

RANK = int(os.environ["RANK"])
STEPS = range(6)
torch.set_num_threads(1)
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
copies = init_device_mesh("cpu", (2, 1), mesh_dim_names=("copies", "shards"))


def net():
    torch.manual_seed(0)
    # Rank 1 holds less of some parameters than rank 0, and nothing of the last bias.
    return torch.nn.Sequential(torch.nn.Linear(5, 9), torch.nn.Tanh(), torch.nn.Linear(9, 1))


def by_columns():
    """As tensor parallelism does, beside a parameter that every rank has, and a plain one."""
    model = net()
    for layer, placement in ((model[0], Shard(1)), (model[2], Replicate())):
        weight = distribute_tensor(layer.weight.detach(), mesh, [placement])
        layer.weight = torch.nn.Parameter(weight)
    return model


MODELS = {
    "plain": net,
    "ddp": lambda: DistributedDataParallel(net()),
    "fsdp2": lambda: fully_shard(net(), mesh=mesh),
    "hsdp": lambda: fully_shard(net(), mesh=copies),
    "columns": by_columns,
}


def move(model, step):
    """One step of a training whose gradient is the same on every rank."""
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        change = torch.randn(parameter.shape, generator=generator)
        with torch.no_grad():
            if isinstance(parameter, DTensor):
                change = distribute_tensor(change, parameter.device_mesh, parameter.placements)
            parameter.add_(change, alpha=0.1 * (step + 1))


def recorder_of(model, **options):
    reference = {key: torch.zeros(value.shape) for key, value in net().state_dict().items()}
    return TrajectoryRecorder(model, reference=reference, max_snapshots=4, **options)


def record(name, all_reduce):
    """The result of every rank, the collectives of its records, and what it says before the sum."""
    model, collectives, problem = MODELS[name](), 0, ""
    recorder = recorder_of(model, all_reduce=all_reduce)
    with sentinel.monitor(run=f"{name}-{all_reduce}", agent=False):
        for step in STEPS:
            with CollectiveCounter() as counter:
                recorder.record(step, float(step))
            collectives += sum(counter.counts.values())
            move(model, step)
    try:
        recorder.result()
    except ValueError as error:
        problem = str(error)
    recorder.all_reduce()
    found = {
        "result": recorder.result().to_json(),
        "collectives": collectives,
        "problem": problem,
    }
    if name == "fsdp2":
        found |= resume(model, recorder, all_reduce)
    return found


def resume(model, recorder, all_reduce):
    """One more step by the recorder and by another, which continues what rank 0 saved."""
    states = [recorder.state_dict() if RANK == 0 else None]
    dist.broadcast_object_list(states)
    resumed = recorder_of(model, all_reduce=all_reduce)
    resumed.load_state_dict(states[0])
    results = []
    for each in (recorder, resumed):
        each.record(len(STEPS), 0.5)
        each.all_reduce()
        results.append(each.result().to_json())
    return {"continued": results[0], "resumed": results[1]}


found = {
    f"{name}-{all_reduce}": record(name, all_reduce)
    for name in MODELS
    for all_reduce in (False, True)
}
(Path(os.environ["OUT"]) / f"{RANK}.json").write_text(json.dumps(found))
dist.destroy_process_group()
