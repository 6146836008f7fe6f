"""Metadata from the objects of a framework."""

from types import SimpleNamespace

import pytest
import torch

from sentinel.client.capture.framework_metadata import transformers_metadata


class DummyOptim:
    """The placeholder of Accelerate for an optimizer that DeepSpeed creates."""


def wrapped(optimizer):
    return SimpleNamespace(optimizer=SimpleNamespace(optimizer=optimizer))


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [
        (torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]), "SGD"),
        (wrapped(torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])), "AdamW"),
        (wrapped(DummyOptim()), None),
        (None, None),
    ],
)
def test_the_optimizer_in_use_is_named_without_its_wrappers(optimizer, name):
    args, state = SimpleNamespace(output_dir="."), SimpleNamespace(max_steps=0)

    assert transformers_metadata(args, state, None, optimizer).get("optimizers") == name
