"""Values of ranks are combined into one record, and averaging hides no fault."""

from __future__ import annotations

from math import fsum, hypot, inf, isnan, nan, sqrt
from random import Random

import pytest

from sentinel.aggregate.combine import MAX_LISTED_DIFFERING_RANKS, combine_ranks, with_hosts
from sentinel.aggregate.rank_values import PendingStep
from sentinel.model.record import WHOLE_RUN, Event, RankMismatch, Record, Spread, host_key
from sentinel.model.record_batch import unpack_row
from sentinel.signals.key_map import select_key_map
from sentinel.signals.run_metadata import RunMetadata


def rank_values(rank, /, *more, step=7, event=Event.STEP, **values):
    """The table of a rank that logs `values`, then each further mapping of `more`."""
    pending = PendingStep(0.0, 0.0)
    for each in (values, *more):
        record = Record("run", rank, step, 100.0 + rank, event, values=each)
        pending.add(record, 0.0, select_key_map({}))
    (table,) = [table for table in pending.tables if table.rows]
    return table


def combined(*tables, missing=(), event=Event.STEP):
    return combine_ranks(event, tables, missing)


def test_means_are_weighted_by_the_weight_of_each_rank():
    record = combined(rank_values(0, loss=1.0, weight=30.0), rank_values(1, loss=2.0, weight=10.0))

    assert record.values == {"loss": 1.25}
    assert record.rank == WHOLE_RUN


def test_keys_of_frameworks_are_mapped_to_signal_names():
    record = combined(rank_values(0, **{"train/kl": 0.1, "my metric": 3.0}))

    assert record.values == {"kl_ref": 0.1, "my metric": 3.0}
    assert record.attributes == {"kl_ref": "train/kl"}


def test_each_signal_combines_by_its_own_rule():
    record = combined(
        rank_values(0, grad_norm=1.0, learning_rate=0.1, step_time=0.5),
        rank_values(1, grad_norm=3.0, learning_rate=0.1, step_time=0.4),
    )

    assert record.values == {"grad_norm": 3.0, "learning_rate": 0.1, "step_time": 0.5}


def test_the_spread_names_the_extreme_ranks():
    spread = combined(
        rank_values(0, loss=2.0), rank_values(1, loss=5.0), rank_values(2, loss=2.0)
    ).spread["loss"]

    assert (spread.min, spread.min_rank, spread.max, spread.max_rank) == (2.0, 0, 5.0, 1)
    assert (spread.count, spread.mean, spread.sum) == (3, 3.0, 9.0)
    assert spread.std == pytest.approx(2**0.5)


@pytest.mark.parametrize(
    "values",
    [(1.0, 1e200), (1.7e308, 1.7e308), (1.7e308, -1.7e308), (5e-324, 5e-324)],
    ids=str,
)
@pytest.mark.parametrize("name", ["perplexity", "tokens", "step_time"])
def test_extreme_values_are_combined(name, values):
    """A perplexity is the exponential of a loss; a crash on it would repeat after each restart."""
    spread = combined(*(rank_values(rank, **{name: x}) for rank, x in enumerate(values))).spread[
        name
    ]

    assert (spread.min, spread.max, spread.count) == (min(values), max(values), 2)
    assert not isnan(spread.std)


@pytest.mark.parametrize("weight", [nan, inf, -inf, 0.0, -1.0])
def test_unusable_weights_are_ignored(weight):
    record = combined(
        rank_values(0, loss=1.0, weight=weight), rank_values(1, loss=3.0, weight=weight)
    )

    assert record.values == {"loss": 2.0}


@pytest.mark.parametrize("bad", [nan, inf, -inf])
@pytest.mark.parametrize("name", ["loss", "learning_rate", "step_time", "my_count"])
def test_a_rank_with_a_nonfinite_value_is_named_and_makes_the_value_so(name, bad):
    values = ({name: 1.0}, {name: bad}, {name: 3.0})
    record = combined(*(rank_values(rank, **each) for rank, each in enumerate(values)))

    assert str(record.values[name]) == str(bad)
    assert record.spread[name].bad_ranks == (1,)
    assert record.spread[name].mean == 2.0


@pytest.mark.parametrize("others", [(nan, inf), (inf, -inf), (nan, -inf)])
def test_values_that_are_infinite_in_two_directions_are_nan(others):
    values = (1.0, *others)
    record = combined(*(rank_values(rank, loss=x) for rank, x in enumerate(values)))

    assert isnan(record.values["loss"])
    assert record.spread["loss"].bad_ranks == (1, 2)


