"""The class of an optimizer, and rates of its groups that are far apart, are recorded."""

import pytest
import torch
from support.recorded_rings import read_rings

import sentinel
from sentinel.client.capture.group_rates import uneven_rates
from sentinel.model.record import Event


@pytest.fixture
def recorded_texts():
    """Returns a function: the texts of a name in the metadata of rank 0, in order."""

    def find(name):
        texts = [r.attributes.get(name) for r in read_rings()[0] if r.event is Event.METADATA]
        return [text for text in texts if text]

    return find


def optimizer(*rates, sizes=(30, 10, 10)):
    return torch.optim.SGD(
        [
            {"params": [torch.nn.Parameter(torch.ones(size))], "lr": rate}
            for rate, size in zip(rates, sizes, strict=False)
        ]
    )


def test_a_group_far_above_the_rate_of_most_weights_is_uneven():
    assert uneven_rates(optimizer(1e-3, 0.1, 1e-3)) == {
        "highest_group_learning_rate": 0.1,
        "highest_group_number": 1.0,
        "highest_group_weight_share": 0.2,
        "main_group_learning_rate": 1e-3,
    }


def test_the_rates_before_a_schedule_count():
    uneven = optimizer(1e-3, 0.1)
    torch.optim.lr_scheduler.LambdaLR(uneven, lambda _: 0.0)

    assert uneven_rates(uneven)["highest_group_learning_rate"] == 0.1


@pytest.mark.parametrize(
    "rates",
    [
        # A new head, and second matrices of adapters.
        (1e-4, 1e-3),
        (1e-4, 1.6e-3, 0.0),
        # Muon for most weights, Adam for the others.
        (0.02, 3e-4),
        # Layers whose rate decays with depth.
        (1e-3, 1e-4, 1e-5),
        # A frozen group, and a rate on a device, which is not read.
        (0.0, 1e-3),
        (1e-3, torch.tensor(1.0)),
    ],
)
def test_usual_rates_are_not_uneven(rates):
    assert uneven_rates(optimizer(*rates)) == {}


def test_they_are_metadata_of_the_run_from_the_first_step(reported_metadata):
    uneven = optimizer(1e-3, 0.1)

    @sentinel.monitor(run="test", agent=False)
    def train():
        for _ in range(3):
            sum(each.sum() for group in uneven.param_groups for each in group["params"]).backward()
            uneven.step()

    train()

    metadata = reported_metadata()[0]
    assert metadata["main_group_learning_rate"] == pytest.approx(1e-3)
    assert metadata["optimizers"] == "SGD"


def test_each_optimizer_of_a_training_is_recorded_once(recorded_texts):
    @sentinel.monitor(run="test", agent=False)
    def train():
        for kind in (torch.optim.SGD, torch.optim.SGD, torch.optim.AdamW):
            weights = torch.nn.Parameter(torch.ones(4))
            stepped = kind([weights], lr=0.1)
            for _ in range(3):
                weights.sum().backward()
                stepped.step()

    train()

    # A new model is another training, whose metadata begin anew.
    assert recorded_texts("optimizers") == ["SGD", "SGD", "AdamW"]


@pytest.mark.parametrize(("factor", "expected"), [(1000.0, 1.0), (5.0, None)])
def test_a_group_whose_rate_is_raised_in_mid_run_is_named(reported_metadata, factor, expected):
    trained = optimizer(1e-3, 1e-3)

    @sentinel.monitor(run="test", agent=False)
    def train():
        for step in range(64):
            if step == 20:
                trained.param_groups[1]["lr"] *= factor
            sum(each.sum() for group in trained.param_groups for each in group["params"]).backward()
            trained.step()

    train()

    assert reported_metadata()[0].get("highest_group_number") == expected
