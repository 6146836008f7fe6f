"""Paths of weights: known planes and lengths, recorded and from checkpoints."""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from math import pi

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from support.fake_device import Ops, waiting_operations
from torch import nn

import sentinel
from sentinel.insight.trajectory.saved_weights import CheckpointError
from sentinel.insight.trajectory.trajectory import Trajectory, TrajectoryRecorder, trajectory
from sentinel.store.artifact import current_run_directory, list_artifacts, load_artifact

pytestmark = pytest.mark.usefixtures("one_thread")


START = torch.tensor([3.0, 0.0, 4.0])


class Point(nn.Module):
    """A model that is a point."""

    def __init__(self, at=START):
        super().__init__()
        self.at = nn.Parameter(at.clone())

    def move_to(self, at):
        with torch.no_grad():
            self.at.copy_(torch.as_tensor(at))


def recorded(points, **options):
    """A recorder that saw these points, whose losses are 0.5 each."""
    model = Point(torch.as_tensor(points[0], dtype=torch.float32))
    recorder = TrajectoryRecorder(model, **options)
    for step, point in enumerate(points):
        model.move_to(point)
        recorder.record(step, torch.tensor(0.5))
    return recorder


def checkpoints(points):
    return [{"at": torch.as_tensor(point, dtype=torch.float32)} for point in points]


SOURCES = {"recorded": lambda points: recorded(points, projection_size=1024), "saved": checkpoints}
TOLERANCE = {"recorded": 0.1, "saved": 1e-5}
"""Of distances: four standard errors, and none."""
LINE = [(3.0 + t, 2.0 * t, 4.0 - 2.0 * t) for t in (0, 1, 2, 4)]


@pytest.mark.parametrize("source", SOURCES)
def test_a_straight_line(source):
    result = trajectory(SOURCES[source](LINE))
    (run,) = result.runs
    assert run["straightness"] == pytest.approx(1, abs=1e-6)
    assert result.explained == pytest.approx([1, 0], abs=1e-9)
    places = 3 * np.array([-1.75, -0.75, 0.25, 2.25])
    np.testing.assert_allclose(run["x"], places, rtol=TOLERANCE[source])
    np.testing.assert_allclose(run["y"], 0, atol=1e-6)
    # Relative to the initial norm, 5.
    np.testing.assert_allclose(run["distance_to_initial"], [0, 0.6, 1.2, 2.4], rtol=1e-6)
    travelled = [0, 0.6, 1.2, 2.4]
    np.testing.assert_allclose(run["distance_travelled"], travelled, rtol=TOLERANCE[source])
    assert run["initial_norm"] == pytest.approx(5)
    assert (result.step, result.parameter_count) == (3, 3)


@pytest.mark.parametrize("source", SOURCES)
def test_a_circle(source):
    angles = np.linspace(0, 2 * pi, 41)
    circle = np.stack([np.cos(angles), np.sin(angles), np.zeros(41)], axis=1)
    (run,) = (result := trajectory(SOURCES[source](circle))).runs
    assert result.explained == pytest.approx([0.5, 0.5], abs=0.05)
    assert run["straightness"] == pytest.approx(0, abs=1e-6)
    assert run["distance_travelled"][-1] == pytest.approx(2 * pi, rel=TOLERANCE[source] + 2e-3)
    assert max(run["distance_to_initial"]) == pytest.approx(2, rel=2e-3)
    radii = np.hypot(np.array(run["x"]), np.array(run["y"]))
    np.testing.assert_allclose(radii, 1, rtol=TOLERANCE[source] + 0.03)


@pytest.mark.parametrize("source", SOURCES)
def test_two_runs_in_one_plane(source):
    """From one start, to the left and ahead: the plane has the places up to a rotation."""
    left = [(3.0 + t, 0.0, 4.0) for t in range(5)]
    ahead = [(3.0, 2.0 * t, 4.0) for t in range(3)]
    runs = {"left": SOURCES[source](left), "ahead": SOURCES[source](ahead)}
    first, second = trajectory(runs).runs
    assert (first["name"], second["name"]) == ("left", "ahead")
    places = [np.array([run["x"], run["y"]]).T for run in (first, second)]
    assert places[0][0] == pytest.approx(places[1][0], abs=1e-6)
    gap = np.linalg.norm(places[0][4] - places[1][2])
    assert gap == pytest.approx(np.hypot(4, 4), rel=TOLERANCE[source])