def test_a_signal_without_finite_values_has_an_empty_spread():
    spread = combined(rank_values(0, loss=nan), rank_values(1, loss=inf)).spread["loss"]

    assert (spread.count, spread.bad_ranks, spread.max_rank) == (0, (0, 1), WHOLE_RUN)


def test_several_values_of_one_rank_are_combined_by_the_rule_of_the_signal():
    record = combined(
        rank_values(0, {"loss": 3.0}, {"learning_rate": 0.2}, loss=1.0, learning_rate=0.1)
    )

    assert record.values == {"loss": 2.0, "learning_rate": 0.1}


def test_missing_ranks_are_named():
    record = combined(rank_values(0, loss=1.0), missing=(2, 3))

    assert record.attributes == {"missing": "2,3"}


def test_the_step_is_the_trainers_own_number():
    """A rank that only counts optimizer steps does not override one that logs `global_step`."""
    record = combined(
        rank_values(0, loss=1.0, step=10), rank_values(1, loss=1.0, global_step=9.0, step=9)
    )

    assert record.step == 9


def test_zero_weights_are_ignored():
    record = combined(rank_values(0, loss=1.0, weight=0.0), rank_values(1, loss=3.0, weight=0.0))

    assert record.values == {"loss": 2.0}


def test_partial_norms_combine_to_the_root_of_the_sum_of_squares():
    """Four ranks as two replicas of two shards: each logs its part divided by the root of two."""
    shards = [[3.0, 1.0, -2.0], [0.5, 4.0]]
    parts = [sqrt(sum(x * x for x in shard) / 2) for shard in shards * 2]
    record = combined(*(rank_values(rank, grad_norm_local=part) for rank, part in enumerate(parts)))

    assert record.values == {
        "grad_norm": pytest.approx(sqrt(sum(x * x for s in shards for x in s)))
    }
    assert record.spread["grad_norm"].max_rank == 1


def test_an_incomplete_set_of_partial_norms_is_not_combined():
    parts = [rank_values(rank, grad_norm_local=1.0) for rank in range(2)]
    incomplete = rank_values(0, grad_norm_local=1.0), rank_values(1, loss=1.0)

    for record in (combined(*parts, missing=(2,)), combined(*incomplete)):
        assert "grad_norm" not in record.values
    assert "grad_norm" not in combine_ranks(Event.STEP, parts, world_size=3).values
    assert combine_ranks(Event.STEP, parts, world_size=2).values["grad_norm"] == sqrt(2)


def test_a_measured_norm_takes_precedence_over_partial_norms():
    record = combined(
        rank_values(0, grad_norm_local=1.0, grad_norm=5.0), rank_values(1, grad_norm_local=1.0)
    )

    assert record.values["grad_norm"] == 5.0


def test_a_nonfinite_partial_norm_makes_the_norm_so_and_is_named():
    record = combined(rank_values(0, grad_norm_local=1.0), rank_values(1, grad_norm_local=inf))

    assert record.values["grad_norm"] == inf
    assert record.spread["grad_norm"].bad_ranks == (1,)


def test_the_kind_of_a_kl_follows_from_the_run_metadata():
    metadata = {"framework": "trl", "framework_version": "1.16.0", "algorithm": "GRPOConfig"}
    record = combine_ranks(Event.STEP, [rank_values(0, kl=0.1)], (), RunMetadata(metadata))

    assert record.attributes["kl_ref.kind"] == "ref k3xratio token_mean unsigned cap=inf"


def test_an_unknown_kl_has_no_kind():
    assert combined(rank_values(0, kl=3.0)).attributes == {"kl_ref": "kl"}


def test_a_zero_that_stands_for_a_missing_value_is_not_combined():
    record = combined(
        rank_values(0, actor_grad_norm=0.0, loss=1.0), rank_values(1, actor_grad_norm=2.0)
    )

    assert record.values == {"loss": 1.0, "grad_norm": 2.0}


def test_signals_of_an_evaluation_are_not_signals_of_training():
    evaluation = rank_values(0, event=Event.EVAL, loss=0.5, epoch=2.0)
    record = combined(evaluation, event=Event.EVAL)

    assert record.values == {"eval_loss": 0.5, "epoch": 2.0}
    assert record.attributes == {"eval_loss": "loss"}


