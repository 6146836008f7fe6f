"""Runs on every rank: a few steps per way to shard a model, without and with monitoring.

Writes the values it measured, and those of plain PyTorch with the batches of all ranks, to
`$OUT/<rank>.json`, for `test_sharded.py` to compare. `$CASES` chooses.
"""

import gc
import json
import os
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from rank_state import CollectiveCounter, random_state
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    ShardingStrategy,
    fully_shard,
    sharded_grad_scaler,
)
from torch.distributed.fsdp import fully_sharded_data_parallel as fsdp1
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad, clip_grad_norm_

import sentinel
from sentinel.client.capture import gradient_flow
from sentinel.insight.gradient_flow import gradient_flow as gradient_flow_of

# Every step is measured, whatever it costs.
gradient_flow.WARM_UP_STRIDE = 1

STEPS, CLIP = 4, 0.5
OUT = Path(os.environ["OUT"])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CPU = torch.device("cpu")
kept_models = []


def net():
    torch.manual_seed(0)
    # A bias of three elements, so that some ranks hold no part of a parameter.
    shapes = ((8, 16), (16, 3), (3, 1))
    return torch.nn.Sequential(*(torch.nn.Linear(*shape) for shape in shapes))


def batch(step, micro, rank):
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
    return torch.randn(4, 8, generator=generator)


def loss_of(model, x):
    return (model(x).tanh() - x.sum(1, keepdim=True)).pow(2).mean()


def ddp(**options):
    return DistributedDataParallel(net(), **options)


def hooked():
    model = ddp()
    model.register_comm_hook(None, allreduce_hook)
    return model


def fsdp2(*meshes):
    """Each layer sharded over its mesh, the rest over the last mesh."""
    model = net()
    for at, layer in enumerate(model):
        fully_shard(layer, mesh=meshes[at % len(meshes)])
    return fully_shard(model, mesh=meshes[-1])


def partly(mesh):
    """The last layer is replicated, and its gradients are averaged manually."""
    model = net()
    for layer in model[:2]:
        fully_shard(layer, mesh=mesh)
    return model


def averaged(model):
    for p in model[2].parameters():
        dist.all_reduce(p.grad)
        p.grad /= WORLD


def old(strategy, *, whole=False, **options):
    strategy = getattr(ShardingStrategy, strategy)
    wrap = partial(FullyShardedDataParallel, sharding_strategy=strategy, device_id=CPU, **options)
    model = net()
    # The first layer separately, the others together or not at all.
    model[0] = wrap(model[0])
    return model if whole else wrap(model)


def clipped(model):
    return [float(_full(clip_grad_norm_(model.parameters(), CLIP)))]


def apart(model):
    """Clips the parameters of each mesh separately."""
    return [float(_full(clip_grad_norm_(layer.parameters(), CLIP))) for layer in model]


def by_halves(model):
    grads = [p.grad for p in model.parameters()]
    norm = torch.nn.utils.get_total_norm(grads)
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), CLIP, norm)
    return [float(_full(norm))]


def by_itself(model):
    return [float(model.clip_grad_norm_(CLIP))]


def _full(norm):
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def meshes():
    """A mesh of all ranks and, for four ranks, a mesh of replicated pairs."""
    flat = init_device_mesh("cpu", (WORLD,))
    return flat, init_device_mesh(
        "cpu", (2, 2), mesh_dim_names=("copies", "parts")
    ) if WORLD == 4 else flat


