"""Tests of the rows of the history: what is stored of a record, and in how many bytes."""

from __future__ import annotations

import random
from contextlib import closing
from math import inf, isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.aggregate.combine import combine_ranks
from sentinel.aggregate.rank_values import RankValues
from sentinel.model.record import Event, Record
from sentinel.model.record_batch import pack_row
from sentinel.pipeline.engine import Result
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.store.record_rows import (
    LayoutTable,
    RecordPacker,
    RowLayout,
    layout_from_json,
    unpack,
)

SIGNALS = (
    "loss", "grad_norm", "step_time", "learning_rate", "kl_ref", "reward", "reward_std", "entropy",
    "clip_fraction", "completion_length", "data_time", "tokens_per_second", "gpu_memory_used",
    *(f"custom_{n}" for n in range(7)),
)  # fmt: skip
"""20 signals, some of them combined by another rule than the mean."""


def combined(values_by_rank, step=1):
    """The record of the run at one step, of ranks with these values by name."""
    tables = []
    for rank, values in values_by_rank.items():
        record = Record("run", rank, step, float(step), values=values)
        tables.append(
            RankValues(
                names=tuple(values),
                rows={rank: pack_row(tuple(values.values()))},
                last_record=record,
            )
        )
    return combine_ranks(Event.STEP, tables)


def random_values(randomness, names=SIGNALS):
    return {name: randomness.gauss(1.0, 0.5) for name in names}


def restore(record, packer=None):
    layout, blob = (packer or RecordPacker()).pack(record)
    header = (record.attempt, record.step, record.time, record.event.value)
    return unpack(record.run, layout_from_json(layout.to_json()), blob, header)


@pytest.mark.parametrize(("rank_count", "most"), [(1, 300), (8, 600)])
def test_a_step_of_20_signals_is_small_on_disk(tmp_path, rank_count, most):
    """The whole file is measured: pages, indexes and layouts included."""
    randomness, steps = random.Random(7), 700
    path = tmp_path / "sentinel.db"
    with closing(connect(path)) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
        empty = path.stat().st_size
        connection.execute("begin")
        history = History(connection)
        for step in range(steps):
            ranks = {rank: random_values(randomness) for rank in range(rank_count)}
            history.update(Result(combined(ranks, step)))
        connection.execute("commit")
        connection.execute("pragma wal_checkpoint(truncate)")
    assert (path.stat().st_size - empty) / steps <= most


def test_a_record_of_one_rank_is_restored_whole():
    record = combined({3: random_values(random.Random(1))})

    assert restore(record) == record
    assert record.spread["loss"].max_rank == 3


def test_values_and_the_rank_values_of_loss_and_norm_are_exact():
    randomness = random.Random(2)
    record = combined({rank: random_values(randomness) for rank in range(8)})
    restored = restore(record)

    assert restored.values == record.values
    for name in ("loss", "grad_norm"):
        assert restored.spread[name] == record.spread[name]
        assert restored.spread[name].ranks == tuple(range(8))
        assert restored.spread[name].rank_values == record.spread[name].rank_values
    step_times = restored.spread["step_time"].rank_values
    assert step_times == pytest.approx(record.spread["step_time"].rank_values, rel=1e-6)


def test_of_other_signals_the_range_and_the_worst_rank_are_stored():
    randomness = random.Random(3)
    record = combined({rank: random_values(randomness) for rank in range(8)})
    restored = restore(record)

    for name in ("reward", "completion_length", "custom_1"):
        stored, original = restored.spread[name], record.spread[name]
        assert (stored.count, stored.max_rank) == (original.count, original.max_rank)
        for statistic in ("mean", "min", "max"):
            expected = pytest.approx(getattr(original, statistic), rel=1e-6)
            assert getattr(stored, statistic) == expected
        assert isnan(stored.std)


