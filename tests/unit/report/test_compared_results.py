"""Results of several runs side by side: what there is, and their paths in one plane."""

from __future__ import annotations

import pytest
import torch
from support.insight_results import surface, trajectory

from sentinel.insight.trajectory.recorder import TrajectoryRecorder
from sentinel.report.compared_results import compared_results
from sentinel.store.artifact import save_artifact


@pytest.fixture
def directories(tmp_path):
    made = [tmp_path / name for name in ("a", "b", "c")]
    for each in made:
        each.mkdir()
    return made


def recorded(pull):
    """The path of weights that are pulled to a point."""
    torch.manual_seed(0)
    model = torch.nn.Linear(20, 10)
    recorder = TrajectoryRecorder(model, projection_size=32)
    for step in range(6):
        recorder.record(step, 1.0 / (step + 1))
        with torch.no_grad():
            model.weight.mul_(0.9).add_(pull)
    return recorder.result()


def test_runs_without_results_have_nothing_to_compare(directories):
    assert compared_results(["a", "b"], [directories[0], None]) is None


def test_the_results_of_each_run_are_listed(directories):
    save_artifact(directories[0], surface(3, size=5))
    found = compared_results(["a", "b", "log"], [*directories[:2], None])

    assert [[each["id"] for each in run] for run in found["results"]] == [
        ["loss_surface-3"], [], [],
    ]  # fmt: skip
    assert (found["trajectory"], found["problem"]) == (None, "")


def test_recorded_paths_are_put_into_one_plane(directories):
    for directory, pull in zip(directories, (0.1, -0.2, 0.3), strict=True):
        save_artifact(directory, recorded(pull))
    found = compared_results(["a", "b", "c"], directories)

    assert found["problem"] == ""
    runs = found["trajectory"]["runs"]
    assert [each["name"] for each in runs] == ["a", "b", "c"]
    # All begin at the same weights, which the plane shows.
    starts = [(each["x"][0], each["y"][0]) for each in runs]
    assert starts[1] == pytest.approx(starts[0], abs=1e-4)
    assert starts[2] == pytest.approx(starts[0], abs=1e-4)
    assert "projection" not in found["trajectory"]


def test_paths_that_do_not_fit_into_one_plane_say_why(directories):
    save_artifact(directories[0], recorded(0.1))
    save_artifact(directories[1], trajectory())
    found = compared_results(["a", "b"], directories[:2])

    assert found["trajectory"] is None
    assert "b has no projections" in found["problem"]


@pytest.mark.parametrize("runs", [[], [{}], 5, [None], [{"name": 1, "steps": "x"}]])
def test_damaged_trajectories_are_no_error(directories, runs):
    projection = {"digest": "x", "size": 8, "initial": "!", "points": 7}
    for directory in directories:
        save_artifact(directory, trajectory(runs=runs, projection=projection))
    found = compared_results(["a", "b", "c"], directories)

    assert found["trajectory"] is None
    assert found["problem"]
