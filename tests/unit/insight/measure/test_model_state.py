"""A model is given back bit-exactly, whatever happens in the block."""

import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.restored_models import (
    ENDS,
    MODELS,
    autocast,
    bits,
    check_restored,
    loss_of,
    trainable,
)
from torch import nn

from sentinel.insight.measure.model_state import preserved

pytestmark = pytest.mark.usefixtures("one_thread")


CONFIGURATIONS = st.fixed_dictionaries(
    MODELS
    | {
        "with_optimizer": st.booleans(),
        "end": st.sampled_from(ENDS),
        "changes": st.lists(st.integers(0, 12), max_size=8),
    }
)


# 100 configurations in `make fuzz`.
@settings(max_examples=max(10, settings.default.max_examples // 100))
@given(CONFIGURATIONS)
def test_training_afterwards_equals_training_without(configuration: dict[str, Any]) -> None:
    check_restored(configuration, change_inside)


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


def test_ctrl_c_while_the_model_is_restored_waits_until_it_is() -> None:
    model = nn.Linear(4, 4)
    before = bits(model.weight)

    hits = []

    def change() -> None:
        with preserved(model) as state:
            model.weight.data.zero_()

            def interrupted() -> None:
                os.kill(os.getpid(), signal.SIGINT)
                hits.append(1)

            state._restores.insert(0, interrupted)

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
                inner._restores.append(raise_signal)
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


def test_a_graph_that_is_left_of_weights_of_another_shape_is_harmless() -> None:
    model = nn.Linear(4, 4).double()
    with preserved(model):
        model.weight.data = torch.zeros(3, dtype=torch.float64)
        left = model.weight.square().sum()
    model(torch.ones(2, 4, dtype=torch.float64)).sum().backward()

    assert left.grad_fn is not None
    assert model.weight.grad is not None
    assert model.weight.grad.shape == (4, 4)


def test_nan_weights_keep_their_bits() -> None:
    model = nn.Linear(2, 2)
    model.weight.data.view(torch.int32).fill_(0x7FC12345)
    before = bits(model.weight)
    with preserved(model):
        model.weight.data.fill_(float("nan"))
    assert bits(model.weight) == before


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
