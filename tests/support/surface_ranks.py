"""Runs on every rank of a gloo job: loss surfaces of a model that DDP or FSDP2 holds.

Writes the results of the cases named on the command line to `$OUT/<rank>.json`.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sentinel.insight import loss_surface, sharpness

QUIET: dict[str, Any] = {"cache": False, "progress": None}


def make_net() -> nn.Module:
    torch.manual_seed(0)
    # Sizes that two ranks cannot share evenly, a norm and dropout.
    return nn.Sequential(
        nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, 2)
    ).double()


def make_batch(index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Batches of different sizes."""
    generator = torch.Generator().manual_seed(100 + index)
    size = 6 + 4 * index
    inputs = torch.randn(size, 3, generator=generator, dtype=torch.float64)
    return inputs, torch.randn(size, 2, generator=generator, dtype=torch.float64)


def squared_error(model: Any, batch: Any) -> torch.Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def sharded() -> nn.Module:
    model = make_net()
    fully_shard(model[0])
    return fully_shard(model)


def parallel() -> nn.Module:
    return DistributedDataParallel(make_net())


def measure(model: nn.Module, batch: Any, **arguments: Any) -> dict[str, Any]:
    """A surface, and whether the training goes on as if it had not been measured."""
    before = state_of(model)
    result = loss_surface(model, squared_error, batch, **{**QUIET, **arguments}).to_json()
    return {"result": result, "is_restored": state_of(model) == before}


def state_of(model: nn.Module) -> list[Any]:
    found: list[Any] = [torch.get_rng_state().tolist(), model.training]
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        gradient = tensor.grad
        if gradient is not None and hasattr(gradient, "to_local"):
            gradient = gradient.to_local()
        found += [name, id(tensor), local.detach().tolist()]
        found += [None if gradient is None else gradient.tolist(), tensor.requires_grad]
    return found


RANK = int(os.environ.get("RANK", "0"))