def cases(flat, pairs):
    return {
        "ddp": (ddp, {"clip": clipped}),
        "ddp-unclipped": (ddp, {}),
        "ddp-accumulating": (ddp, {"micro": 2, "clip": clipped}),
        "ddp-static": (partial(ddp, static_graph=True), {"clip": clipped}),
        "ddp-hook": (hooked, {"clip": clipped}),
        "ddp-join": (ddp, {"uneven": True, "clip": clipped}),
        "fsdp2": (partial(fsdp2, flat), {"clip": clipped}),
        "fsdp2-halves": (partial(fsdp2, flat), {"clip": by_halves}),
        "fsdp2-unclipped": (partial(fsdp2, flat), {}),
        "fsdp2-accumulating": (partial(fsdp2, flat), {"micro": 2}),
        "fsdp2-partly": (partial(partly, flat), {"before": averaged}),
        "fsdp1": (partial(old, "FULL_SHARD"), {"clip": by_itself}),
        "fsdp1-unclipped": (partial(old, "FULL_SHARD"), {}),
        "fsdp1-named": (partial(old, "FULL_SHARD", use_orig_params=True), {}),
        "fsdp1-named-clipped": (
            partial(old, "FULL_SHARD", use_orig_params=True),
            {"clip": by_itself},
        ),
        "fsdp1-grads": (partial(old, "SHARD_GRAD_OP"), {}),
        "fsdp1-whole": (partial(old, "NO_SHARD"), {}),
        "hsdp": (partial(fsdp2, pairs), {"clip": clipped}),
        "hsdp-unclipped": (partial(fsdp2, pairs), {}),
        "hsdp-partly": (partial(partly, pairs), {"before": averaged}),
        "hsdp-mixed": (partial(fsdp2, flat, pairs, pairs), {}),
        "hsdp-mixed-apart": (partial(fsdp2, flat, pairs, pairs), {"clip": apart}),
        "hsdp1-unclipped": (partial(old, "HYBRID_SHARD", device_mesh=pairs), {}),
        "hsdp1": (partial(old, "HYBRID_SHARD", device_mesh=pairs), {"clip": by_itself}),
    }


def train(build, *, micro=1, clip=None, before=None, uneven=False):
    model = build()
    kept_models.append(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    measured = {"losses": [], "norms": []}

    def step(at):
        own = []
        for each in range(micro):
            skips_sync = hasattr(model, "no_sync") and each < micro - 1
            with model.no_sync() if skips_sync else nullcontext():
                loss = loss_of(model, batch(at, each, RANK)) / micro
                own.append(loss.item())
                loss.backward()
        if before is not None:
            before(model)
        if clip is not None:
            measured["norms"].append(clip(model))
        optimizer.step()
        optimizer.zero_grad()
        measured["losses"].append(sum(own))

    if uneven:
        # One rank runs out of batches before the other.
        with Join([model]):
            for at in range(STEPS - RANK):
                step(at)
    else:
        for at in range(STEPS):
            step(at)
    return measured


def train_in_pytorch(*, micro=1, clip=None, **_):
    """One model with the batches of all ranks."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    measured = {"losses": [], "norms": [], "layers": []}
    for step in range(STEPS):
        own = []
        for rank in range(WORLD):
            losses = [loss_of(model, batch(step, each, rank)) / micro for each in range(micro)]
            (sum(losses) / WORLD).backward()
            own.append(float(sum(losses)))
        measured["losses"].append(own[RANK])
        measured["norms"].append(_norm(model.parameters()))
        measured["layers"].append([_norm(layer.parameters()) for layer in model])
        for group in model if clip is apart else [model]:
            scale = CLIP / _norm(group.parameters())
            for p in group.parameters():
                p.grad.mul_(1.0 if clip is None else min(1.0, scale))
        optimizer.step()
        optimizer.zero_grad()
    return measured


def _norm(parameters):
    return sum(float((p.grad.double() ** 2).sum()) for p in parameters) ** 0.5


def patched():
    owners = (
        torch.Tensor,
        torch.autograd,
        torch.nn.utils,
        clip_grad,
        fsdp1.FullyShardedDataParallel,
        sharded_grad_scaler.ShardedGradScaler,
    )
    return [dict(vars(owner)) for owner in owners]


def gathered_norms(build):
    """The norms of the layers of the first step, by a call on every rank."""
    model = build()
    kept_models.append(model)
    loss_of(model, batch(0, 0, RANK)).backward()
    return gradient_flow_of(model, save=False).layer_grad_norm


def monitored(name):
    return sentinel.monitor(run=name, agent=False, strict=True, insight="gradient_flow")


def main():
    dist.init_process_group("gloo")
    results = {}
    known = cases(*meshes())
    for name in os.environ["CASES"].split(","):
        build, options = known[name]
        with CollectiveCounter() as unmonitored_counter:
            unwatched = train(build, **options)
        flow = gathered_norms(build) if name in {"fsdp2", "hsdp"} else None
        before, state = patched(), random_state()
        with CollectiveCounter() as ours:
            watched = monitored(name)(train)(build, **options)
        results[name] = {
            "watched": watched,
            "unwatched": unwatched,
            "hand": train_in_pytorch(**options),
            "collectives": [unmonitored_counter.counts, ours.counts],
            "same_random_state": state == random_state(),
            "unpatched": before == patched(),
            "flow": flow,
        }
    (OUT / f"{RANK}.json").write_text(json.dumps(results))
    # Gloo's threads may still run, so the models live until the end.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


main()
