"""DeepSpeed on two ranks: values of every ZeRO stage, compared with PyTorch and the engine."""

import json
from math import hypot, inf, isnan
from pathlib import Path

import pytest
from requirements import need
from support.gradient_flows import layer_records

from sentinel.client.capture.loop import OTHER_STEPS_MARGIN
from sentinel.model.record import Event
from sentinel.signals.layer_statistics import by_layer

need("torch", "deepspeed")
pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

HERE = Path(__file__).parent
FP32 = ("zero0", "zero1", "zero2", "zero3", "zero2-direct", "zero2-undivided")
BF16 = ("zero0-bf16", "zero1-bf16")
CASES = (*FP32, *BF16, "zero0-unclipped", "zero1-nan")


def run_of(record):
    return record.run.rpartition("-")[0]


def steps(records_by_rank, run):
    return [r for r in records_by_rank if r.event is Event.STEP and run_of(r) == run]


def column(records_by_rank, run, name):
    return [r.values[name] for r in steps(records_by_rank, run) if name in r.values]


@pytest.fixture
def ranks(run_ranks, tmp_path):
    """Runs a script as two ranks; returns the reference values of each."""

    def run(name):
        run_ranks((HERE / name).read_text(), 2, ("deepspeed",), OUT=str(tmp_path))
        return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]

    return run


def test_every_zero_stage_records_loss_norm_rate_and_steps(
    ranks, recorded, reported_metadata, headers, tmp_path
):
    seen, records = ranks("deepspeed_ranks.py"), recorded()

    for rank in range(2):
        mine, records_by_rank, hand = seen[rank], records[rank], seen[rank]["hand"][""]
        for case in CASES:
            engine = mine[case]["watched"]
            # Bit-identical training, the same random numbers, and no further collective.
            assert str(engine) == str(mine[case]["unwatched"]), case
            assert mine[case]["same_random_state"], case
            assert mine[case]["collectives"][0] == mine[case]["collectives"][1], case
            assert sum(mine[case]["collectives"][0].values()) > 0
            assert mine[case]["unpatched"], case

            assert str(column(records_by_rank, case, "loss")) == str(engine["losses"]), case
            assert column(records_by_rank, case, "learning_rate") == engine["rates"], case
            assert [r.step for r in steps(records_by_rank, case)] == [1, 2, 3, 4], case
            assert column(records_by_rank, case, "optimizer_steps") == [1, 2, 3, 4], case
            assert (
                column(records_by_rank, case, "global_step") == engine["steps"] == [1, 2, 3, 4]
            ), case
        for case in FP32:
            assert column(records_by_rank, case, "loss") == pytest.approx(
                hand["losses"], rel=1e-5
            ), case
            assert column(records_by_rank, case, "grad_norm") == pytest.approx(
                hand["norms"], rel=1e-5
            ), case
            assert column(records_by_rank, case, "learning_rate") == hand["rates"], case
        for case in BF16:
            assert column(records_by_rank, case, "grad_norm") == mine[case]["watched"]["norms"], (
                case
            )
            assert column(records_by_rank, case, "grad_norm") == pytest.approx(
                hand["norms"], rel=0.02
            ), case
        # DeepSpeed computes none: at least two norms are ours; a busy machine skips others.
        unclipped = steps(records_by_rank, "zero0-unclipped")
        norms = {r.step: r.values["grad_norm"] for r in unclipped if "grad_norm" in r.values}
        expected = mine["hand"]["unclipped"]["norms"]
        assert norms == pytest.approx({step: expected[step - 1] for step in norms}, rel=1e-5)
        assert {1, 2} <= norms.keys()

        # Layers are measured where gradients are whole and unscaled: on the lowest rank, by ours.
        for case in CASES:
            found = layer_records(r for r in records_by_rank if run_of(r) == case)
            is_measured = rank == 0 and case in {"zero0", "zero0-unclipped"}
            assert [*found] == ([2, 3, 4] if is_measured else []), case
            hand_norms = mine["hand"]["unclipped" if case == "zero0-unclipped" else ""]["norms"]
            for step, record in found.items():
                norms = by_layer(record.values, "layer_grad_norm")
                assert [*norms] == ["0", "2"], case
                assert hypot(*norms.values()) == pytest.approx(hand_norms[step - 1], rel=1e-5), case

        # One rank's loss is NaN in the third step: only it records NaN, and the step is skipped.
        assert [isnan(loss) for loss in column(records_by_rank, "zero1-nan", "loss")] == [
            rank == 1 and at == 2 for at in range(4)
        ]
        assert column(records_by_rank, "zero1-nan", "grad_norm")[2] == inf
        assert column(records_by_rank, "zero1-nan", "skipped_steps") == [1, 1]
        assert mine["zero1-nan"]["watched"]["skipped"] == 1

        saves = [r for r in records_by_rank if r.event is Event.SAVE]
        assert [(r.step, r.attributes) for r in saves] == [(4, {"path": f"{tmp_path}/saved/last"})]
        assert headers()[rank].errors == 0
    assert seen[0]["zero1"]["watched"]["losses"] != seen[1]["zero1"]["watched"]["losses"]
    # What the engine logs to its monitors, on the logging rank, without its sample count as step.
    assert len(column(records[0], "zero1", "logged_learning_rate")) == 4
    assert not column(records[1], "zero1", "logged_learning_rate")
    known = reported_metadata()[0]
    assert known["patch/deepspeed"] == "on"
    assert known["framework"] == "deepspeed"
    # The last by name is of ZeRO-3.
    assert (known["zero_stage"], known["gradient_accumulation_steps"]) == (3, 2)
    assert (known["dtype"], known["gradient_clipping"]) == ("fp32", 0.5)