def test_a_rank_that_differs_from_the_majority_is_named_with_its_value():
    rates = [0.1] * 9
    rates[4], rates[7] = 0.2, 0.3
    spread = combined(
        *(rank_values(r, learning_rate=x, loss=x) for r, x in enumerate(rates))
    ).spread

    assert spread["learning_rate"].mismatch == RankMismatch(0.1, 2, ((4, 0.2), (7, 0.3)))
    assert spread["loss"].mismatch is None


@pytest.mark.parametrize("norms", [(1.0, 1.0, 1.0), (1.0, 2.0), (1.0, 2.0, 3.0)], ids=str)
def test_without_a_differing_rank_or_a_majority_there_is_no_mismatch(norms):
    record = combined(*(rank_values(rank, grad_norm=norm) for rank, norm in enumerate(norms)))

    assert record.spread["grad_norm"].mismatch is None


def test_if_half_of_the_ranks_differ_from_the_lowest_they_are_named_without_a_majority():
    """Both ranks of one of two nodes."""
    rates = (1e-3, 1e-3, 3e-3, 3e-3)
    record = combined(*(rank_values(rank, learning_rate=rate) for rank, rate in enumerate(rates)))

    assert record.spread["learning_rate"].mismatch == RankMismatch(
        1e-3, 2, ((2, 3e-3), (3, 3e-3)), has_majority=False
    )


def test_a_mismatch_ignores_rounding_differences():
    norms = (1.0, 1.0 + 1e-7, 1.0 - 1e-7, 1.01, 1.0 + 2e-7)
    record = combined(*(rank_values(rank, grad_norm=norm) for rank, norm in enumerate(norms)))

    assert record.spread["grad_norm"].mismatch.differing_ranks == ((3, 1.01),)


def test_the_first_differing_ranks_are_named_and_all_are_counted():
    rates = [0.1] * 1000 + [0.2] * 400
    mismatch = combined(*(rank_values(r, learning_rate=x) for r, x in enumerate(rates))).spread[
        "learning_rate"
    ].mismatch  # fmt: skip

    assert (mismatch.count, len(mismatch.differing_ranks), mismatch.differing_ranks[0]) == (
        400,
        MAX_LISTED_DIFFERING_RANKS,
        (1000, 0.2),
    )


def test_a_nonfinite_rank_is_bad_and_not_a_mismatch():
    record = combined(
        *(rank_values(r, grad_norm=x) for r, x in enumerate((1.0, 1.0, nan, 1.0, 3.0)))
    )

    assert record.spread["grad_norm"].mismatch == RankMismatch(1.0, 1, ((4, 3.0),))
    assert record.spread["grad_norm"].bad_ranks == (2,)


def test_hosts_of_differing_ranks_are_named_if_there_are_several():
    record = combined(
        *(rank_values(r, learning_rate=x, loss=r) for r, x in enumerate((0.1, 0.1, 0.2)))
    )
    hosts = {0: "a", 1: "a", 2: "b"}

    assert with_hosts(record, hosts).attributes == {host_key(2): "b"}
    assert with_hosts(record, dict.fromkeys(range(3), "a")) is record


def test_keys_are_resolved_the_same_from_the_cache():
    first, again = (
        rank_values(r, {"kl_ref": 0.3}, {"kl": 0.5}, kl=0.1, weight=2.0) for r in range(2)
    )

    assert first.names == again.names == ("kl_ref",)
    assert unpack_row(first.rows[0]) == unpack_row(again.rows[1]) == (pytest.approx(0.25),)
    assert first.logged_as == again.logged_as == {"kl_ref": "kl"}


def test_weights_apply_to_single_signals_of_single_ranks():
    one = rank_values(0, {"reward": 1.0}, loss=1.0, weight=3.0)
    record = combined(one, rank_values(1, loss=2.0, reward=3.0))

    assert record.values == {"loss": 1.25, "reward": 2.0}


def test_a_spread_is_exact_to_the_last_bit():
    """The deviation equals that by `hypot`, the mean that by `fsum`."""
    rng = Random(7)
    for count in (1, 2, 3, 8, 100):
        row = [rng.gauss(0, 1) * 10 ** rng.randint(-9, 9) for _ in range(count)]
        mean = fsum(row) / count
        expected = Spread(
            count, mean, min(row), max(row), fsum(row),
            hypot(*(x - mean for x in row)) / sqrt(count),
            row.index(min(row)), row.index(max(row)),
        )  # fmt: skip

        record = combined(*(rank_values(rank, loss=x) for rank, x in enumerate(row)))

        assert record.spread["loss"] == expected
        assert record.values["loss"] == mean