def train(model: nn.Module, batch: Any) -> list[Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        squared_error(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    squared_error(model, batch).backward()
    return state_of(model)


def values_of(state: list[Any]) -> list[Any]:
    return [each for each in state if not isinstance(each, int) or isinstance(each, bool)]


def both_trainings(make: Callable[[], nn.Module], batch: Any, **arguments: Any) -> dict[str, Any]:
    """A training with a surface in it and one without; whether they are equal bit for bit."""
    torch.manual_seed(1)
    measured = make()
    train(measured, batch)
    report = measure(measured, batch, **arguments)
    report["trained"] = values_of(train(measured, batch))
    torch.manual_seed(1)
    plain = make()
    train(plain, batch)
    report["is_equal"] = values_of(train(plain, batch)) == report.pop("trained")
    return report


def adamw_training(*, is_measured: bool) -> list[Any]:
    """Four steps of a training with its own batches, dropout, a schedule and sharded moments."""
    torch.manual_seed(1 + RANK)
    model = sharded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    losses = []
    for step in range(4):
        batch = make_batch(2 * step + RANK)
        loss = squared_error(model, batch)
        loss.backward()
        losses.append(loss.item())
        if is_measured:
            # Between the backward pass and the step, where gradients have to stay.
            loss_surface(model, squared_error, batch, max_evaluations=9, **QUIET)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    moments = [
        value.to_local().tolist() if hasattr(value, "to_local") else value.tolist()
        for parameter in model.parameters()
        for value in optimizer.state[parameter].values()
    ]
    return [values_of(state_of(model)), moments, losses, schedule.get_last_lr()]


def failing(
    make: Callable[[], nn.Module],
    how: Callable[[], Any],
    ranks: tuple[int, ...] = (1,),
    timeout: float = 120.0,
) -> dict[str, Any]:
    """These ranks fail in the middle; what this one reports."""
    model = make()
    before, calls = state_of(model), 0

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 8 and dist.get_rank() in ranks:
            how()
        return squared_error(model, batch)

    try:
        loss_surface(model, loss_fn, make_batch(0), max_evaluations=49, timeout=timeout, **QUIET)
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
        return {"error": text, "is_restored": state_of(model) == before}
    return {"error": None}


def fail_inside_forward() -> dict[str, Any]:
    """All ranks are interrupted between two modules, whose weights FSDP has gathered."""
    torch.manual_seed(1)
    model = sharded()
    train(model, make_batch(0))
    before, calls = state_of(model), 0

    def interrupt_later(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt

    hook = model[2].register_forward_hook(interrupt_later)
    try:
        measure(model, make_batch(0))
    except KeyboardInterrupt:
        is_restored = state_of(model) == before
    hook.remove()
    trained = values_of(train(model, make_batch(0)))
    torch.manual_seed(1)
    plain = sharded()
    train(plain, make_batch(0))
    is_equal = values_of(train(plain, make_batch(0))) == trained
    return {"is_restored": is_restored, "is_equal": is_equal}


def raise_error() -> None:
    raise ValueError("bad sample")


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def leave() -> None:
    os._exit(0)


def refused(model: nn.Module, **arguments: Any) -> dict[str, Any]:
    """The error of a surface that the ranks cannot compute together."""
    before = state_of(model)
    try:
        measure(model, make_batch(0), process_group=True, **arguments)
    except RuntimeError as error:
        return {"error": str(error), "is_restored": state_of(model) == before}
    return {"error": None}


def other_weights() -> dict[str, Any]:
    model = make_net()
    model[0].weight.data.add_(dist.get_rank())
    return refused(model)


CASES: dict[str, Callable[[], Any]] = {
    "ddp": lambda: both_trainings(parallel, make_batch(0), max_evaluations=40),
    "ddp_own_data": lambda: measure(parallel(), make_batch(RANK), max_evaluations=40),
    "fsdp": lambda: both_trainings(sharded, make_batch(0), max_evaluations=40),
    "fsdp_adamw": lambda: {
        "is_equal": adamw_training(is_measured=True) == adamw_training(is_measured=False)
    },
    "fsdp_own_data": lambda: measure(sharded(), make_batch(RANK), max_evaluations=40),
    "group": lambda: measure(make_net(), make_batch(0), max_evaluations=40, process_group=True),
    "alone": lambda: measure(parallel(), make_batch(0), max_evaluations=9, process_group=False),
    "ddp_hessian": lambda: measure(
        parallel(), make_batch(RANK), max_evaluations=20, directions="hessian"
    ),
    "fsdp_gradient": lambda: measure(
        sharded(), make_batch(RANK), max_evaluations=20, directions="gradient", arrows=False
    ),
    "fsdp_checkpoint": lambda: measure(
        sharded(),
        make_batch(0),
        max_evaluations=20,
        arrows=False,
        directions=[make_checkpoint()],
        trajectory=[(3, make_checkpoint())],
    ),
    "fsdp_sharpness": lambda: sharpness(sharded(), squared_error, make_batch(RANK)).to_json(),
    "other_weights": other_weights,
    "other_arguments": lambda: refused(
        make_net(), max_evaluations=20 + RANK, bounds=(-1.0, 1.0 + RANK)
    ),
    "ddp_error": lambda: failing(parallel, raise_error),
    "ddp_interrupt": lambda: failing(parallel, interrupt),
    "fsdp_error": lambda: failing(sharded, raise_error),
    "fsdp_interrupt": lambda: failing(sharded, interrupt, (0, 1)),
    "fsdp_inside": fail_inside_forward,
    "ddp_lost": lambda: failing(parallel, leave, timeout=2.0),
    "fsdp_lost": lambda: failing(sharded, leave, timeout=2.0),
    "ddp_lost_first": lambda: failing(parallel, leave, (0,), timeout=2.0),
}


def make_checkpoint() -> dict[str, torch.Tensor]:
    """The state of another training."""
    model = make_net()
    for parameter in model.parameters():
        parameter.data.mul_(1.3).add_(0.1)
    return model.state_dict()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for case in sys.argv[1:]:
        found[case] = CASES[case]()
        path = Path(os.environ["OUT"], f"{RANK}.json")
        path.with_suffix(".new").write_text(json.dumps(found))
        path.with_suffix(".new").replace(path)
    os._exit(0)
