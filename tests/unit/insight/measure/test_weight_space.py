"""Filter normalisation as in Li et al. 2018, and directions that do not depend on the rest."""

import pytest
import torch
from torch import nn

from sentinel.insight.measure.surface_error import SurfaceError
from sentinel.insight.measure.weight_space import WeightSpace, normalise_filters


def space_of(model: nn.Module, *names: str) -> WeightSpace:
    named = dict(model.named_parameters())
    return WeightSpace(model, {name: named[name] for name in names or named})


def rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten(1).norm(dim=1)


@pytest.mark.parametrize(
    "module", [nn.Linear(4, 3), nn.Conv2d(2, 3, 3), nn.Embedding(7, 3)], ids=str
)
def test_each_filter_has_the_norm_of_the_weights(module: nn.Module) -> None:
    space = space_of(module)

    vector = space.random(0, normalise=True)

    assert torch.allclose(rows(vector[0]), rows(space.parameters[0].detach()), rtol=1e-5)


def test_a_transposed_convolution_has_its_filters_in_the_second_dimension() -> None:
    module = nn.ConvTranspose2d(2, 3, 3)

    vector = space_of(module).random(0, normalise=True)

    assert torch.allclose(
        rows(vector[0].movedim(1, 0)), rows(module.weight.detach().movedim(1, 0)), rtol=1e-5
    )


def test_biases_and_norms_do_not_move() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.LayerNorm(3))

    vector = space_of(model).random(0, normalise=True)

    assert [bool(each.any()) for each in vector] == [True, False, False, False, False, False]


def test_norms_chosen_alone_count_as_one_filter_each() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))

    space = space_of(model, "1.weight")

    assert space.norm(space.random(0, normalise=True)) == pytest.approx(3**0.5)


def test_filters_that_are_zero_do_not_move() -> None:
    direction = normalise_filters(torch.randn(2, 3), torch.tensor([[0.0, 0, 0], [1, 2, 2]]))

    assert rows(direction).tolist() == pytest.approx([0.0, 3.0])


def test_a_direction_depends_on_seed_and_name_only() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    one, two = space_of(model), space_of(model, "1.weight")

    assert torch.equal(one.random(5, normalise=True)[2], two.random(5, normalise=True)[0])
    assert not torch.equal(two.random(5, normalise=True)[0], two.random(6, normalise=True)[0])


def test_arrays_and_vectors_are_inverse() -> None:
    space = space_of(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)))
    vector = space.random(0, normalise=False)

    again = space.from_array(space.to_array(vector))

    assert all(torch.equal(a, b) for a, b in zip(vector, again, strict=True))


def test_low_precision_weights_are_moved_in_float32() -> None:
    model = nn.Linear(64, 64).to(torch.bfloat16)
    space = space_of(model)
    before = model.weight.clone()

    space.move([space.random(0, normalise=True)], [0.5])
    moved = model.weight.clone()
    space.move([], [])

    assert space.center[0].dtype is torch.float32
    assert space.coarsest_dtype == "bfloat16"
    assert not torch.equal(moved, before)
    assert torch.equal(model.weight, before)


def test_integers_cannot_be_moved() -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(3, dtype=torch.int8), requires_grad=False)

    with pytest.raises(SurfaceError, match=r"weight is int8, .* adapters of a quantized model"):
        space_of(model)


def test_weights_that_zero_3_has_partitioned_are_refused() -> None:
    model = nn.Linear(2, 2)
    model.weight.data = torch.empty(0)
    model.weight.ds_id = 0

    with pytest.raises(SurfaceError, match=r"ZeRO-3 .* measure a saved checkpoint"):
        space_of(model)
