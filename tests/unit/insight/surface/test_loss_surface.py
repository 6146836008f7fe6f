"""Loss surfaces: right values, a model that is as it was, errors that say what to do."""

import functools
import json
import math
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from requirements import need
from support.restored_models import (
    ENDS,
    MODELS,
    Net,
    autocast,
    check_restored,
    loss_of,
)
from torch import nn
from torch.nn import functional

import sentinel
from sentinel.client.session import CurrentSession
from sentinel.insight import LossSurface, TrajectoryRecorder, loss_surface, sharpness, trajectory
from sentinel.insight.measure.surface_error import SurfaceError
from sentinel.insight.surface.directions import Direction
from sentinel.insight.surface.sampling import denser_near
from sentinel.model.record import Event, Record
from sentinel.store.artifact import (
    current_run_directory,
    list_artifacts,
    load_artifact,
    save_artifact,
)
from sentinel.transport.ring_layout import WORD_ACTIVITY_COUNT

QUIET: dict[str, Any] = {"cache": False, "progress": None}


pytestmark = pytest.mark.usefixtures("one_thread")


def make_net(dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype)


def make_batch(dtype: torch.dtype = torch.float64, size: int = 16) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(size, 3, generator=generator, dtype=torch.float64).to(dtype)
    return inputs, torch.randn(size, 2, generator=generator, dtype=torch.float64).to(dtype)


def squared_error(model: Any, batch: Any) -> torch.Tensor:
    return functional.mse_loss(model(batch[0]), batch[1])


