"""The projection keeps distances, and is the same for parts, orders and processes."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.insight.trajectory.weight_projection import LocalPart, WeightProjection, local_pieces

SHAPES = {"matrix": (512, 64), "tall": (700, 3), "bias": (5,), "scale": (), "none": (0, 4)}

WEIGHTS = {
    "dense": lambda: torch.randn(512, 64),
    "all equal": lambda: torch.ones(512, 64),
    "one column": lambda: torch.eye(64)[7].expand(512, 64).contiguous(),
    "one row": lambda: torch.nn.functional.pad(torch.randn(1, 64), (0, 0, 9, 502)),
    "rank 1": lambda: torch.randn(512, 1) @ torch.randn(1, 64),
    "signs": lambda: torch.randn(512, 64).sign(),
    "two elements": lambda: torch.nn.functional.pad(torch.eye(2), (30, 32, 200, 310)),
}


def whole(tensor):
    return LocalPart(tensor, (0,) * tensor.ndim, tuple(tensor.shape), counts=True)


def project(projection, tensors):
    return projection.project(
        piece for name, each in tensors.items() for piece in local_pieces(name, whole(each))
    )


@pytest.mark.parametrize("kind", WEIGHTS)
def test_error_of_a_distance(kind):
    """Over 40 seeds: no bias, and the standard error that is stated, also for structured weights.

    The bounds are those of 40 normal values at one in 100,000.
    """
    torch.manual_seed(0)
    ratios = []
    for seed in range(40):
        projection = WeightProjection({"matrix": (512, 64)}, size=128, seed=seed)
        weights = WEIGHTS[kind]()
        ratios.append(float(project(projection, {"matrix": weights}).norm() / weights.norm()))
    assert projection.error == pytest.approx(0.0625, rel=0.02)
    assert abs(np.mean(ratios) - 1) < 4.5 * projection.error / 40**0.5 + projection.error**2
    assert np.std(ratios) < 1.6 * projection.error


@settings(max_examples=max(10, settings.default.max_examples // 20))
@given(st.data())
def test_projections_of_parts_add_up(data):
    """However a tensor of any shape is cut, along any dimension, and in whatever order."""
    shape = tuple(data.draw(st.lists(st.integers(1, 40), max_size=3), label="shape"))
    torch.manual_seed(0)
    tensor = torch.randn(shape, dtype=torch.float64)
    projection = WeightProjection({"w": shape, "more": (3,)}, size=8)
    parts = [whole(tensor)]
    if shape:
        dim = data.draw(st.integers(0, len(shape) - 1), label="dimension")
        cuts = data.draw(st.lists(st.integers(0, shape[dim]), max_size=3), label="cuts")
        parts, edges = [], [0, *sorted(cuts), shape[dim]]
        for start, stop in pairwise(edges):
            starts = tuple(start if each == dim else 0 for each in range(len(shape)))
            piece = tensor.narrow(dim, start, stop - start)
            parts.append(LocalPart(piece, starts, shape, counts=True))
    order = data.draw(st.permutations(parts), label="order")
    total = sum(projection.project(local_pieces("w", part)) for part in order)
    torch.testing.assert_close(total, project(projection, {"w": tensor}), rtol=0, atol=1e-12)


def test_a_tensor_may_be_transposed_and_of_any_type():
    torch.manual_seed(0)
    matrix = torch.randn(512, 64).to(torch.bfloat16)
    projection = WeightProjection(SHAPES)
    expected = project(projection, {"matrix": matrix})
    assert torch.equal(project(projection, {"matrix": matrix.T.contiguous().T}), expected)
    assert torch.equal(project(projection, {"matrix": matrix.double()}), expected)
    assert torch.equal(projection.project([]), torch.zeros(512, dtype=torch.float64))


def test_it_is_linear_and_small_differences_are_exact():
    """A step of 1e-7 of float32 weights is not lost in the rounding of their sums."""
    torch.manual_seed(0)
    projection = WeightProjection({"w": (100_000,)})
    start = torch.randn(100_000)
    after = start + 1e-6 * torch.randn(100_000)
    gap = project(projection, {"w": after}) - project(projection, {"w": start})
    step = project(projection, {"w": after.double() - start.double()})
    torch.testing.assert_close(gap, step, rtol=0, atol=1e-9 * float(step.norm()))


def test_the_projection_depends_on_names_shapes_size_and_seed_only():
    again = WeightProjection(dict(reversed(SHAPES.items())))
    projection = WeightProjection(SHAPES)
    assert again.digest == projection.digest
    others = [
        WeightProjection({**SHAPES, "bias": (6,)}),
        WeightProjection({**SHAPES, "other": (1,)}),
        WeightProjection(SHAPES, seed=1),
        WeightProjection(SHAPES, size=256),
    ]
    assert len({each.digest for each in (projection, *others)}) == 5


def test_every_process_and_version_projects_alike():
    """These numbers must not change: runs of different versions are put into one plane."""
    projection = WeightProjection({"w": (70_000,)}, 16)
    projected = projection.project([("w", 0, torch.arange(70_000.0))])
    assert projected[:3].tolist() == [2128466.0, 919867.5, -3265065.0]


@pytest.mark.parametrize("size", [0, 7, 8193])
def test_sizes_out_of_range(size):
    with pytest.raises(ValueError, match="8 to 8192"):
        WeightProjection({"w": (3,)}, size)
