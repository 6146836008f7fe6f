"""The ranks' sums over layers become one record of statistics of the run."""

from __future__ import annotations

import json
from math import isnan, nan, sqrt

import pytest
from support.layer_records import layer_record, rank_sums
from support.sample_records import run_record

from sentinel.aggregate.layers import MAX_OPEN_STEPS, LayerAggregator
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.pipeline.pipeline import Pipeline
from sentinel.pipeline.snapshot import deserialize, serialize
from sentinel.signals.layer_statistics import (
    LAYER_STATISTICS,
    LayerSum,
    by_layer,
    sums_from_attributes,
)
from sentinel.transport.batch_codec import decode_standalone, encode_standalone

SUM = LayerSum(3.0, 1.0, 10.0, 0.3, 30.0, 2.0, 2.0, 2.0, 4.0, 1.0)
OTHER = LayerSum(4.0, 5.0, 10.0, 0.4, 40.0, 0.0, 0.0, 0.0, 2.0, 1.0)


def combined(aggregator, *records):
    """Records of the run that these complete."""
    out = [made for record in records for made in aggregator.process(record)]
    return [each for each in out if each.rank == WHOLE_RUN and each.event is Event.LAYERS]


def test_a_rank_with_the_whole_gradient_completes_its_step_alone():
    (record,) = combined(
        LayerAggregator(), rank_sums(7, 0, {"a.b": SUM, "c": OTHER}, histogram={"c": [-3, 1, 2]})
    )

    assert (record.step, record.step_index, record.rank) == (7, 7, WHOLE_RUN)
    assert by_layer(record.values, "layer_grad_norm") == {"a.b": 3.0, "c": 4.0}
    assert by_layer(record.values, "layer_grad_zero_share") == {"a.b": 0.1, "c": 0.5}
    assert by_layer(record.values, "layer_update_ratio") == pytest.approx({"a.b": 0.01, "c": 0.01})
    assert by_layer(record.values, "layer_noise_scale") == {"a.b": 3.0, "c": 1.0}
    assert by_layer(record.values, "layer_grad_cosine")["a.b"] == 0.5
    assert isnan(by_layer(record.values, "layer_grad_cosine")["c"])
    assert json.loads(record.attributes["histogram"]) == {"c": [-3, 1, 2]}


def test_parts_are_combined_before_anything_is_divided_once_all_ranks_have_reported():
    aggregator = LayerAggregator()

    assert combined(aggregator, rank_sums(7, 1, {"a": OTHER}, ranks=2)) == []
    (record,) = combined(aggregator, rank_sums(7, 0, {"a": SUM}, ranks=2))

    assert record.values["layer_grad_norm/a"] == 5.0
    assert record.values["layer_grad_zero_share/a"] == pytest.approx(0.3)
    assert record.values["layer_update_ratio/a"] == pytest.approx(0.5 / 50.0)
    assert record.values["layer_noise_scale/a"] == pytest.approx((6.0 - 2.0) / 2.0)
    assert aggregator.steps == {}


def test_a_step_of_which_a_part_is_missing_is_left_out_and_its_state_is_bounded():
    aggregator = LayerAggregator()
    ones = [rank_sums(step, 0, {"a": SUM}, ranks=2) for step in range(50)]

    assert combined(aggregator, *ones, *ones) == []
    assert len(aggregator.steps) == MAX_OPEN_STEPS
    assert combined(aggregator, rank_sums(3, 0, {"a": SUM}, ranks=2, attempt=1)) == []
    assert [*aggregator.steps] == [(1, 3)]


def test_statistics_of_a_rank_are_passed_on_as_those_of_the_run():
    record = layer_record(3, rank=0, layer_grad_norm={"a": 0.5})

    assert [each.values for each in combined(LayerAggregator(), record)] == [record.values]


@pytest.mark.parametrize("attributes", [{"sums": "?"}, {"sums": ""}, {}, {"ranks": "x"}])
def test_sums_that_cannot_be_read_are_counted(attributes):
    aggregator = LayerAggregator()
    record = rank_sums(1, 0, {"a": SUM})
    kept = {} if attributes == {} else record.attributes
    object.__setattr__(record, "attributes", {**kept, **attributes})

    assert combined(aggregator, record) == []
    assert sum(aggregator.counters.values.values()) == 1


def test_ranks_with_other_layers_are_not_combined():
    aggregator = LayerAggregator()
    records = [rank_sums(1, 0, {"a": SUM}, ranks=2), rank_sums(1, 1, {"b": SUM}, ranks=2)]

    assert combined(aggregator, *records) == []


def test_numbers_keep_float32_precision_and_their_infinities():
    sums = {"a": LayerSum(1e300, nan, sqrt(2.0)), "b": LayerSum(-1e300)}
    found = sums_from_attributes(rank_sums(1, 0, sums).attributes)

    assert [found[0].grad_norm, found[1].grad_norm] == [float("inf"), -float("inf")]
    assert isnan(found[0].zeros)
    assert found[0].elements == pytest.approx(sqrt(2.0), rel=6e-8)


def test_a_layer_without_a_gradient_has_no_statistics():
    (record,) = combined(LayerAggregator(), rank_sums(1, 0, {"a": LayerSum()}))

    assert len(record.values) == len(LAYER_STATISTICS)
    assert all(map(isnan, record.values.values()))


def test_the_update_of_weights_that_began_at_zero_has_no_ratio():
    update = 1e-3 * sqrt(100.0)
    rows = [LayerSum(1.0, 0.0, 100.0, update, steps * update) for steps in (1, 4, 6)]
    usual = LayerSum(1.0, 0.0, 100.0, 0.7 * 0.02 * 10.0, 0.02 * 10.0)

    ratios = [each.statistics()[2] for each in (*rows, usual)]

    assert all(map(isnan, ratios[:2]))
    assert ratios[2:] == pytest.approx([1 / 6, 0.7])


def test_the_state_survives_a_snapshot_and_records_the_journal_and_other_nodes():
    pipeline, restored = Pipeline({}, Counters()), Pipeline({}, Counters())
    start = run_record(Event.START)
    first, second = (rank_sums(5, rank, {"a": SUM}, ranks=2) for rank in (0, 1))
    [*pipeline.process(start)], [*pipeline.process(first)]

    assert restored.restore(pipeline.serialize())
    (sent,) = decode_standalone(encode_standalone([second]), "run")
    of_run = [each.record for each in restored.process(sent) if each.record.rank == WHOLE_RUN]

    assert [each.event for each in of_run] == [Event.LAYERS]
    assert of_run[0].values["layer_grad_norm/a"] == pytest.approx(3.0 * sqrt(2.0))
    assert deserialize(serialize(LayerAggregator())) == LayerAggregator()
