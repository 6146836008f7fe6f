"""Small models of many kinds in the middle of a training, and whether two are equal bit for bit."""

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from requirements import need
from torch import nn
from torch.nn import functional

ENDS = [None, None, ValueError, KeyboardInterrupt, SystemExit]
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


class Net(nn.Module):
    """Embedding, convolution, norms, dropout, a tied head, buffers and a tensor attribute."""

    def __init__(self, *, tied: bool, norm: bool, dropout: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.conv = nn.Conv1d(6, 6, 3, padding=1)
        self.norm = nn.BatchNorm1d(6) if norm else nn.LayerNorm(5)
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(6, 6).to(dtype)
        self.head = nn.Linear(6, 11, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.rand(6), persistent=False)
        self.last_hidden = torch.zeros(6)
        self.lengths: list[int] = []

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.lengths.append(len(tokens))
        embedded = self.embedding(tokens).transpose(1, 2)
        mixed = self.dropout(self.norm(self.conv(embedded))).transpose(1, 2) * self.scale
        hidden = self.hidden(mixed.to(self.hidden.weight.dtype)).to(mixed.dtype)
        self.last_hidden.copy_(hidden.detach().mean((0, 1)))
        return self.head(torch.relu(hidden))


MODELS: dict[str, st.SearchStrategy[Any]] = {
    "tied": st.booleans(),
    "norm": st.booleans(),
    "dropout": st.sampled_from([0.0, 0.3]),
    "dtype": st.sampled_from(DTYPES),
    "lora": st.booleans(),
    "frozen": st.booleans(),
    "grads": st.booleans(),
    "autocast": st.booleans(),
    "training": st.booleans(),
    "steps": st.integers(0, 2),
    "optimizer": st.sampled_from(["sgd", "momentum", "adamw"]),
    "seed": st.integers(0, 99),
}
"""What a model is built from."""


def autocast(configuration: dict[str, Any]) -> Any:
    return torch.autocast("cpu", torch.bfloat16, enabled=configuration["autocast"])


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (the generator of many training scripts)
    torch.manual_seed(seed)


def build(configuration: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
    names = ("tied", "norm", "dropout", "dtype")
    model: nn.Module = Net(**{name: configuration[name] for name in names})
    if configuration["lora"]:
        need("peft", "transformers")
        import peft

        adapters = peft.LoraConfig(r=2, target_modules=["hidden"], lora_dropout=0.1)
        model = peft.get_peft_model(model, adapters)
    elif configuration["frozen"]:
        for parameter in list(model.parameters())[:2]:
            parameter.requires_grad_(False)
    trainable = [each for each in model.parameters() if each.requires_grad]
    optimizer: torch.optim.Optimizer
    if configuration["optimizer"] == "adamw":
        optimizer = torch.optim.AdamW(trainable, lr=1e-2)
    else:
        momentum = 0.9 if configuration["optimizer"] == "momentum" else 0.0
        optimizer = torch.optim.SGD(trainable, lr=1e-2, momentum=momentum)
    train(model, optimizer, configuration["steps"], configuration)
    if configuration["grads"]:
        with autocast(configuration):
            loss = loss_of(model)
        loss.backward()
    else:
        optimizer.zero_grad()
    model.train(configuration["training"])
    return model, optimizer


def train(model: nn.Module, optimizer: Any, steps: int, configuration: dict[str, Any]) -> None:
    for _ in range(steps):
        with autocast(configuration):
            loss = loss_of(model)
        loss.backward()  # onto the gradients that are there
        optimizer.step()
        optimizer.zero_grad()


def check_restored(
    configuration: dict[str, Any], measure: Callable[[nn.Module, Any, dict[str, Any]], None]
) -> None:
    """What `measure` does, or raises, changes neither the state nor the training afterwards."""
    seed_all(configuration["seed"])
    model, optimizer = build(configuration)
    before, random_before = fingerprint(model, optimizer), random_states()
    with suppress(BaseException):  # Ctrl-C included
        measure(model, optimizer, configuration)
    assert fingerprint(model, optimizer) == before
    assert random_states() == random_before
    train(model, optimizer, 2, configuration)

    seed_all(configuration["seed"])
    twin, twin_optimizer = build(configuration)
    train(twin, twin_optimizer, 2, configuration)
    assert values(fingerprint(model, optimizer)) == values(fingerprint(twin, twin_optimizer))


def loss_of(model: nn.Module) -> torch.Tensor:
    shift = random.randrange(2) + int(np.random.randint(2))  # noqa: NPY002
    tokens = (torch.randint(11, (4, 5)) + shift) % 11
    logits = model(tokens)
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def fingerprint(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    """Identities, values, gradients, flags and hooks, written without the code under test."""
    found: list[Any] = [torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")]
    found.append(str(torch.get_default_dtype()))
    for name, module in model.named_modules():
        found += [name, id(module), module.training, len(module._forward_hooks)]
        found += [sorted(module.__dict__)]
        if isinstance(module, Net):
            found += [bits(module.last_hidden), list(module.lengths)]
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        found += [name, id(tensor), tensor.data_ptr(), str(tensor.dtype), bits(tensor)]
        found += [tensor.requires_grad, len(tensor._backward_hooks or ())]
        found += [None if tensor.grad is None else (id(tensor.grad), bits(tensor.grad))]
    state = optimizer.state_dict()
    found.append([{**group} for group in state["param_groups"]])
    for index, values_of in sorted(state["state"].items()):
        for key, value in values_of.items():
            found.append((index, key, bits(value) if isinstance(value, torch.Tensor) else value))
    return found


def values(found: list[Any]) -> list[Any]:
    """Without what differs between two models of the same values: ids and addresses."""
    plain = [each for each in found if not isinstance(each, int) or isinstance(each, bool)]
    return [each[1] if isinstance(each, tuple) and len(each) == 2 else each for each in plain]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def random_states() -> list[Any]:
    numpy_state: Any = np.random.get_state()  # noqa: NPY002
    return [
        random.getstate(),
        bits(torch.get_rng_state()),
        numpy_state[1].tobytes(),
        *numpy_state[2:],
    ]


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [each for each in model.parameters() if each.requires_grad and each.is_leaf]
