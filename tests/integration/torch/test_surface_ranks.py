"""Loss surfaces over several ranks equal those of one process with the data of all of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.fork_server import TORCH, ForkServer
from support.forked_ranks import start_ranks
from support.surface_ranks import (
    QUIET,
    make_batch,
    make_checkpoint,
    make_net,
    squared_error,
)

from sentinel.insight import loss_surface, sharpness

WORLD = 2
CASES = (
    "ddp", "ddp_own_data", "fsdp", "fsdp_adamw", "fsdp_own_data", "group", "alone", "ddp_hessian",
    "fsdp_gradient", "fsdp_checkpoint", "fsdp_sharpness", "other_weights",
    "other_arguments", "ddp_error",
    "fsdp_error", "ddp_interrupt", "fsdp_interrupt", "fsdp_inside", "ddp_lost",
)  # fmt: skip


def run_ranks(server: ForkServer, folder: Path, *cases: str) -> list[dict[str, Any]]:
    """Run the cases on every rank, and return what each reports."""
    script = Path(__file__).parents[2] / "support" / "surface_ranks.py"
    log = folder / "ranks.log"
    with log.open("w") as output:
        command = [script, *cases]
        ranks = start_ranks(server, command, WORLD, cwd=folder, output=output, OUT=str(folder))
    try:
        for each in ranks:
            each.wait(300)
    finally:
        for each in ranks:
            each.kill()
            each.wait()
    reports = [folder / f"{rank}.json" for rank in range(WORLD)]
    printed = log.read_text()[-6000:]
    assert all(each.is_file() for each in reports), printed
    found = [json.loads(each.read_text()) for each in reports]
    assert any(set(each) == set(cases) for each in found), printed
    return found


@pytest.fixture(scope="module")
def server(fork_server: Callable[..., ForkServer]) -> ForkServer:
    return fork_server(*TORCH)


@pytest.fixture(scope="module")
def reports(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(server, tmp_path_factory.mktemp("ranks"), *CASES)


pytestmark = pytest.mark.usefixtures("one_thread")


def expected(batch: Any, **arguments: Any) -> dict[str, Any]:
    return loss_surface(make_net(), squared_error, batch, **QUIET, **arguments).to_json()


def assert_same(found: Any, wanted: Any, tolerance: float = 1e-12) -> None:
    for key in ("points", "arrows", "loss"):
        assert len(found[key]) == len(wanted[key])
        for one, two in zip(found[key], wanted[key], strict=True):
            assert one == pytest.approx(two, abs=tolerance), key
    assert found["center"]["loss"] == pytest.approx(wanted["center"]["loss"], abs=tolerance)
    for one, two in zip(found["directions"], wanted["directions"], strict=True):
        assert one["norm"] == pytest.approx(two["norm"], rel=1e-9)


def test_both_ranks_have_the_same_result(reports: list[dict[str, Any]]) -> None:
    for case in ("ddp", "ddp_own_data", "fsdp", "fsdp_own_data", "group", "ddp_hessian"):
        one, two = (each[case]["result"] for each in reports)
        assert_same(one, two, 0.0)


@pytest.mark.parametrize("case", ["ddp", "fsdp"])
def test_training_afterwards_equals_training_without(
    reports: list[dict[str, Any]], case: str
) -> None:
    for each in reports:
        assert each[case]["is_restored"]
        assert each[case]["is_equal"]


def test_a_sharded_training_of_adamw_equals_one_without_surfaces(
    reports: list[dict[str, Any]],
) -> None:
    for each in reports:
        assert each["fsdp_adamw"]["is_equal"]


def test_replicas_share_points_of_one_batch(reports: list[dict[str, Any]]) -> None:
    wanted = expected(make_batch(0), max_evaluations=40)
    for each in reports:
        assert_same(each["group"]["result"], wanted, 0.0)


@pytest.mark.parametrize("case", ["ddp_own_data", "fsdp_own_data"])
def test_the_data_of_all_ranks_count(reports: list[dict[str, Any]], case: str) -> None:
    wanted = expected([make_batch(0), make_batch(1)], max_evaluations=40)
    for each in reports:
        assert each[case]["is_restored"]
        assert_same(each[case]["result"], wanted)


def test_hessian_directions_over_ranks(reports: list[dict[str, Any]]) -> None:
    wanted = expected([make_batch(0), make_batch(1)], max_evaluations=20, directions="hessian")
    found = reports[0]["ddp_hessian"]["result"]
    values = [[each["eigenvalue"] for each in one["directions"]] for one in (found, wanted)]
    assert values[0] == pytest.approx(values[1], rel=1e-3)
    assert found["center"]["loss"] == pytest.approx(wanted["center"]["loss"], abs=1e-12)


def test_the_gradient_of_shards(reports: list[dict[str, Any]]) -> None:
    wanted = expected(
        [make_batch(0), make_batch(1)], max_evaluations=20, directions="gradient", arrows=False
    )
    assert_same(reports[0]["fsdp_gradient"]["result"], wanted, 1e-10)


def test_checkpoints_of_shards(reports: list[dict[str, Any]]) -> None:
    wanted = expected(
        make_batch(0), max_evaluations=20, directions=[make_checkpoint()], arrows=False,
        trajectory=[(3, make_checkpoint())],
    )  # fmt: skip
    found = reports[0]["fsdp_checkpoint"]["result"]
    assert_same(found, wanted, 1e-10)
    assert found["trajectory"][0] == pytest.approx(wanted["trajectory"][0], abs=1e-9)


def test_sharpness_of_shards(reports: list[dict[str, Any]]) -> None:
    wanted = sharpness(make_net(), squared_error, [make_batch(0), make_batch(1)])
    found = reports[0]["fsdp_sharpness"]
    assert found["eigenvalues"] == pytest.approx(wanted.eigenvalues, rel=1e-2)
    assert "FSDP does not support double backward" in found["note"][0]


def test_ranks_with_other_weights_are_named(reports: list[dict[str, Any]]) -> None:
    for each in reports:
        assert "Rank 1 has other weights than rank 0" in each["other_weights"]["error"]


def test_arguments_that_differ_among_the_ranks_are_named(reports: list[dict[str, Any]]) -> None:
    for each in reports:
        assert (
            "different values of `bounds`, `max_evaluations`:" in each["other_arguments"]["error"]
        )
        assert each["other_arguments"]["is_restored"]


@pytest.mark.parametrize(
    ("case", "own"),
    [
        ("ddp_error", "ValueError: bad sample"),
        ("fsdp_error", "ValueError: bad sample"),
        ("ddp_interrupt", "KeyboardInterrupt"),
    ],
)
def test_a_rank_that_fails_is_named_by_the_others(
    reports: list[dict[str, Any]], case: str, own: str
) -> None:
    first, second = (each[case] for each in reports)
    assert own in second["error"]
    assert "SurfaceError: Rank 1 failed: " in first["error"]
    assert own in first["error"]
    assert first["is_restored"]
    assert second["is_restored"]


def test_shards_are_restored_on_ctrl_c(reports: list[dict[str, Any]]) -> None:
    for each in reports:
        assert "KeyboardInterrupt" in each["fsdp_interrupt"]["error"]
        assert each["fsdp_interrupt"]["is_restored"]
        assert each["fsdp_inside"] == {"is_restored": True, "is_equal": True}


def test_a_rank_that_is_lost_is_named(reports: list[dict[str, Any]]) -> None:
    found = reports[0]["ddp_lost"]
    assert "SurfaceError: Rank 1 has not answered for" in found["error"]
    assert "look at the log of that rank" in found["error"]
    assert found["is_restored"]
    assert "ddp_lost" not in reports[1]


@pytest.mark.full
@pytest.mark.parametrize(("case", "lost"), [("fsdp_lost", 1), ("ddp_lost_first", 0)])
def test_a_rank_lost_in_a_collective_or_with_the_store_is_named(
    server: ForkServer, tmp_path: Path, case: str, lost: int
) -> None:
    found = run_ranks(server, tmp_path, "alone", case)[1 - lost][case]
    assert f"Rank {lost} has not answered" in found["error"]
    assert found["is_restored"]