def test_ranks_that_differ_or_are_not_finite_are_stored_in_full():
    values = {rank: {"learning_rate": 0.1, "reward": 1.0, "loss": 1.0} for rank in range(4)}
    values[2] = {"learning_rate": 0.2, "reward": nan, "loss": inf}
    record = combined(values)
    restored = restore(record)

    assert restored.spread == record.spread
    assert restored.spread["learning_rate"].mismatch.differing_ranks == ((2, 0.2),)
    assert restored.spread["reward"].bad_ranks == (2,)
    assert restored.spread["loss"].bad_ranks == (2,)


def test_a_gradient_norm_that_differs_keeps_its_mismatch():
    values = {rank: {"grad_norm": 1.0 + (rank == 3)} for rank in range(5)}
    record = combined(values)

    assert restore(record).spread == record.spread
    assert record.spread["grad_norm"].mismatch is not None


def test_norms_of_parts_of_the_gradient_get_no_mismatch():
    """They are stored under the name of the whole norm, of which ranks should have the same."""
    values = {rank: {"grad_norm_local": 1.0 + (rank == 3)} for rank in range(4)}
    record = combine_ranks(
        Event.STEP,
        [
            RankValues(
                names=("grad_norm_local",),
                rows={rank: pack_row((each["grad_norm_local"],)) for rank, each in values.items()},
                last_record=Record("run", 0, 1, 1.0),
            )
        ],
        world_size=4,
    )
    assert restore(record).spread == record.spread
    assert record.spread["grad_norm"].mismatch is None


def test_numbers_beyond_float32_are_stored_as_float64():
    record = combined({rank: {"reward": 1e300 * (rank + 1)} for rank in range(3)})
    restored = restore(record)

    assert restored.spread["reward"].max == 3e300


def test_ranks_above_255_are_stored():
    record = combined({rank: {"reward": float(rank)} for rank in (0, 300, 70_000)})

    assert restore(record).spread["reward"].max_rank == 70_000


def test_values_of_many_ranks_are_not_stored_singly():
    record = combined({rank: {"loss": float(rank)} for rank in range(100)})

    assert restore(record).spread["loss"].rank_values == ()
    assert restore(record).spread["loss"].max_rank == 99


FLOATS = st.floats(allow_nan=True, allow_infinity=True)
NAMES = st.sampled_from(["loss", "grad_norm", "learning_rate", "reward", "tokens_per_second", "x"])


@given(st.dictionaries(st.integers(0, 300), st.dictionaries(NAMES, FLOATS, min_size=1), min_size=1))
def test_any_record_is_restored_with_its_values(values_by_rank):
    record = combined(values_by_rank)
    restored = restore(record)

    assert repr(dict(restored.values)) == repr(dict(record.values))
    assert restored.attributes == record.attributes
    for name, spread in record.spread.items():
        stored = restored.spread[name]
        assert (stored.count, stored.max_rank) == (spread.count, spread.max_rank)
        assert (stored.bad_ranks, repr(stored.mismatch)) == (
            spread.bad_ranks,
            repr(spread.mismatch),
        )


def test_only_a_change_of_names_makes_a_layout(tmp_path):
    randomness = random.Random(4)
    with closing(connect(tmp_path / "sentinel.db")) as connection:
        history = History(connection)
        for step in range(100):
            names = SIGNALS if step % 10 else (*SIGNALS, "eval_loss")
            ranks = {rank: random_values(randomness, names) for rank in range(4)}
            history.update(Result(combined(ranks, step)))
        ((layouts,),) = connection.execute("select count(*) from layout").fetchall()

    assert layouts <= 4


def test_unused_layouts_are_deleted(tmp_path):
    with closing(connect(tmp_path / "sentinel.db")) as connection:
        layouts = LayoutTable(connection)
        used, unused = (layouts.add(RowLayout((name,))) for name in ("a", "b"))
        connection.execute("insert into step values(1, 0, 1, 1.0, 'step', ?, x'')", [used])
        layouts.delete_unused([used, unused])

        assert layouts.get(used).names == ("a",)
        with pytest.raises(KeyError):
            layouts.get(unused)
        assert layouts.add(RowLayout(("b",)))
