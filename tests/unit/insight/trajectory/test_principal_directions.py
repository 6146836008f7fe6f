"""Principal directions of checkpoints equal those of the weights as one matrix."""

from importlib import import_module

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sentinel.insight.trajectory.principal_directions import principal_directions
from sentinel.insight.trajectory.saved_weights import CheckpointError

SHAPES = {"w": (30, 7), "b": (5,), "s": ()}


def flat(weights):
    return torch.cat([weights[name].reshape(-1).double() for name in SHAPES]).numpy()


@pytest.fixture
def checkpoints(tmp_path):
    torch.manual_seed(0)
    scale = torch.linspace(3, 0.1, 6)
    common = [{name: torch.randn(shape) for name, shape in SHAPES.items()} for _ in scale]
    paths = []
    for number in range(6):
        factors = torch.randn(6) * scale
        weights = {
            name: 100 + sum(f * each[name] for f, each in zip(factors, common, strict=True))
            for name in SHAPES
        }
        paths.append(tmp_path / f"step_{number * 10}.safetensors")
        save_file({**weights, "steps": torch.tensor(3)}, paths[-1])
    return paths


def test_equal_to_the_decomposition_of_the_matrix(checkpoints, monkeypatch):
    from safetensors.torch import load_file

    module = import_module("sentinel.insight.trajectory.principal_directions")
    monkeypatch.setattr(module, "_PIECE_BYTES", 6 * 8 * 10)
    done = []
    found = principal_directions(checkpoints, components=3, progress=done.append)
    matrix = np.stack([flat(load_file(path)) for path in checkpoints])
    centered = matrix - matrix.mean(axis=0)
    _, values, rows = np.linalg.svd(centered, full_matrices=False)
    directions = np.stack([flat(each) for each in found.directions])
    np.testing.assert_allclose(np.abs(np.sum(directions * rows[:3], axis=1)), 1, atol=1e-6)
    np.testing.assert_allclose(directions @ directions.T, np.eye(3), atol=1e-6)
    np.testing.assert_allclose(found.explained, (values**2 / (values**2).sum())[:3], atol=1e-9)
    np.testing.assert_allclose(found.coordinates, centered @ directions.T, atol=1e-5)
    assert found.coordinates[-1][0] > found.coordinates[0][0]
    assert found.steps == [0, 10, 20, 30, 40, 50]
    assert done == sorted(done)
    assert done[-1] == pytest.approx(1)


def test_coordinates_are_zero_at_the_center(checkpoints):
    from safetensors.torch import load_file

    center = load_file(checkpoints[2])
    found = principal_directions(checkpoints, center=center)
    np.testing.assert_allclose(found.coordinates[2], 0, atol=1e-9)
    gap = flat(load_file(checkpoints[5])) - flat(center)
    directions = np.stack([flat(each) for each in found.directions])
    np.testing.assert_allclose(found.coordinates[5], directions @ gap, atol=1e-5)


def test_checkpoints_on_a_line_have_one_direction():
    line = [{"w": torch.tensor([1.0, 2.0]) + t * torch.tensor([3.0, 4.0])} for t in (0, 1, 3)]
    found = principal_directions(line)
    assert found.explained == pytest.approx([1])
    torch.testing.assert_close(found.directions[0]["w"], torch.tensor([0.6, 0.8]))
    assert [row[0] for row in found.coordinates] == pytest.approx([-20 / 3, -5 / 3, 25 / 3])


@pytest.mark.parametrize(
    ("checkpoints", "text"),
    [
        ([{"w": torch.ones(2)}], "2 checkpoints or more, not 1"),
        ([{"w": torch.ones(2)}] * 2, "same weights"),
        ([{"w": torch.ones(2)}, {"w": torch.tensor([1, torch.nan])}], "not finite: leave it out"),
        ([{"w": torch.ones(2)}, {"v": torch.ones(2)}], "no weight in common"),
        ([{"w": torch.ones(1)}] * 401, "At most 400"),
    ],
)
def test_errors_name_what_to_do(checkpoints, text):
    with pytest.raises(CheckpointError, match=text):
        principal_directions(checkpoints)