def test_recorded_runs_and_checkpoints_in_one_plane(tmp_path):
    recorder = recorded(LINE)
    stored = tmp_path / "run-a" / "insight" / "trajectory.json"
    stored.parent.mkdir(parents=True)
    stored.write_text(json.dumps({"data": recorder.result(name="lr 1").to_json()}))
    merged = trajectory([recorder, recorder.result(name="lr 2"), stored, checkpoints(LINE)])
    assert [run["name"] for run in merged.runs] == ["run 1", "lr 2", "run-a", "run 4"]
    for run in merged.runs[1:]:
        np.testing.assert_allclose(run["x"], merged.runs[0]["x"], atol=1e-5)
    other = recorded(LINE, seed=1)
    with pytest.raises(ValueError, match="different parameters, sizes or seeds"):
        trajectory([recorder, other])
    with pytest.raises(ValueError, match="has no projections"):
        trajectory([recorder, merged])


def test_the_result_is_plain_data():
    result = recorded(LINE, reference={"at": torch.zeros(3)}).result(name="policy")
    text = json.dumps(result.to_json(), allow_nan=False)
    assert Trajectory.from_json(json.loads(text)) == result
    assert "standard error of 3.5 %" in result.note[0]
    assert result.note[1] == "Distances to the initial and the reference weights are exact."
    with pytest.raises(ValueError, match="no trajectory"):
        Trajectory.from_json({"kind": "loss_surface"})


@pytest.mark.parametrize("exact", [True, False])
def test_distances_to_initial_and_reference(exact):
    """From a checkpoint each; estimated where no copy of them is kept."""
    torch.manual_seed(0)
    model = nn.Linear(100, 50)
    initial = {name: each.clone() for name, each in model.state_dict().items()}
    reference = {name: each + 0.1 for name, each in initial.items()}
    with torch.no_grad():
        model.weight += 1e-4 * torch.randn(50, 100)
    recorder = TrajectoryRecorder(model, initial=initial, reference=reference, exact=exact)
    recorder.record(7)
    (run,) = recorder.result().runs
    norm = sum(float(each.double().square().sum()) for each in initial.values()) ** 0.5

    def gap(others):
        pairs = zip(model.state_dict().values(), others.values(), strict=True)
        return sum(float((a.double() - b.double()).square().sum()) for a, b in pairs) ** 0.5 / norm

    tolerance = 1e-6 if exact else 5 * recorder.projection.error
    assert run["distance_to_initial"] == pytest.approx([gap(initial)], rel=tolerance)
    assert run["distance_to_reference"] == pytest.approx([gap(reference)], rel=tolerance)
    assert run["initial_norm"] == pytest.approx(norm)
    assert run["distance_travelled"] == pytest.approx([gap(initial)], rel=0.16)


