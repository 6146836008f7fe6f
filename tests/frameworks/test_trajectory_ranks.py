"""The weights of replicated and sharded models are recorded as those of one process are."""

import json
from pathlib import Path

import pytest
from requirements import need

from sentinel.model.record import Event

need("torch")
pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

HERE = Path(__file__).parent
SHARDED = ("fsdp2", "hsdp", "columns")
CLOSE = {"rel": 1e-9, "abs": 1e-9}


@pytest.fixture
def ranks(run_ranks, tmp_path):
    run_ranks((HERE / "trajectory_ranks.py").read_text(), 2, OUT=str(tmp_path))
    return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]


def test_every_way_to_train_has_the_path_of_one_process(ranks, recorded):
    first, second = ranks
    plain = first["plain-False"]["result"]
    (path,) = plain["runs"]
    assert path["steps"] == [0, 2, 4, 5]
    assert path["distance_to_initial"][0] == 0
    assert min(path["distance_to_reference"]) > 0
    for case, found in first.items():
        name, all_reduce = case.split("-")
        same = found["result"]
        assert same["projection"]["digest"] == plain["projection"]["digest"], case
        (run,) = same["runs"]
        assert run["steps"] == path["steps"], case
        for key in ("x", "y", "loss", "distance_to_initial", "distance_to_reference"):
            assert run[key] == pytest.approx(path[key], **CLOSE), (case, key)
        if name in SHARDED and all_reduce == "False":
            # A lower bound, within four standard errors of the parts' lengths.
            for length, whole in zip(
                run["distance_travelled"], path["distance_travelled"], strict=True
            ):
                assert 0.85 * whole - 1e-9 <= length <= 1.13 * whole + 1e-9, case
        else:
            assert run["distance_travelled"] == pytest.approx(path["distance_travelled"], **CLOSE)
        if name in SHARDED:
            assert second[case]["result"] == same, case
        else:
            assert second[case]["result"]["runs"] == []
            assert "Rank 0 records" in second[case]["result"]["note"][0]
    _check_collectives(first)
    _check_resumes(first)
    _check_signals(recorded(), path)


def _check_collectives(found):
    """Records run one only if that was asked for; the result says what it needs."""
    for case, each in found.items():
        name, all_reduce = case.split("-")
        is_asked_for = name in SHARDED and all_reduce == "True"
        assert (each["collectives"] > 0) == is_asked_for, case
        assert each["collectives"] <= 7, case
        needs_sum = name in SHARDED and all_reduce == "False"
        assert ("all_reduce() on every rank" in each["problem"]) == needs_sum, case


def _check_resumes(found):
    for case in ("fsdp2-False", "fsdp2-True"):
        (continued,), (resumed,) = (found[case][key]["runs"] for key in ("continued", "resumed"))
        assert resumed["steps"] == continued["steps"]
        assert resumed["steps"][-1] == 6
        assert resumed["x"] == pytest.approx(continued["x"], **CLOSE)
        tolerance = 0.1 if case == "fsdp2-False" else 1e-9
        assert resumed["distance_travelled"] == pytest.approx(
            continued["distance_travelled"], rel=tolerance
        )


def _check_signals(records, path):
    """Rank 0 logs the distances, relative to the initial norm, where it knows them."""
    logged = {}
    for rank, found in records.items():
        for each in found:
            if each.event is Event.STEP and "distance_travelled" in each.values:
                assert rank == 0
                logged.setdefault(each.run.rpartition("-")[0], []).append(each)
    expected = {f"{name}-true" for name in ("plain", "ddp", *SHARDED)}
    assert {*logged} == expected | {"plain-false", "ddp-false"}
    for run, steps in logged.items():
        assert [each.step for each in steps] == [*range(6)], run
        for key in ("distance_travelled", "distance_to_initial", "distance_to_reference"):
            assert steps[-1].values[key] == pytest.approx(path[key][-1], rel=1e-6), (run, key)
