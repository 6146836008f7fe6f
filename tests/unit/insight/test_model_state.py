"""A model is given back bit-exactly, whatever happens in the block."""

import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from sentinel.insight.model_state import preserved

peft = pytest.importorskip("peft")

ENDS = [None, None, ValueError, KeyboardInterrupt, SystemExit]
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


CONFIGURATIONS = st.fixed_dictionaries(
    {
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
        "with_optimizer": st.booleans(),
        "end": st.sampled_from(ENDS),
        "changes": st.lists(st.integers(0, 12), max_size=8),
        "seed": st.integers(0, 99),
    }
)


# 100 configurations in `make fuzz`.
@settings(max_examples=max(10, settings.default.max_examples // 100))
@given(CONFIGURATIONS)
def test_training_afterwards_equals_training_without(configuration: dict[str, Any]) -> None:
    seed_all(configuration["seed"])
    model, optimizer = build(configuration)
    before, random_before = fingerprint(model, optimizer), random_states()
    with suppress(BaseException):  # what the block raises, Ctrl-C included
        change_inside(model, optimizer, configuration)
    assert fingerprint(model, optimizer) == before
    assert random_states() == random_before
    train(model, optimizer, 2, configuration)

    seed_all(configuration["seed"])
    twin, twin_optimizer = build(configuration)
    train(twin, twin_optimizer, 2, configuration)
    assert values(fingerprint(model, optimizer)) == values(fingerprint(twin, twin_optimizer))


def change_inside(model: nn.Module, optimizer: Any, configuration: dict[str, Any]) -> None:
    end, with_optimizer = configuration["end"], configuration["with_optimizer"]
    with autocast(configuration), preserved(model, optimizer if with_optimizer else None):
        for change in configuration["changes"]:
            if change < len(CHANGES):
                CHANGES[change](model)
            elif with_optimizer:
                OPTIMIZER_CHANGES[change - len(CHANGES)](model, optimizer)
        if end is not None:
            raise end


def autocast(configuration: dict[str, Any]) -> Any:
    return torch.autocast("cpu", torch.bfloat16, enabled=configuration["autocast"])


def test_ctrl_c_while_the_model_is_restored_waits_until_it_is() -> None:
    model = nn.Linear(4, 4)
    before = bits(model.weight)

    hits = []

    def change() -> None:
        with preserved(model) as state:
            model.weight.data.zero_()
            memory = state._memory

            def interrupted() -> None:
                os.kill(os.getpid(), signal.SIGINT)
                hits.append(1)
                type(memory).restore(memory)

            memory.restore = interrupted  # type: ignore[method-assign]

    with pytest.raises(KeyboardInterrupt):
        change()
    assert hits == [1]
    assert bits(model.weight) == before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_at_any_instruction_restores_the_model() -> None:
    """A trace function raises the signal at every line that the block and its end run."""
    for position in range(0, 400, 7):
        model = nn.Linear(2, 2)
        before = bits(model.weight)
        left = position

        def count(frame: Any, event: str, argument: Any) -> Any:
            nonlocal left
            if event == "line" and "model_state" in frame.f_code.co_filename:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGINT)
            return count

        with suppress(KeyboardInterrupt):
            state = preserved(model)
            with state:
                model.weight.data.zero_()
                sys.settrace(count)
            sys.settrace(None)
        sys.settrace(None)
        assert bits(model.weight) == before, position
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_inner_block_passes_ctrl_c_on_at_once() -> None:
    model = nn.Linear(2, 2)
    reached = []

    def change() -> None:
        with preserved(model):
            with preserved(model) as inner:
                raise_signal = partial(os.kill, os.getpid(), signal.SIGINT)
                inner._random.restore = raise_signal  # type: ignore[method-assign]
            reached.append(1)

    with pytest.raises(KeyboardInterrupt):
        change()
    assert reached == []


def test_a_block_in_another_thread_leaves_signals_alone() -> None:
    model = nn.Linear(2, 2)
    handlers = []

    def run() -> None:
        with preserved(model):
            model.weight.data.zero_()
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]
    assert bool(model.weight.abs().sum() > 0)


