"""`sentinel.insight.gradient_flow`: the gradients of a model as they are now."""

from __future__ import annotations

import json

import pytest
import torch

from sentinel.insight.gradient_flow import GradientFlow, gradient_flow


@pytest.fixture
def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))


def test_norms_and_zeros_are_those_of_the_gradients(model):
    model(torch.randn(16, 4)).pow(2).mean().backward()
    model[0].weight.grad[0] = 0.0
    grads = [torch.cat([p.grad.flatten() for p in model[at].parameters()]) for at in (0, 2)]

    found = gradient_flow(model, step=3)

    assert found.layers == ["0", "2"]
    assert found.layer_grad_norm == pytest.approx([float(g.norm()) for g in grads], rel=1e-6)
    zeros = [float((g == 0).float().mean()) for g in grads]
    assert found.layer_grad_zero_share == pytest.approx(zeros)
    assert sum(found.histograms["2"][1:]) == 9
    assert found.parameter_count == 49
    assert GradientFlow.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_model_without_gradients_is_an_error_with_a_remedy(model):
    with pytest.raises(ValueError, match=r"between loss\.backward\(\) and"):
        gradient_flow(model)
