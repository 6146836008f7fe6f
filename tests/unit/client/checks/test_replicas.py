"""Which weights ranks that divide a model have in common."""

import torch

from sentinel.client.checks.replicas import _norm_weights


def test_norms_that_are_divided_are_not_compared():
    model = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    assert [name for name, _ in _norm_weights(model)] == [
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
    ]

    for each in model[2].parameters():
        each.tensor_model_parallel = True
    assert [name for name, _ in _norm_weights(model)] == ["0.weight", "0.bias"]