def test_another_engine_over_the_same_model_is_no_other_training(run_ranks, recorded):
    """ZeRO trains copies of the parameters, and stage 3 holds none of them between steps."""
    run_ranks((HERE / "deepspeed_trainings.py").read_text(), 1, ("deepspeed",))
    trainings = {}
    for record in recorded()[0]:
        if record.event is Event.STEP:
            trainings.setdefault(record.run.rpartition("-")[0], []).append("step")
        if record.event is Event.TRAINING:
            trainings[record.run.rpartition("-")[0]].append("training")

    for stage, events in trainings.items():
        assert events.count("training") == 1, stage
        # An engine that others refer to is used until it has been idle for that many steps.
        assert events.index("training") >= 2 * 40 - OTHER_STEPS_MARGIN, stage
    assert [*trainings] == ["stage2", "stage3"]


def test_trainers_that_step_inside_their_backward_pass_count_once(
    ranks, recorded, reported_metadata
):
    need("transformers", "accelerate")

    seen, records = ranks("deepspeed_trainer_ranks.py"), recorded()

    for rank in range(2):
        mine, records_by_rank = seen[rank], records[rank]
        for run in ("trainer", "accelerate"):
            losses = column(records_by_rank, run, "loss")
            assert losses == pytest.approx(mine[run]["losses"], rel=1e-6)
            assert sorted(set(column(records_by_rank, run, "optimizer_steps"))) == [1, 2, 3]
            assert {r.step for r in steps(records_by_rank, run)} == {1, 2, 3}
        logs = mine["trainer"]["logs"]
        assert column(records_by_rank, "trainer", "grad_norm") == [log["grad_norm"] for log in logs]
        assert column(records_by_rank, "accelerate", "grad_norm") == mine["accelerate"]["norms"]
        saves = {r.step for r in records_by_rank if r.event is Event.SAVE}
        assert saves == {3}
    # The trainer logs the mean of both ranks.
    both = zip(*(column(records[rank], "trainer", "loss") for rank in range(2)), strict=True)
    logged = [log["loss"] for log in seen[0]["trainer"]["logs"]]
    assert [sum(pair) / 2 for pair in both] == pytest.approx(logged, rel=1e-5)
    known = reported_metadata()[0]
    assert (known["framework"], known["zero_stage"]) == ("transformers", 2)
