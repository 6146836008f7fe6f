"""Healthy trainings on several ranks, over gloo."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim import SGD, AdamW
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from silent_trainings.case import healthy_on
from silent_trainings.loops import RANK_STEPS, examples, loss_of, network, replicated, train, update


def plain_network() -> nn.Sequential:
    """Without batch normalization, whose statistics FSDP would divide; equal on all ranks."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(20, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.GELU(),
        nn.Linear(64, 5),
    )  # fmt: skip
    torch.manual_seed(1 + dist.get_rank())
    return model


@healthy_on(2)
def replicas() -> None:
    model = replicated(network())
    train(model, AdamW(model.parameters()), steps=RANK_STEPS)


@healthy_on(2)
def replicas_with_unused_parameters() -> None:
    """A branch that is used by chance on each rank."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = plain_network(), plain_network()

        def forward(self, inputs: Tensor) -> Tensor:
            return self.first(inputs) if torch.rand(()) < 0.5 else self.second(inputs)

    model = replicated(Branches(), find_unused_parameters=True)
    train(model, AdamW(model.parameters()), steps=RANK_STEPS)


@healthy_on(2)
def replicas_with_a_static_graph() -> None:
    model = replicated(network(), static_graph=True, gradient_as_bucket_view=True)
    train(model, AdamW(model.parameters()), steps=RANK_STEPS)


@healthy_on(2)
def replicas_with_compressed_gradients() -> None:
    model = replicated(network())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(model, AdamW(model.parameters()), steps=RANK_STEPS)


@healthy_on(2)
def replicas_that_accumulate() -> None:
    model = replicated(network())
    optimizer = AdamW(model.parameters())
    for _ in range(RANK_STEPS):
        for micro in range(4):
            with nullcontext() if micro == 3 else model.no_sync():
                (loss_of(model, examples()) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()


@healthy_on(2)
def replicas_with_epochs_and_evaluations() -> None:
    data, held_out = (TensorDataset(*examples(320)) for _ in range(2))
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    model = replicated(network())
    optimizer = AdamW(model.parameters())
    for epoch in range(3):
        sampler.set_epoch(epoch)
        model.train()
        for batch in DataLoader(data, 16, sampler=sampler):
            update(optimizer, loss_of(model, batch))
        model.eval()
        # The first rank evaluates the model alone.
        if not dist.get_rank():
            with torch.no_grad():
                for batch in DataLoader(held_out, 16):
                    loss_of(model.module, batch)
        dist.barrier()


@healthy_on(2)
def replicas_with_an_average() -> None:
    model = replicated(network())
    average = copy.deepcopy(model.module).requires_grad_(False)
    optimizer = AdamW(model.parameters())
    for _ in range(RANK_STEPS):
        update(optimizer, loss_of(model, examples()))
        if not dist.get_rank():
            with torch.no_grad():
                for mean, each in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(each, 0.1)


@healthy_on(2)
def local_steps_then_averages() -> None:
    """Local SGD: each rank takes steps of its own, which are averaged."""
    model = replicated(network())
    state = post_localSGD_hook.PostLocalSGDState(
        process_group=None,
        subgroup=None,
        start_localSGD_iter=4,
        post_local_gradient_allreduce=False,
    )
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    optimizer = SGD(model.parameters(), 0.05)
    for step in range(RANK_STEPS):
        update(optimizer, loss_of(model, examples()))
        if step % 5 == 4:
            for each in model.parameters():
                dist.all_reduce(each.data)
                each.data /= dist.get_world_size()


@healthy_on(2)
def gradients_averaged_by_hand() -> None:
    model = plain_network()
    optimizer = AdamW(model.parameters())
    for _ in range(RANK_STEPS):
        optimizer.zero_grad()
        loss_of(model, examples()).backward()
        for each in model.parameters():
            dist.all_reduce(each.grad)
            each.grad /= dist.get_world_size()
        optimizer.step()


@healthy_on(2)
def models_of_their_own() -> None:
    """Each rank trains another model, as in a search of settings."""
    model = network()
    train(model, AdamW(model.parameters(), 10.0 ** (-2 - dist.get_rank())), steps=RANK_STEPS)


@healthy_on(2)
def two_models_of_replicas() -> None:
    """A generator and a critic, each with replicas."""
    generator = replicated(nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2)))
    critic = replicated(nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizers = [AdamW(each.parameters(), 1e-3) for each in (generator, critic)]
    softplus = nn.functional.softplus
    for _ in range(RANK_STEPS):
        made = generator(torch.randn(16, 4))
        real = torch.randn(16, 2) * 0.3 + 1
        both = critic(torch.cat([made.detach(), real]))
        update(optimizers[1], softplus(both[:16]).mean() + softplus(-both[16:]).mean())
        update(optimizers[0], softplus(-critic(made)).mean())


def zero_redundancy(model: nn.Module, **options: Any) -> None:
    optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW, lr=1e-3, **options)
    train(model, optimizer, steps=RANK_STEPS)


@healthy_on(2)
def optimizer_states_divided() -> None:
    zero_redundancy(replicated(network()))


@healthy_on(2)
def optimizer_states_divided_as_views() -> None:
    zero_redundancy(replicated(network()), parameters_as_bucket_view=True)


@healthy_on(2)
def optimizer_states_divided_without_a_wrapper() -> None:
    model = plain_network()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW, lr=1e-3)
    for _ in range(RANK_STEPS):
        optimizer.zero_grad()
        loss_of(model, examples()).backward()
        for each in model.parameters():
            dist.all_reduce(each.grad)
            each.grad /= dist.get_world_size()
        optimizer.step()


def sharded(mesh: Any, **options: Any) -> nn.Module:
    model = plain_network()
    for at in (0, 3, 5):
        fully_shard(model[at], mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


@healthy_on(2)
def sharded_weights() -> None:
    model = sharded(init_device_mesh("cpu", (2,)))
    train(model, AdamW(model.parameters()), steps=RANK_STEPS)


@healthy_on(2)
def sharded_weights_in_mixed_precision() -> None:
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=True)
    model = sharded(init_device_mesh("cpu", (2,)), mp_policy=policy)
    train(model, AdamW(model.parameters()), steps=RANK_STEPS)


@healthy_on(4)
def sharded_replicas() -> None:
    model = sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    train(model, AdamW(model.parameters()), steps=RANK_STEPS)


@healthy_on(4)
def sharded_replicas_that_accumulate() -> None:
    model = sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    optimizer = AdamW(model.parameters())
    for _ in range(RANK_STEPS):
        for micro in range(2):
            model.set_requires_all_reduce(micro == 1)
            (loss_of(model, examples()) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


@healthy_on(2)
def tensor_parallel() -> None:
    model = plain_network()
    mesh = init_device_mesh("cpu", (2,))
    parallelize_module(model, mesh, {"3": ColwiseParallel(), "5": RowwiseParallel()})
    optimizer = AdamW(model.parameters(), foreach=False)
    for step in range(RANK_STEPS):
        torch.manual_seed(step)
        update(optimizer, loss_of(model, examples()))


@healthy_on(2)
def stages_of_a_pipeline() -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, model = dist.get_rank(), plain_network()
    part = model[:3] if not rank else model[3:]
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, nn.functional.cross_entropy)
    optimizer = AdamW(part.parameters())
    for step in range(RANK_STEPS):
        torch.manual_seed(step)
        inputs, labels = examples()
        optimizer.zero_grad()
        if rank:
            schedule.step(target=labels)
        else:
            schedule.step(inputs)
        optimizer.step()


def deepspeed_stage(stage: int, kind: str) -> None:
    from silent_trainings.healthy_frameworks import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": 16,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
        "steps_per_print": 10**9,
        kind: {"enabled": True},
    }
    model = plain_network()
    engine, *_ = deepspeed().initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    for _ in range(RANK_STEPS):
        engine.backward(loss_of(engine, examples()))
        engine.step()


for stage in (0, 1, 2, 3):

    def train_stage(stage: int = stage) -> None:
        deepspeed_stage(stage, "bf16" if stage in (1, 3) else "zero_allow_untested_optimizer_")

    train_stage.__name__ = f"deepspeed_stage_{stage}"
    healthy_on(2)(train_stage)
