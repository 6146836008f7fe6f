"""Parameters are named by their module, and grouped to a bounded number of layers."""

from __future__ import annotations

import doctest

import pytest
import torch

from sentinel.client.capture import layer_measurement, layer_names
from sentinel.client.capture.layer_names import (
    clean_name,
    group_layers,
    module_path,
    name_parameters,
)


@pytest.mark.parametrize("module", [layer_names, layer_measurement])
def test_the_examples_hold(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("module._orig_mod.h.3.attn.weight", "h.3.attn"),
        ("base_model.model.h.0.q_proj.base_layer.weight", "h.0.q_proj"),
        ("base_model.model.h.0.q_proj.lora_B.default.weight", "h.0.q_proj"),
        ("base_model.model.score.modules_to_save.default.weight", "score"),
        ("_fsdp_wrapped_module.h.1._fsdp_wrapped_module._flat_param", "h.1"),
        ("h.0._checkpoint_wrapped_module.mlp.weight", "h.0.mlp"),
        ("conv.parametrizations.weight.original0", "conv"),
        ("lora_scale", "lora_scale"),
    ],
)
def test_the_layer_of_a_parameter_is_its_module(name, layer):
    assert module_path(clean_name(name)) == layer


def test_layers_are_grouped_by_the_deepest_paths_that_are_few_enough():
    names = [f"h.{block}.{part}.weight" for block in range(4) for part in ("attn", "mlp.up")]

    assert len(group_layers(names, 8)[0]) == 8
    assert group_layers(names, 7)[0] == ["h.0", "h.1", "h.2", "h.3"]
    layers, layer_of = group_layers(names, 3)
    assert layers == ["h"]
    assert set(layer_of) == {0}


def test_neighbours_are_grouped_where_paths_have_no_common_beginning():
    layers, layer_of = group_layers([f"{at}.weight" for at in range(10)], 4)

    assert layers == ["0 … 2", "3 … 5", "6 … 8", "9"]
    assert layer_of == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]


def test_names_are_those_of_the_model_that_owns_the_parameters_in_its_order():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    other = torch.nn.Linear(2, 2)
    parameters = [*net[1].parameters(), *net[0].parameters(), torch.nn.Parameter(torch.ones(1))]

    found = name_parameters(parameters)

    assert found == [
        (2, "0.weight"),
        (3, "0.bias"),
        (0, "1.weight"),
        (1, "1.bias"),
        (4, "parameter4"),
    ]
    assert name_parameters(parameters, net) == found
    assert name_parameters(parameters, other) == found
    assert name_parameters(parameters[-1:], None, ["scale"]) == [(0, "scale")]


class Unusual(torch.nn.Module):
    """A module of somebody else, which raises when it is asked for its parameters."""

    def named_parameters(self, prefix=""):
        raise RuntimeError("not now")

    modules = named_modules = named_children = named_parameters


def test_modules_that_override_anything_do_not_hinder_the_search():
    elsewhere, wrapper = Unusual(), Unusual()
    wrapper.inner = wrapper.again = torch.nn.Sequential(torch.nn.Linear(2, 2))
    parameters = [*wrapper.inner.parameters()]

    names = [name for _, name in name_parameters(parameters)]

    assert names == ["inner.0.weight", "inner.0.bias"]
    assert elsewhere is not wrapper