def test_a_graph_that_waits_for_its_backward_pass_stays_valid() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    inputs = torch.ones(2, 3)
    expected = torch.autograd.grad(model(inputs).sum(), list(model.parameters()))
    loss = model(inputs).sum()
    with preserved(model):
        for parameter in model.parameters():
            parameter.data.add_(1)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert all(torch.equal(one, two) for one, two in zip(gradients, expected, strict=True))


def test_sparse_gradients_are_restored() -> None:
    model = nn.Embedding(5, 2, sparse=True)
    model(torch.tensor([1, 3])).sum().backward()
    assert model.weight.grad is not None
    gradient, before = model.weight.grad, model.weight.grad.to_dense().clone()
    with preserved(model):
        gradient._values().fill_(7)
        model.weight.grad = None
    assert model.weight.grad is gradient
    assert torch.equal(gradient.to_dense(), before)


def test_a_lazy_model_is_refused_before_anything_is_changed() -> None:
    with pytest.raises(ValueError, match="run one forward pass first"), preserved(nn.LazyLinear(3)):
        pass


def test_nan_weights_keep_their_bits() -> None:
    model = nn.Linear(2, 2)
    model.weight.data.view(torch.int32).fill_(0x7FC12345)
    before = bits(model.weight)
    with preserved(model):
        model.weight.data.fill_(float("nan"))
    assert bits(model.weight) == before


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (the generator of many training scripts)
    torch.manual_seed(seed)


def build(configuration: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
    names = ("tied", "norm", "dropout", "dtype")
    model: nn.Module = Net(**{name: configuration[name] for name in names})
    if configuration["lora"]:
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


def same(one: list[Any], two: list[Any]) -> bool:
    return len(one) == len(two) and all(a == b for a, b in zip(one, two, strict=True))


@torch.no_grad()
def move_weights(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter))


def set_nan(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.fill_(float("nan"))
    loss_of(model.eval())


def replace_data(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = torch.zeros(3, dtype=torch.float64)


def replace_parameters(model: nn.Module) -> None:
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach().clone()))


def draw(model: nn.Module) -> None:
    random.random()
    np.random.rand(3)  # noqa: NPY002
    torch.rand(3)


def backward(model: nn.Module) -> None:
    loss = sum(parameter.double().square().sum() for parameter in trainable(model))
    loss.backward()


def drop_gradients(model: nn.Module) -> None:
    model.zero_grad(set_to_none=True)


def freeze(model: nn.Module) -> None:
    model.requires_grad_(False)


def add_hooks(model: nn.Module) -> None:
    model.register_forward_hook(lambda *_: None)
    for parameter in trainable(model):
        parameter.register_hook(lambda grad: grad * 2)
        parameter.register_post_accumulate_grad_hook(lambda _: None)


def change_modes(model: nn.Module) -> None:
    model.train(not model.training)
    torch.set_grad_enabled(False)
    torch.set_autocast_enabled("cpu", not torch.is_autocast_enabled("cpu"))
    torch.set_default_dtype(torch.float64)


def step(model: nn.Module, optimizer: Any) -> None:
    for parameter in trainable(model):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def change_groups(model: nn.Module, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = 7.0
    optimizer.state.clear()


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [each for each in model.parameters() if each.requires_grad and each.is_leaf]


CHANGES: list[Callable[[nn.Module], None]] = [
    move_weights,
    set_nan,
    replace_data,
    replace_parameters,
    draw,
    backward,
    drop_gradients,
    freeze,
    add_hooks,
    change_modes,
]
OPTIMIZER_CHANGES: list[Callable[[nn.Module, Any], None]] = [step, change_groups]
