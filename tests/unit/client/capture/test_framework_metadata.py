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
    ("make_optimizer", "name"),
    [
        (lambda: torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]), "SGD"),
        (lambda: wrapped(torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])), "AdamW"),
        (lambda: wrapped(DummyOptim()), None),
        (lambda: None, None),
    ],
)
def test_the_optimizer_in_use_is_named_without_its_wrappers(make_optimizer, name):
    args, state = SimpleNamespace(output_dir="."), SimpleNamespace(max_steps=0)

    metadata = transformers_metadata(args, state, None, make_optimizer())

    assert metadata.get("optimizers") == name