@settings(max_examples=max(10, settings.default.max_examples // 20))
@given(
    st.lists(st.lists(st.integers(0, 30), max_size=3).map(tuple), min_size=1, max_size=4),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    st.integers(2, 5),
)
def test_distances_of_any_shapes_and_types(shapes, kind, most):
    """Exact to the initial weights; the length of the path within six standard errors."""
    torch.manual_seed(0)
    model = nn.ParameterList([nn.Parameter(torch.randn(shape).to(kind)) for shape in shapes])

    def flat():
        return torch.cat([each.detach().double().reshape(-1) for each in model])

    recorder = TrajectoryRecorder(model, max_snapshots=most)
    places = [flat()]
    for step in range(12):
        with torch.no_grad():
            for each in model:
                each.add_(torch.randn_like(each), alpha=0.1)
        recorder.record(step)
        places.append(flat())
    (run,) = trajectory(Trajectory.from_json(recorder.result().to_json())).runs
    norm = float(places[0].norm()) or 1.0
    kept = [float((places[step + 1] - places[0]).norm()) / norm for step in run["steps"]]
    assert run["distance_to_initial"] == pytest.approx(kept, rel=1e-5)
    travelled = sum(float((b - a).norm()) for a, b in pairwise(places)) / norm
    error = recorder.projection.error
    assert run["distance_travelled"][-1] == pytest.approx(travelled, rel=6 * error)
    assert len(run["steps"]) <= most + 1
    assert run["steps"][-1] == 11


def test_snapshots_are_thinned_and_the_end_is_kept():
    """The path is as long as without thinning, since every record is measured."""
    zigzag = [(3.0 + t, t % 2, 4.0) for t in range(60)]
    recorder = recorded(zigzag, max_snapshots=10)
    assert len(recorder.steps) <= 11
    assert (recorder.steps[0], recorder.steps[-1]) == (0, 59)
    gaps = np.diff(recorder.steps[:-1])
    assert set(gaps) == {8}
    (run,) = recorder.result().runs
    (all_run,) = recorded(zigzag).result().runs
    assert run["distance_travelled"][-1] == pytest.approx(all_run["distance_travelled"][-1])
    assert run["distance_travelled"][-1] * 5 == pytest.approx(59 * 2**0.5, rel=0.13)


def test_a_resumed_recorder_continues_one_path(tmp_path):
    whole = recorded(LINE, max_snapshots=3)
    first = recorded(LINE[:2], max_snapshots=3)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    model = Point(torch.tensor(LINE[0]))
    resumed = TrajectoryRecorder(model, max_snapshots=3)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for step in (2, 3):
        model.move_to(LINE[step])
        resumed.record(step, 0.5)
    assert resumed.result() == whole.result()
    with pytest.raises(ValueError, match="make the recorder with the arguments"):
        TrajectoryRecorder(model, seed=1).load_state_dict(first.state_dict())


def test_a_recorder_made_after_the_weights_are_loaded():
    """Its initial weights are those of the state, at an estimated distance from then on."""
    first = recorded(LINE[:2])
    model = Point(torch.tensor(LINE[1]))
    resumed = TrajectoryRecorder(model)
    resumed.load_state_dict(first.state_dict())
    model.move_to(LINE[2])
    resumed.record(2)
    (run,) = resumed.result().runs
    assert run["distance_to_initial"] == pytest.approx([0, 0.6, 1.2], rel=0.13)
    assert "exact" not in " ".join(resumed.result().note)


def test_a_training_that_goes_back():
    recorder = recorded(LINE)
    recorder.record(2)
    assert recorder.steps == [0, 1, 2]
    (run,) = recorder.result().runs
    assert run["distance_travelled"][-1] == pytest.approx(2.4, rel=0.13)
    recorder.record(-5)
    assert recorder.steps == [-5]


def test_weights_that_are_not_finite_have_no_place():
    points = [*LINE, (torch.nan, 0.0, 0.0)]
    result = recorded(points).result()
    assert result.runs[0]["x"][-1] is None
    assert result.runs[0]["x"][:4] == pytest.approx(recorded(LINE).result().runs[0]["x"])
    assert "1 snapshots from step 4" in result.note[-1]
    for left_out in ([points[-1], *LINE], points):
        result = trajectory(checkpoints(left_out))
        assert result.runs[0]["x"] == pytest.approx(trajectory(checkpoints(LINE)).runs[0]["x"])
        assert "left out" in result.note[0]


@pytest.mark.parametrize("points", [[], [(torch.nan, 0.0, 0.0)]], ids=["none", "not finite"])
def test_a_recorder_without_a_finite_snapshot_has_no_path(points):
    model = Point()
    recorder = TrajectoryRecorder(model)
    for step, point in enumerate(points):
        model.move_to(point)
        recorder.record(step)

    result = trajectory(recorder)

    (run,) = result.runs
    assert run["x"] == run["y"] == [None] * len(points)
    assert result.explained == [0.0, 0.0]
    assert run["straightness"] is None
    assert trajectory([recorder, recorded(LINE)]).runs[0]["x"] == run["x"]


def test_records_leave_a_training_as_it_is():
    def train(recording):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        recorder = TrajectoryRecorder(model) if recording else None
        for step in range(5):
            loss = model(torch.randn(4, 5)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if recorder:
                recorder.record(step, loss)
            optimizer.step()
        return [*model.parameters(), torch.random.get_rng_state()]

    for a, b in zip(train(recording=True), train(recording=False), strict=True):
        assert torch.equal(a, b)


def test_a_model_that_is_moved_to_another_device():
    """What is recorded follows it. Only the CPU is here, so it moves to where it is."""
    model = Point(torch.tensor(LINE[0]))
    recorder = TrajectoryRecorder(model)
    for step, point in enumerate(LINE):
        model.move_to(point)
        recorder._move(torch.device("cpu"))
        recorder.record(step, 0.5)
    assert recorder.result() == recorded(LINE).result()


def test_the_result_is_stored_with_the_monitored_run():
    with sentinel.monitor(run="sft", agent=False):
        recorder = recorded(LINE)
        trajectory(recorder, name="policy")
        trajectory(recorder, save=False)
        directory = current_run_directory()
    (stored,) = list_artifacts(directory)
    assert stored["id"] == "trajectory-policy-3"
    data = load_artifact(directory, stored["id"])["data"]
    alike = trajectory([recorder, Trajectory.from_json(data)])
    assert alike.runs[1]["x"] == pytest.approx(alike.runs[0]["x"], abs=1e-6)
    assert data["note"] == recorder.result().note


def test_stored_results_that_are_large_or_damaged():
    result = recorded(LINE).result()
    data = result.to_json()
    for key, value in (("points", "????"), ("points", ""), ("size", "x"), ("initial", None)):
        damaged = Trajectory.from_json(data | {"projection": data["projection"] | {key: value}})
        with pytest.raises(ValueError, match="damaged"):
            trajectory([result, damaged])
    large = replace(result, projection=data["projection"] | {"points": "A" * (3 << 20)})
    assert large.to_json()["projection"] is None
    assert "too large to be stored" in large.to_json()["note"][-1]


def test_a_record_waits_for_no_device():
    """No value is read, and nothing is copied to another device: the kernels are only queued."""
    model = nn.Linear(50, 50)
    recorder = TrajectoryRecorder(model, reference=model, max_snapshots=4)
    loss = model(torch.randn(2, 50)).sum()

    def record():
        for step in range(10):
            recorder.record(step, loss)

    with Ops() as operations:
        record()
    assert waiting_operations(operations.seen) == {}
    assert sum(operations.seen.values()) > 100


def test_learning_rates_in_one_plane(tmp_path):
    """Two real trainings from one start, and one of them from its checkpoints too."""

    def train(rate):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1))
        inputs = torch.randn(64, 10)
        targets = inputs.sum(1, keepdim=True).sin()
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        recorder = TrajectoryRecorder(model)
        for step in range(41):
            loss = nn.functional.mse_loss(model(inputs), targets)
            if step % 10 == 0:
                recorder.record(step, loss)
                folder = tmp_path / str(rate) / f"checkpoint-{step}"
                folder.mkdir(parents=True)
                save_file(model.state_dict(), folder / "model.safetensors")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return recorder

    small, large = train(0.01), train(0.1)
    merged = trajectory({"small": small, "large": large, "saved": tmp_path / "0.1"})
    first, second, saved = merged.runs
    assert first["x"][0] == pytest.approx(second["x"][0])
    assert second["distance_travelled"][-1] > 3 * first["distance_travelled"][-1]
    assert second["loss"][-1] < first["loss"][-1] < first["loss"][0]
    np.testing.assert_allclose(saved["x"], second["x"], atol=1e-5)
    assert saved["steps"] == second["steps"] == [0, 10, 20, 30, 40]
    assert sum(merged.explained) > 0.95
    exact = trajectory([tmp_path / "0.01", tmp_path / "0.1"])
    assert [run["name"] for run in exact.runs] == ["0.01", "0.1"]
    for run, other in zip(exact.runs, (first, second), strict=True):
        assert run["distance_travelled"] == pytest.approx(other["distance_travelled"], rel=0.12)
        assert run["straightness"] == pytest.approx(other["straightness"], abs=0.05)


@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        ([], ValueError, "at least one"),
        ([[{"at": START}]] * 21, ValueError, "At most 20 runs"),
        ("nowhere", CheckpointError, "no checkpoint nowhere"),
        ([{"at": START}, {"at": torch.zeros(2)}], CheckpointError, "one model"),
        ([{"at": START * torch.nan}], CheckpointError, "No checkpoint has finite weights"),
    ],
)
def test_errors_name_what_to_do(source, error, text):
    with pytest.raises(error, match=text):
        trajectory(source)