class Quadratic(nn.Module):
    """Half of w' A w + b' w, for weights of two dimensions, so that directions may be random."""

    def __init__(self, curvature: torch.Tensor, slope: torch.Tensor, at: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(at.reshape(1, -1).clone())
        self.register_buffer("curvature", curvature)
        self.register_buffer("slope", slope)

    def forward(self) -> torch.Tensor:
        w = self.weight.reshape(-1)
        return 0.5 * w @ self.curvature @ w + self.slope @ w


def make_quadratic(eigenvalues: list[float], seed: int = 0) -> Quadratic:
    generator = torch.Generator().manual_seed(seed)
    size = len(eigenvalues)
    basis, _ = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    curvature = basis @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ basis.T
    slope, at = torch.randn(2, size, generator=generator, dtype=torch.float64)
    return Quadratic((curvature + curvature.T) / 2, slope, at)


def value_of(model: Any, batch: Any) -> torch.Tensor:
    return model()


def test_values_equal_direct_evaluation() -> None:
    model, batch = make_net(), make_batch()
    generator = torch.Generator().manual_seed(2)
    moves = [
        {
            name: torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            for name, tensor in model.named_parameters()
        }
        for _ in range(2)
    ]

    result = loss_surface(
        model, squared_error, batch, directions=[Direction(each) for each in moves], **QUIET,
        max_evaluations=120,
    )  # fmt: skip

    assert len(result.points) > 60
    for x, y, loss in result.points:
        direct = make_net()
        with torch.no_grad():
            for name, parameter in direct.named_parameters():
                parameter.add_(x * moves[0][name] + y * moves[1][name])
            assert loss == pytest.approx(squared_error(direct, batch).item(), abs=1e-6, rel=1e-12)
    assert result.center["loss"] == squared_error(make_net(), batch).item()
    assert result.parameter_count == 32


@pytest.mark.parametrize("dimensions", [1, 2])
def test_a_quadratic_has_its_analytic_values(dimensions: int) -> None:
    model = make_quadratic([5.0, 2.0, 1.0, 0.5, -0.3])
    generator = torch.Generator().manual_seed(3)
    moves = torch.randn(2, 5, generator=generator, dtype=torch.float64)[:dimensions]
    directions = [Direction({"weight": move.reshape(1, -1)}) for move in moves]

    result = loss_surface(
        model, value_of, None, directions=directions, dimensions=dimensions, **QUIET,
        max_evaluations=100,
    )  # fmt: skip

    w = model.weight.detach().reshape(-1)
    for x, y, loss in result.points:
        at = w + x * moves[0] + (y * moves[1] if dimensions == 2 else 0)
        expected = 0.5 * at @ model.curvature @ at + model.slope @ at
        assert loss == pytest.approx(float(expected), abs=1e-10)


def test_arrows_are_the_projected_negative_gradient() -> None:
    model = make_quadratic([5.0, 2.0, 1.0, 0.5])
    moves = torch.randn(2, 4, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    directions = [Direction({"weight": move.reshape(1, -1)}) for move in moves]

    result = loss_surface(model, value_of, None, directions=directions, max_evaluations=20, **QUIET)

    w = model.weight.detach().reshape(-1)
    assert len(result.arrows) == 49
    for x, y, dx, dy in result.arrows:
        at = w + x * moves[0] + y * moves[1]
        downhill = -(model.curvature @ at + model.slope)
        expected = torch.linalg.lstsq(moves.T, downhill.reshape(-1, 1)).solution.reshape(-1)
        assert [dx, dy] == pytest.approx(expected.tolist(), abs=1e-9)


def test_a_checkpoint_is_at_one(tmp_path: Path) -> None:
    model, batch = make_net(), make_batch()
    other = make_net(seed=5)
    torch.save(other.state_dict(), tmp_path / "other.pt")

    for checkpoint in (other.state_dict(), other, tmp_path / "other.pt"):
        result = loss_surface(
            model, squared_error, batch, directions=[checkpoint], dimensions=1,
            bounds=(-0.5, 1.5), max_evaluations=21, **QUIET,
        )  # fmt: skip
        at_one = [loss for x, _, loss in result.points if x == 1.0]
        assert at_one == [pytest.approx(squared_error(other, batch).item(), abs=1e-12)]


def test_the_plane_of_a_trajectory_goes_through_its_checkpoints() -> None:
    """Three points lie in one plane: their losses are those of the surface there."""
    model, batch = make_net(), make_batch()
    checkpoints = [(10, make_net(seed=6)), (20, make_net(seed=7))]

    result = loss_surface(
        model, squared_error, batch, directions="pca", trajectory=checkpoints,
        bounds=(-1.2, 1.2), max_evaluations=400, **QUIET,
    )  # fmt: skip

    assert [each["step"] for each in result.trajectory] == [10, 20]
    assert sum(each["explained"] for each in result.directions) == pytest.approx(1.0)
    for each, (_, checkpoint) in zip(result.trajectory, checkpoints, strict=True):
        assert each["loss"] == pytest.approx(squared_error(checkpoint, batch).item(), abs=1e-12)
    assert max(abs(each["x"]) for each in result.trajectory) == pytest.approx(1.0)
    nearest = min(
        result.points,
        key=lambda p: (
            (p[0] - result.trajectory[0]["x"]) ** 2 + (p[1] - result.trajectory[0]["y"]) ** 2
        ),
    )
    assert nearest[2] == pytest.approx(result.trajectory[0]["loss"], rel=0.3)


def trained_path(seed: int) -> tuple[nn.Module, list[tuple[int, dict[str, torch.Tensor]]]]:
    """A model after a short training, and its weights before and on the way."""
    model, batch = make_net(torch.float32, seed), make_batch(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    path = []
    for step in range(25):
        if step % 3 == 0:
            path.append((step, {k: v.clone() for k, v in model.state_dict().items()}))
        optimizer.zero_grad()
        squared_error(model, batch).backward()
        optimizer.step()
    return model, path


@pytest.mark.parametrize("seed", range(5))
def test_the_plane_of_a_path_holds_all_of_it_with_a_margin(seed: int) -> None:
    model, path = trained_path(seed)

    result = loss_surface(
        model, squared_error, make_batch(torch.float32), directions="pca", trajectory=path,
        max_evaluations=25, arrows=False, **QUIET,
    )  # fmt: skip

    assert result.trajectory[0]["step"] == 0
    for axis, edges in (("x", result.x), ("y", result.y)):
        places = [0.0, *(each[axis] for each in result.trajectory)]
        extent = max(places) - min(places)
        assert min(places) - edges[0] == pytest.approx(0.25 * extent)
        assert edges[-1] - max(places) == pytest.approx(0.25 * extent)
        assert max(map(abs, places)) == pytest.approx(1.0)
    assert not any("beyond the bounds" in each for each in result.note)


@pytest.mark.parametrize("seed", range(5))
def test_the_path_is_oriented_as_that_of_the_trajectory(seed: int) -> None:
    model, path = trained_path(seed)
    last = (25, model.state_dict())

    surface = loss_surface(
        model, squared_error, make_batch(torch.float32), directions="pca",
        trajectory=[*path, last], max_evaluations=25, arrows=False, **QUIET,
    )  # fmt: skip
    (drawn,) = trajectory([weights for _, weights in [*path, last]], save=False).runs

    assert drawn["x"][-1] > drawn["x"][0]
    for axis in ("x", "y"):
        mine = torch.tensor([each[axis] for each in surface.trajectory])
        other = torch.tensor(drawn[axis])
        assert torch.corrcoef(torch.stack([mine, other]))[0, 1] > 0.95


def test_checkpoints_beyond_given_bounds_are_counted() -> None:
    model, path = trained_path(0)

    result = loss_surface(
        model, squared_error, make_batch(torch.float32), directions="pca", trajectory=path,
        bounds=(-0.1, 0.1), max_evaluations=25, arrows=False, **QUIET,
    )  # fmt: skip

    assert any(each.startswith("8 of 9 checkpoints") for each in result.note), result.note


def test_a_bowl_is_done_within_the_tolerance() -> None:
    model = make_quadratic([5.0, 2.0, 1.0, 0.5, 0.3])

    done = loss_surface(model, value_of, None, arrows=False, **QUIET)
    whole = loss_surface(model, value_of, None, arrows=False, tolerance=0, **QUIET)

    assert done.evaluations <= 120
    assert whole.evaluations > 1000
    assert done.estimated_error == pytest.approx(0.0, abs=1e-12)
    assert torch.tensor(done.loss).sub(torch.tensor(whole.loss)).abs().max() < 1e-9


def test_a_model_from_a_folder_is_named_without_the_path() -> None:
    model = make_net()
    model.config = SimpleNamespace(_name_or_path="/tmp/pytest-7/checkpoint-500")

    result = loss_surface(model, squared_error, make_batch(), max_evaluations=9, **QUIET)

    assert result.model == "checkpoint-500"
    model.config._name_or_path = "meta-llama/Llama-3.2-1B"
    result = loss_surface(model, squared_error, make_batch(), max_evaluations=9, **QUIET)
    assert result.model == "meta-llama/Llama-3.2-1B"


def test_the_norms_tell_what_a_coordinate_means() -> None:
    model = make_net()

    result = loss_surface(model, squared_error, make_batch(), max_evaluations=9, **QUIET)

    weights = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
    assert result.weights_norm == pytest.approx(float(weights.norm()))
    # Filter-normalised: as long as the matrices, of which biases are no part.
    matrices = torch.cat([each.weight.detach().reshape(-1) for each in (model[0], model[2])])
    for each in result.directions:
        assert each["norm"] == pytest.approx(float(matrices.norm()), rel=1e-6)


class Valley(nn.Module):
    """Rosenbrock's function, which is never negative."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, 2, dtype=torch.float64))

    def forward(self) -> torch.Tensor:
        x, y = self.weight[0]
        return (1 - x) ** 2 + 100 * (y - x * x) ** 2


def along_the_axes() -> list[Direction]:
    return [Direction({"weight": row.reshape(1, 2)}) for row in torch.eye(2, dtype=torch.float64)]


@pytest.mark.parametrize("budget", [400, 1089])
def test_no_shown_loss_is_below_the_lowest_evaluated_one(budget: int) -> None:
    result = loss_surface(
        Valley(), value_of, None, directions=along_the_axes(), arrows=False,
        bounds=[(-2, 2), (-1, 3)], max_evaluations=budget, **QUIET,
    )  # fmt: skip

    (minimum,) = result.features
    evaluated = {(x, y): loss for x, y, loss in result.points}
    assert minimum["evaluated"]
    assert minimum["loss"] == evaluated[minimum["x"], minimum["y"]]
    shown = min(min(row) for row in result.loss)
    assert shown >= min(evaluated.values()) >= 0


def test_a_part_of_a_surface_is_sampled_more_finely() -> None:
    """With the points of the surface, and as many of its own as it needs."""
    model, calls = Valley(), count()

    def counted(model: Any, batch: Any) -> torch.Tensor:
        next(calls)
        return value_of(model, batch)

    arguments: dict[str, Any] = {"directions": along_the_axes(), "arrows": False, **QUIET}
    whole = loss_surface(model, counted, None, bounds=[(-2, 2), (-1, 3)], **arguments)
    before = next(calls)
    finer = loss_surface(
        model,
        counted,
        None,
        bounds=[(0.5, 1.4), (0.6, 1.4)],
        refine=whole,
        tolerance=0,
        **arguments,
    )

    own = next(calls) - before - 1
    (region,) = finer.regions
    for values, wanted in ((region["x"], (0.5, 1.4)), (region["y"], (0.6, 1.4))):
        assert values[0] <= wanted[0]
        assert values[-1] >= wanted[1]
        assert values[-1] - values[0] <= 2 * (wanted[1] - wanted[0])
    known = {(x, y) for x, y, _ in whole.points}
    inside = {
        (x, y)
        for x, y, _ in finer.points
        if region["x"][0] <= x <= region["x"][-1] and region["y"][0] <= y <= region["y"][-1]
    }
    assert len(inside & known) > 50
    assert own <= len(inside - known) + 4
    assert finer.evaluations == whole.evaluations + own
    assert (finer.x, finer.loss, finer.center) == (whole.x, whole.loss, whole.center)

    def error(surface: dict[str, Any]) -> float:
        x, y = torch.meshgrid(torch.tensor(surface["x"]), torch.tensor(surface["y"]), indexing="xy")
        true = (1 - x) ** 2 + 100 * (y - x * x) ** 2
        near = (x > 0.5) & (x < 1.4) & (y > 0.6) & (y < 1.4)
        return float((torch.tensor(surface["loss"]) - true).abs()[near].max())

    assert error(region) < 0.1 * error(whole.to_json())
    assert LossSurface.from_json(json.loads(json.dumps(finer.to_json()))) == finer


def test_a_part_of_another_surface_is_refused() -> None:
    model = Valley()
    arguments: dict[str, Any] = {"directions": along_the_axes(), "arrows": False, **QUIET}
    whole = loss_surface(model, value_of, None, max_evaluations=25, **arguments)

    with pytest.raises(SurfaceError, match="not within those of the surface, -1 to 1"):
        loss_surface(model, value_of, None, bounds=(0.5, 1.4), refine=whole, **arguments)
    with pytest.raises(ValueError, match="needs the `bounds` of a region"):
        loss_surface(model, value_of, None, refine=whole, **arguments)
    with torch.no_grad():
        model.weight.fill_(0.1)
    with pytest.raises(SurfaceError, match="a surface of other weights, directions or data"):
        loss_surface(model, value_of, None, bounds=(0.1, 0.3), refine=whole, **arguments)


def test_hessian_directions_are_eigenvectors() -> None:
    model = make_quadratic([-7.0, 4.0, 1.0, 0.5, 0.2])

    result = loss_surface(model, value_of, None, directions="hessian", max_evaluations=100, **QUIET)

    found = [each["eigenvalue"] for each in result.directions]
    assert found == pytest.approx([-7.0, 4.0], rel=1e-6)


def test_the_sharpness_is_that_of_the_centre() -> None:
    model, batch = make_net(), make_batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    result = loss_surface(
        model, squared_error, batch, optimizer=optimizer, max_evaluations=9, **QUIET
    )

    alone = sharpness(model, squared_error, batch, optimizer=optimizer)
    assert result.sharpness is not None
    assert result.sharpness["eigenvalues"] == pytest.approx(alone.eigenvalues, rel=1e-9)
    assert result.sharpness["limit"] == 20.0


def test_the_gradient_direction_goes_down() -> None:
    model, batch = make_net(), make_batch()

    result = loss_surface(
        model, squared_error, batch, directions="gradient", dimensions=1, max_evaluations=41,
        bounds=(-0.1, 0.1), **QUIET,
    )  # fmt: skip

    losses = [loss for _, _, loss in sorted(result.points)]
    assert losses == sorted(losses, reverse=True)


def test_only_the_chosen_weights_move() -> None:
    model, batch = make_net(), make_batch()
    seen = set()

    def watching(model: Any, batch: Any) -> torch.Tensor:
        seen.add((float(model[0].weight.sum()), float(model[2].weight.sum())))
        return squared_error(model, batch)

    result = loss_surface(
        model, watching, batch, parameters="2", dimensions=1, max_evaluations=9, **QUIET
    )

    assert len({first for first, _ in seen}) == 1
    assert len({second for _, second in seen}) > 5
    assert result.parameter_count == 12
    assert result.selection == "2"


def test_adapters_of_peft_move_alone() -> None:
    need("peft", "transformers")
    import peft

    torch.manual_seed(0)
    model = peft.get_peft_model(
        make_net(torch.float32), peft.LoraConfig(r=2, target_modules=["0"], init_lora_weights=False)
    )

    result = loss_surface(
        model, squared_error, make_batch(torch.float32), parameters="*lora*", max_evaluations=25,
        **QUIET,
    )  # fmt: skip

    assert result.parameter_count == 2 * (3 + 5)
    assert len({loss for _, _, loss in result.points}) > 10


def test_adapters_before_their_first_step_have_a_flat_surface() -> None:
    need("peft", "transformers")
    import peft

    model = peft.get_peft_model(make_net(torch.float32), peft.LoraConfig(r=2, target_modules=["0"]))

    result = loss_surface(
        model, squared_error, make_batch(torch.float32), max_evaluations=9, **QUIET
    )

    assert "LoRA adapters before their first step" in result.note[0]


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_dropout_makes_no_noise(mode: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 20), nn.Dropout(0.5), nn.BatchNorm1d(20), nn.Linear(20, 2))
    model.train()
    batch = make_batch(torch.float32)

    one, two = (
        loss_surface(model, squared_error, batch, max_evaluations=30, mode=mode, **QUIET)
        for _ in range(2)
    )

    assert one.points == two.points
    assert one.note == []


def test_train_mode_uses_dropout_and_the_statistics_of_the_batch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 20), nn.Dropout(0.5), nn.BatchNorm1d(20), nn.Linear(20, 2))
    batch = make_batch(torch.float32)

    one, two = (
        loss_surface(model, squared_error, batch, max_evaluations=9, mode=mode, **QUIET)
        for mode in ("eval", "train")
    )

    assert one.center["loss"] == squared_error(model.eval(), batch).item()
    assert two.center["loss"] != one.center["loss"]


def test_a_noisy_loss_is_reported() -> None:
    generator = torch.Generator().manual_seed(0)

    def noisy(model: Any, batch: Any) -> torch.Tensor:
        return squared_error(model, batch) + torch.rand((), generator=generator)

    result = loss_surface(make_net(), noisy, make_batch(), max_evaluations=9, **QUIET)

    assert "is not deterministic" in result.note[0]


def test_losses_that_are_not_finite_are_holes() -> None:
    def with_hole(model: Any, batch: Any) -> torch.Tensor:
        loss = squared_error(model, batch)
        return torch.where(loss > 1.1, torch.nan, loss)

    result = loss_surface(make_net(), with_hole, make_batch(), max_evaluations=100, **QUIET)

    holes = sum(loss is None for _, _, loss in result.points)
    assert holes
    assert f"at {holes} of" in result.note[0]
    json.dumps(result.to_json(), allow_nan=False)


def test_a_loss_that_is_nan_everywhere_is_reported() -> None:
    def no_number(model: Any, batch: Any) -> torch.Tensor:
        return squared_error(model, batch) * torch.nan

    result = loss_surface(make_net(), no_number, make_batch(), max_evaluations=9, **QUIET)

    assert result.center["loss"] is None
    assert "The loss at the centre is nan." in result.note


def test_weights_that_are_nan_are_an_error() -> None:
    model = make_net()
    model[0].weight.data[0, 0] = float("nan")

    with pytest.raises(SurfaceError, match="weights hold NaN or infinite values"):
        loss_surface(model, squared_error, make_batch(), **QUIET)


def test_several_batches_are_weighted_by_their_sizes() -> None:
    inputs, targets = make_batch(size=12)
    parts = [(inputs[:2], targets[:2]), (inputs[2:], targets[2:])]

    one, two = (
        loss_surface(make_net(), squared_error, batch, max_evaluations=9, **QUIET)
        for batch in ((inputs, targets), parts)
    )

    for a, b in zip(one.points, two.points, strict=True):
        assert a == pytest.approx(b, abs=1e-12)
    for a, b in zip(one.arrows, two.arrows, strict=True):
        assert a == pytest.approx(b, abs=1e-12)


def test_weights_cast_by_an_outer_autocast_are_not_reused() -> None:
    model, batch = make_net(torch.float32), make_batch(torch.float32)

    def inside(model: Any, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return squared_error(model, batch)

    expected = loss_surface(model, inside, batch, max_evaluations=16, **QUIET)
    with torch.autocast("cpu", torch.bfloat16):
        model(batch[0])
        result = loss_surface(model, inside, batch, max_evaluations=16, **QUIET)

    assert result.points == expected.points
    assert len({loss for _, _, loss in result.points}) > 8


CONFIGURATIONS = st.fixed_dictionaries(
    MODELS
    | {
        "end": st.sampled_from(ENDS),
        "end_at": st.integers(1, 40),
        "directions": st.sampled_from(["random", "hessian", "gradient"]),
        "dimensions": st.sampled_from([1, 2]),
        "mode": st.sampled_from(["eval", "train"]),
        "with_optimizer": st.booleans(),
        "nan_at": st.integers(1, 80),
    }
)


# 100 configurations in `make fuzz`.
@settings(max_examples=max(10, settings.default.max_examples // 100))
@given(CONFIGURATIONS)
def test_training_afterwards_equals_training_without(configuration: dict[str, Any]) -> None:
    check_restored(configuration, measure)


def measure(model: nn.Module, optimizer: Any, configuration: dict[str, Any]) -> None:
    calls = 0

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == configuration["end_at"] and configuration["end"] is not None:
            raise configuration["end"]
        loss = loss_of(model)
        return loss * float("nan") if calls == configuration["nan_at"] else loss

    loss_surface(
        model,
        loss_fn,
        None,
        directions=configuration["directions"],
        dimensions=configuration["dimensions"],
        mode=configuration["mode"],
        optimizer=optimizer if configuration["with_optimizer"] else None,
        max_evaluations=12,
        **QUIET,
    )


def test_an_error_of_the_loss_function_is_raised_as_it_is() -> None:
    def failing(model: Any, batch: Any) -> torch.Tensor:
        raise KeyError("labels")

    with pytest.raises(KeyError, match="labels") as raised:
        loss_surface(make_net(), failing, make_batch(), **QUIET)
    assert raised.value.__notes__ == ["The loss function raised this; the model is restored."]


def test_a_batch_that_does_not_fit_says_what_to_do() -> None:
    model = make_net()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    calls = []

    def large(model: Any, batch: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 5:
            torch.empty(1 << 50)
        return squared_error(model, batch)

    with pytest.raises(SurfaceError, match=r"does not fit in the memory of cpu .* smaller batch"):
        loss_surface(model, large, make_batch(), **QUIET)
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())


def test_points_survive_ctrl_c_in_the_cache(tmp_path: Path) -> None:
    model, batch = make_net(), make_batch()
    calls = count(1)

    def slow(model: Any, batch: Any) -> torch.Tensor:
        if next(calls) == 30:
            signal.raise_signal(signal.SIGINT)
        return squared_error(model, batch)

    arguments: dict[str, Any] = {"max_evaluations": 49, "cache": tmp_path, "progress": None}
    with pytest.raises(KeyboardInterrupt):
        loss_surface(model, slow, batch, arrows=False, **arguments)
    first = loss_surface(model, slow, batch, arrows=False, **arguments)
    again = loss_surface(model, slow, batch, arrows=False, **arguments)
    fresh = loss_surface(model, slow, batch, arrows=False, **{**arguments, "cache": False})

    assert again.evaluations == 2
    assert 2 < first.evaluations < fresh.evaluations
    assert sorted(again.points) == sorted(first.points) == sorted(fresh.points)


def scaled_error(factor: float, model: Any, batch: Any) -> torch.Tensor:
    return factor * squared_error(model, batch)


def test_another_loss_another_batch_or_other_weights_are_not_taken_from_the_cache(
    tmp_path: Path,
) -> None:
    arguments: dict[str, Any] = {"max_evaluations": 16, "cache": tmp_path, "progress": None}
    loss = functools.partial(scaled_error, 1.0)
    double = functools.partial(scaled_error, 2.0)
    inputs, targets = make_batch()
    loss_surface(make_net(), loss, (inputs, targets), arrows=False, **arguments)

    for changed in (
        loss_surface(make_net(), double, (inputs, targets), arrows=False, **arguments),
        loss_surface(make_net(), loss, (inputs, targets + 1), arrows=False, **arguments),
        loss_surface(make_net(seed=8), loss, (inputs, targets), arrows=False, **arguments),
        loss_surface(make_net(), loss, (inputs, targets), arrows=False, seed=9, **arguments),
    ):
        assert changed.evaluations > 2


def test_the_result_is_json_and_comes_back() -> None:
    result = loss_surface(make_net(), squared_error, make_batch(), max_evaluations=16, **QUIET)

    assert LossSurface.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_a_monitored_run_keeps_the_result_and_sees_no_training_in_it(
    recorded: Callable[[], dict[int, list[Record]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["sentinel.insight.surface.loss_surface"]
    monkeypatch.setattr(module, "_SAVE_SECONDS", 0.0)
    notes: list[list[str]] = []

    def save(directory: Path, result: LossSurface) -> None:
        notes.append(result.note)
        save_artifact(directory, result)

    monkeypatch.setattr(module, "save_artifact", save)
    model, batch = make_net(), make_batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []

    @sentinel.monitor(run="surface", agent=False)
    def run() -> None:
        for step in range(4):
            if step == 2:
                found.append(loss_surface(model, squared_error, batch, name="middle",
                    max_evaluations=9, **QUIET))  # fmt: skip
                found.append(current_run_directory())
            optimizer.zero_grad()
            squared_error(model, batch).backward()
            optimizer.step()

    run()

    (records,) = recorded().values()
    phases = [r.attributes for r in records if r.event is Event.PHASE]
    assert phases == [{"name": "insight", "edge": edge} for edge in ("begin", "end")]
    assert sum("loss" in record.values for record in records) == 4
    (header,) = list_artifacts(found[1])
    assert (header["kind"], header["name"], header["step"]) == ("loss_surface", "middle", 2)
    stored = load_artifact(found[1], header["id"])["data"]
    assert LossSurface.from_json(stored).points == found[0].points
    assert "It is being computed" in notes[0][0]
    assert notes[-1] == []


def test_a_long_measurement_in_a_monitored_run_is_no_stall() -> None:
    model, batch = make_net(), make_batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    signs: list[int] = []

    def watched(model: Any, batch: Any) -> torch.Tensor:
        assert CurrentSession.recorder is not None
        signs.append(CurrentSession.recorder.ring.words[WORD_ACTIVITY_COUNT])
        return squared_error(model, batch)

    @sentinel.monitor(run="long", agent=False)
    def run() -> None:
        loss_surface(model, watched, batch, optimizer=optimizer, max_evaluations=9, **QUIET)

    run()

    assert len(signs) > 9 + 49
    assert len(set(signs)) == len(signs)


def test_progress_is_estimated_before_and_shown_while_it_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[Any] = []

    loss_surface(
        make_net(), squared_error, make_batch(), max_evaluations=49, cache=False,
        progress=seen.append,
    )  # fmt: skip

    assert seen[0].evaluations == 0
    assert seen[0].seconds_left > 0
    assert seen[-1].evaluations == seen[-1].max_evaluations - 1 == 48
    assert any(each.surface is not None for each in seen)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"dimensions": 3}, ValueError, "`dimensions` must be 1 or 2"),
        ({"bounds": (1, -1)}, ValueError, "low < high"),
        ({"max_evaluations": 2}, ValueError, "at least 9"),
        ({"tolerance": -1.0}, ValueError, "`tolerance` must be a share of at least 0"),
        ({"mode": "test"}, ValueError, '"eval" or "train"'),
        ({"directions": "newton"}, SurfaceError, "must be one of random, hessian, pca, gradient"),
        ({"directions": "pca"}, SurfaceError, "needs a `trajectory` of at least 2 checkpoints"),
        ({"directions": [make_net(), make_net()]}, SurfaceError, "must move the weights"),
        ({"directions": "pca", "trajectory": 3}, SurfaceError, "a folder of checkpoints .* int"),
        ({"parameters": "9"}, ValueError, "No parameter matches '9'"),
        ({"progress": 3}, TypeError, "`progress` must be"),
    ],
)
def test_bad_arguments_say_what_to_do(arguments: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        loss_surface(make_net(), squared_error, make_batch(), **{**QUIET, **arguments})


def test_a_recorded_trajectory_has_no_directions() -> None:
    recorder = TrajectoryRecorder(make_net())

    for each in (recorder, recorder.result()):
        with pytest.raises(SurfaceError, match=r"random projections .* save checkpoints"):
            loss_surface(
                make_net(), squared_error, make_batch(), directions="pca", trajectory=each, **QUIET
            )


def test_parallel_directions_span_no_plane() -> None:
    other = make_net(seed=3)

    with pytest.raises(SurfaceError, match="are parallel"):
        loss_surface(make_net(), squared_error, make_batch(), directions=[other, other], **QUIET)


def test_a_loss_of_several_numbers_is_refused() -> None:
    def per_example(model: Any, batch: Any) -> torch.Tensor:
        return (model(batch[0]) - batch[1]).square().mean(1)

    with pytest.raises(SurfaceError, match=r"returned \[16\]: it must return one number"):
        loss_surface(make_net(), per_example, make_batch(), **QUIET)


def test_a_loss_without_a_gradient_has_a_surface_without_arrows() -> None:
    def number(model: Any, batch: Any) -> float:
        return squared_error(model, batch).item()

    result = loss_surface(make_net(), number, make_batch(), max_evaluations=9, **QUIET)

    assert result.arrows == []
    assert "There are no arrows" in result.note[0]


def test_a_hessian_that_is_not_finite_leaves_the_surface() -> None:
    model, batch = make_net(), make_batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def edge(model: Any, batch: Any) -> torch.Tensor:
        """A root, whose derivative is infinite where the loss is that of the centre."""
        return (squared_error(model, batch) - center).abs().sqrt()

    center = squared_error(model, batch).detach()
    result = loss_surface(model, edge, batch, optimizer=optimizer, max_evaluations=25, **QUIET)

    assert result.sharpness is None
    assert "There is no sharpness: The Hessian has values that are not finite" in result.note[-1]
    assert len({loss for _, _, loss in result.points}) > 10


def test_points_are_denser_where_it_is_asked_for() -> None:
    near, plain = (
        loss_surface(
            make_net(), squared_error, make_batch(), arrows=False, max_evaluations=200,
            density=density, **QUIET,
        )
        for density in (denser_near([(0.5, 0.5)], 0.2, factor=10), None)
    )  # fmt: skip

    def count_near(result: LossSurface) -> int:
        return sum(math.dist((x, y), (0.5, 0.5)) < 0.2 for x, y, _ in result.points)

    assert count_near(near) > 2 * count_near(plain)


def test_it_works_under_inference_mode() -> None:
    model, batch = make_net(), make_batch()
    with torch.inference_mode():
        result = loss_surface(model, squared_error, batch, max_evaluations=9, **QUIET)
    assert len(result.arrows) == 49


def test_tied_weights_move_together() -> None:
    torch.manual_seed(0)
    model = Net(tied=True, norm=False, dropout=0.0, dtype=torch.float32)
    configuration = {"autocast": False}

    with autocast(configuration):
        result = loss_surface(model, lambda m, _: loss_of(m), None, max_evaluations=9, **QUIET)

    assert result.parameter_count == sum(each.numel() for each in model.parameters())
