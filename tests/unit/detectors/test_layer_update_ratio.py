"""Tests of the detector layer_update_ratio."""

from __future__ import annotations

from math import nan
from random import Random

from support.layer_measurements import LAYERS, measurement

from sentinel.detectors.layer_update_ratio import LayerUpdateRatio
from sentinel.model.finding import Clear, Severity
from sentinel.testing import first_finding, update_detector

STILL = "layers.3.mlp"
BLOCK = ("layers.3.attention", STILL)


def ratios(*levels, still=(), zero_share=0.0, norm=1.0):
    """A measurement per level of the ratios."""
    random = Random(0)
    records = []
    for at, level in enumerate(levels, 1):
        values = {layer: level * random.uniform(0.5, 2.0) for layer in LAYERS}
        records.append(
            measurement(10 * at, "layer_update_ratio", values | dict.fromkeys(still, 0.0))
        )
        records[-1].values.update({f"layer_grad_norm/{layer}": norm for layer in LAYERS})
        shares = {f"layer_grad_zero_share/{layer}": zero_share for layer in LAYERS}
        records[-1].values.update(shares)
    return records


def test_a_step_that_replaces_most_weights_is_a_warning_at_once():
    record, finding = first_finding(LayerUpdateRatio(), ratios(8.0, 0.1, 0.01))

    assert record.step == 10
    assert finding.severity is None
    assert finding.evidence["update_fraction"] > 5.0
    assert "About 0.1 % is usual" in finding.summary


def test_large_updates_for_long_are_info():
    record, finding = first_finding(LayerUpdateRatio(), ratios(*[0.3] * 10))

    assert record.step == 80
    assert finding.severity is Severity.INFO
    assert "since step 10" in finding.summary


def test_small_models_adapters_warm_up_and_the_end_of_a_schedule_are_clear():
    levels = [0.0, 0.02, 0.1, 0.15, 0.15, 0.12, 0.05, *[1e-3] * 20, *[1e-6] * 20, *[0.0] * 20]

    assert first_finding(LayerUpdateRatio(), ratios(*levels)) == (None, None)


def test_a_few_layers_that_begin_at_zero_are_clear():
    records = ratios(*[1e-3] * 20)
    for at, record in enumerate(records, 1):
        record.values["layer_update_ratio/scale"] = nan if at == 1 else 1.0 / at
        record.values["layer_update_ratio/head"] = 100.0 / at**2

    assert first_finding(LayerUpdateRatio(), records) == (None, None)


def test_a_block_that_is_not_updated_is_named():
    record, finding = first_finding(LayerUpdateRatio(), ratios(*[1e-3] * 10, still=BLOCK))

    assert record.step == 80
    assert finding.severity is None
    assert f"layer `{BLOCK[0]}` have not changed" in finding.summary
    assert finding.evidence["update_fraction"] == 0.0


def test_half_of_the_layers_without_an_update_are_a_warning():
    _, finding = first_finding(LayerUpdateRatio(), ratios(*[1e-3] * 10, still=LAYERS[::2]))

    assert finding.severity is None


def test_layers_that_rounding_stops_at_the_end_of_a_schedule_are_clear():
    """In bfloat16 first some layers move no more, then most, then all."""
    records = ratios(*[1e-3] * 10)
    records += ratios(*[1e-5] * 20, still=BLOCK)
    records += ratios(*[1e-7] * 20, still=LAYERS[2:])

    assert first_finding(LayerUpdateRatio(), records) == (None, None)


def test_a_run_resumed_at_the_end_of_a_schedule_is_clear():
    records = ratios(*[1e-7] * 20, still=LAYERS[2:])

    assert first_finding(LayerUpdateRatio(), records) == (None, None)


def test_a_single_layer_is_not_the_model():
    records = [
        measurement(at, "layer_update_ratio", {"weight": 1.0 / at, "bias": 1.0 / at})
        for at in range(1, 20)
    ]

    assert first_finding(LayerUpdateRatio(), records) == (None, None)


def test_two_layers_that_a_step_replaces_are_a_warning():
    """A recurrent network and its head, whose gradient explodes."""
    sick = measurement(2, "layer_update_ratio", {"rnn": 2e5, "head": 30.0})
    begins_at_zero = measurement(2, "layer_update_ratio", {"rnn": 0.01, "head": 30.0})

    _, finding = first_finding(LayerUpdateRatio(), [sick])
    assert finding.severity is None
    assert finding.evidence["layer"] == "rnn"
    assert first_finding(LayerUpdateRatio(), [begins_at_zero]) == (None, None)


def test_all_norms_that_bfloat16_does_not_move_are_info():
    records = ratios(*[1e-3] * 10)
    for record in records:
        for number in range(4):
            record.values[f"layer_update_ratio/layers.{number}.norm"] = 0.0
            record.values[f"layer_grad_norm/layers.{number}.norm"] = 1.0

    assert first_finding(LayerUpdateRatio(), records)[1].severity is Severity.INFO


def test_rows_of_an_embedding_that_do_not_occur_are_clear():
    records = ratios(*[1e-3] * 20, still=[STILL], zero_share=0.99)

    assert first_finding(LayerUpdateRatio(), records) == (None, None)


def test_it_is_clear_once_the_layer_moves():
    detector = LayerUpdateRatio()
    assert first_finding(detector, ratios(*[1e-3] * 10, still=[STILL]))[1] is not None

    assert update_detector(detector, ratios(1e-3)[0]) == Clear()


def test_one_layer_that_changes_far_more_than_all_others_is_named():
    records = ratios(*[1e-3] * 10)
    for at, record in enumerate(records):
        record.values[f"layer_update_ratio/{STILL}"] = [1.37, 0.56, 0.087, *[0.01] * 7][at]
    detector = LayerUpdateRatio()
    found = [update_detector(detector, record) for record in records]

    assert [each.severity for each in found] == [Severity.INFO] * 7 + [None] * 3
    assert f"changes layer `{STILL}` by 1.00% of its weights" in found[-1].summary
    assert "since step 10 was 137%" in found[-1].summary


def test_a_head_at_ten_times_the_rate_is_clear():
    records = ratios(*[1e-2] * 20)
    for record in records:
        record.values["layer_update_ratio/head"] = 0.22

    assert first_finding(LayerUpdateRatio(), records) == (None, None)