def test_the_package_has_the_functions_beside_their_modules():
    """Whatever was imported before: `sentinel.insight.trajectory` is a function and a module."""
    script = (
        "import sys, sentinel.insight as insight\n"
        "assert not {'torch', 'numpy'} & {*sys.modules}, 'import sentinel.insight is cheap'\n"
        "import sentinel.insight.trajectory\n"
        "from sentinel.insight.trajectory.principal_directions import PrincipalDirections\n"
        "functions = insight.trajectory, insight.principal_directions, insight.importance\n"
        "assert all(map(callable, functions)), functions\n"
        "assert insight.TrajectoryRecorder and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_errors_of_a_recorder():
    with pytest.raises(ValueError, match="at least 2 snapshots"):
        TrajectoryRecorder(Point(), max_snapshots=1)
    with pytest.raises(ValueError, match="on the meta device"):
        TrajectoryRecorder(nn.Linear(2, 2, device="meta"))
    with pytest.raises(ValueError, match="give weights of the same model"):
        TrajectoryRecorder(Point(), reference={"at": torch.zeros(2)})
    recorder = TrajectoryRecorder(model := Point())
    with pytest.raises(ValueError, match="a tensor of one element"):
        recorder.record(0, torch.zeros(2))
    model.at = nn.Parameter(torch.zeros(4))
    with pytest.raises(ValueError, match="make a new recorder"):
        recorder.record(0)
