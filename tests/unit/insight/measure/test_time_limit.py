"""What a measurement does when its time is over."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from sentinel.insight import loss_surface, sharpness
from sentinel.insight.measure import time_limit as module
from sentinel.insight.measure.rank_exchange import RankExchange
from sentinel.insight.measure.time_limit import OutOfTimeError, TimeLimit


class Clock:
    """Stands still between evaluations of the loss."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        """Takes a second."""
        self.now += 1.0
        value: torch.Tensor = model(batch).square().mean()
        return value


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def made() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)), torch.randn(4, 8)


def test_a_surface_out_of_time_is_coarse_and_says_so(clock: Clock) -> None:
    model, batch = made()
    path = [copy.deepcopy(model), copy.deepcopy(model)]
    before = {name: each.clone() for name, each in model.state_dict().items()}
    rate = torch.optim.SGD(model.parameters(), lr=0.1)

    surface = loss_surface(
        model, clock.loss, batch, max_seconds=100.0, trajectory=path, optimizer=rate, cache=False
    )

    assert 100 <= clock.now <= 105
    # The centre, which is one of the points, was evaluated twice.
    assert len(surface.points) == surface.evaluations - 1 <= 105
    assert len(surface.loss) == len(surface.y) == 101
    assert surface.arrows == []
    assert [each["loss"] for each in surface.trajectory] == [None, None]
    assert surface.sharpness is None
    assert any("of at most 1089 evaluations" in each for each in surface.note)
    assert any("no arrows" in each for each in surface.note)
    assert any("no sharpness" in each for each in surface.note)
    assert all(before[name].equal(each) for name, each in model.state_dict().items())


def test_a_surface_has_a_few_points_in_any_case(clock: Clock) -> None:
    model, batch = made()

    surface = loss_surface(model, clock.loss, batch, max_seconds=0.5, cache=False)

    assert 9 <= len(surface.points) < 60


def test_sharpness_has_no_part_and_says_what_to_do(clock: Clock) -> None:
    model, batch = made()

    with pytest.raises(OutOfTimeError, match=r"longer than 0\.5 s: allow more time"):
        sharpness(model, clock.loss, batch, max_seconds=0.5)


def test_a_limit_must_be_positive() -> None:
    with pytest.raises(ValueError, match="max_seconds"):
        TimeLimit(0.0, RankExchange())
