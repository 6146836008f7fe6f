"""The number of classes of a classification is recorded, from the graph of its loss."""

import pytest
import torch

import sentinel


@pytest.mark.parametrize(
    ("loss_of", "expected"),
    [
        (torch.nn.functional.cross_entropy, 7.0),
        (lambda x, y: torch.nn.functional.cross_entropy(x, y) / 4, 7.0),
        (lambda x, y: torch.nn.functional.mse_loss(x[:, 0], y.float()), None),
    ],
)
def test_classes_are_those_of_the_loss(reported_metadata, loss_of, expected):
    model = torch.nn.Linear(3, 7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @sentinel.monitor(run="test", agent=False)
    def train():
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model(torch.ones(5, 3)), torch.arange(5)).backward()
            optimizer.step()

    train()

    assert reported_metadata()[0].get("num_classes") == expected
