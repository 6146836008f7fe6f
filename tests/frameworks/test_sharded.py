"""Sharded models: every rank records its loss, and the norm of the whole gradient is known.

DDP, FSDP2, HSDP and FSDP1, clipped and not, against one model in plain PyTorch that sees the
batches of all ranks.
"""

import json
from math import hypot
from pathlib import Path

import pytest
from requirements import need

from sentinel.aggregate.layers import LayerAggregator
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.signals.layer_statistics import by_layer

need("torch")
pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

HERE = Path(__file__).parent
CLOSE = 1e-6


@pytest.fixture
def spread(run_ranks, recorded, headers, tmp_path):
    """Runs cases on several ranks, and checks that monitoring changes no training.

    Returns what each rank measured and recorded, by case, then by rank.
    """

    def run(ranks, *cases):
        script = (HERE / "sharded_ranks.py").read_text()
        run_ranks(script, ranks, OUT=str(tmp_path), CASES=",".join(cases))
        own = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
        records = recorded()
        found = {}
        for case in cases:
            seen = [each[case] for each in own]
            records_by_rank = [_steps(records[rank], case) for rank in range(ranks)]
            for mine, values in zip(seen, records_by_rank, strict=True):
                _same_training(case, mine, values)
            assert len({tuple(mine["watched"]["losses"]) for mine in seen}) == ranks, case
            _check_layers(case, records, seen[0]["hand"], ranks)
            found[case] = seen, records_by_rank
        assert all(
            header.errors == 0 and not any(header.drop_counts) for header in headers().values()
        )
        return found

    return run


def _steps(records_by_rank, case):
    chosen = [
        r for r in records_by_rank if r.event is Event.STEP and r.run.rpartition("-")[0] == case
    ]
    assert [r.step_index for r in chosen] == list(range(1, len(chosen) + 1))
    return [r.values for r in chosen]


def _check_layers(case, records, expected, ranks):
    """The norm of each layer is that of the whole gradient of the step, before clipping."""
    if case == "ddp-join":
        # A rank that has no batch left halves the gradient of the last step.
        return
    aggregator, found = LayerAggregator(), {}
    for rank in range(ranks):
        own = [r for r in records[rank] if r.event is Event.LAYERS]
        for record in own:
            if record.run.rpartition("-")[0] == case:
                for each in aggregator.process(record):
                    if each.rank == WHOLE_RUN:
                        found[each.step_index] = by_layer(each.values, "layer_grad_norm")
    assert [*found] == [2, 3, 4], case
    for step, norms in found.items():
        layers = expected["layers"][step - 1]
        if case.startswith(("fsdp1", "hsdp1")) and [*norms] != ["0", "1", "2"]:
            # A flattened parameter is of several layers.
            assert hypot(*norms.values()) == pytest.approx(hypot(*layers), rel=CLOSE), (case, step)
        else:
            assert [*norms.values()] == pytest.approx(layers, rel=CLOSE), (case, step)


def _check_gathered_norms(found, *cases):
    for case in cases:
        for mine in found[case][0]:
            assert mine["flow"] == pytest.approx(mine["hand"]["layers"][0], rel=CLOSE), case


def _same_training(case, mine, values):
    """Bit-identical, with the same random numbers and the same collectives."""
    assert mine["watched"] == mine["unwatched"], case
    assert mine["same_random_state"], case
    assert mine["unpatched"], case
    assert mine["collectives"][0] == mine["collectives"][1], case
    assert sum(mine["collectives"][0].values()) > 0, case
    assert [v["loss"] for v in values] == mine["watched"]["losses"], case


def _check_whole_norms(found, *cases):
    """With clipping or an unsharded gradient, every rank records the norm of most steps."""
    for case in cases:
        seen, records_by_rank = found[case]
        expected = seen[0]["hand"]
        for mine, values in zip(seen, records_by_rank, strict=True):
            assert mine["watched"]["losses"] == pytest.approx(mine["hand"]["losses"], rel=1e-5)
            norms = {at: v["grad_norm"] for at, v in enumerate(values) if "grad_norm" in v}
            assert {0, 1} <= norms.keys(), case
            for at, norm in norms.items():
                assert norm == pytest.approx(expected["norms"][at], rel=CLOSE), case
            assert not any("grad_norm_local" in v for v in values), case
            if mine["watched"]["norms"]:
                clipped = [hypot(*each) for each in mine["watched"]["norms"]]
                reported = [v["grad_norm"] for v in values]
                assert reported == pytest.approx(clipped, rel=1e-7 if len(seen) > 2 else 0), case
        whole = [[v.get("grad_norm") for v in values] for values in records_by_rank]
        if seen[0]["watched"]["norms"]:
            assert all(each == whole[0] for each in whole), case


def _check_shares(found, *cases):
    """No rank computes the norm; the shares of a step add up to it exactly."""
    for case in cases:
        seen, records_by_rank = found[case]
        together = []
        for at, rows in enumerate(zip(*records_by_rank, strict=True)):
            assert not any("grad_norm" in v for v in rows), case
            parts = [v.get("grad_norm_local") for v in rows]
            # On a busy machine a rank may skip the norm of the third or fourth step.
            if None not in parts:
                together.append(at)
                expected = seen[0]["hand"]["norms"][at]
                assert hypot(*parts) == pytest.approx(expected, rel=CLOSE), case
                assert parts[0] != parts[1], case
        assert {0, 1} <= set(together), case


def test_ddp_records_each_ranks_loss_and_the_common_norm(spread):
    found = spread(
        2, "ddp", "ddp-unclipped", "ddp-accumulating", "ddp-static", "ddp-hook", "ddp-join"
    )

    _check_whole_norms(found, "ddp", "ddp-unclipped", "ddp-accumulating", "ddp-static", "ddp-hook")
    # One rank has a batch less than the other, whose last gradient is halved.
    seen, records_by_rank = found["ddp-join"]
    assert [len(values) for values in records_by_rank] == [4, 3]
    for mine, values in zip(seen, records_by_rank, strict=True):
        assert [[v["grad_norm"]] for v in values] == mine["watched"]["norms"]


@pytest.mark.fault("T9")
def test_fsdp_records_the_clipped_norm_or_the_shares_of_it(spread):
    found = spread(
        2,
        *("fsdp2", "fsdp2-halves", "fsdp2-unclipped", "fsdp2-accumulating", "fsdp2-partly"),
        *("fsdp1", "fsdp1-unclipped", "fsdp1-named", "fsdp1-named-clipped", "fsdp1-grads"),
        "fsdp1-whole",
    )

    _check_whole_norms(
        found, "fsdp2", "fsdp2-halves", "fsdp1", "fsdp1-named-clipped", "fsdp1-whole"
    )
    _check_gathered_norms(found, "fsdp2")
    _check_shares(
        found,
        *("fsdp2-unclipped", "fsdp2-accumulating", "fsdp2-partly"),
        *("fsdp1-unclipped", "fsdp1-named", "fsdp1-grads"),
    )


def test_replicas_of_a_shard_count_once(spread):
    found = spread(
        4,
        *("hsdp", "hsdp-unclipped", "hsdp-partly", "hsdp-mixed", "hsdp-mixed-apart"),
        *("hsdp1", "hsdp1-unclipped"),
    )

    _check_gathered_norms(found, "hsdp")
    _check_whole_norms(found, "hsdp", "hsdp-mixed-apart", "hsdp1")
    _check_shares(found, "hsdp-unclipped", "hsdp-partly", "hsdp-mixed", "hsdp1-unclipped")
