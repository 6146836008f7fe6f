"""Tests of the detector layer_gradient_exploding."""

from __future__ import annotations

from support.layer_measurements import LAYERS, healthy_norms, measurement

from sentinel.detectors.layer_gradient_exploding import LayerGradientExploding
from sentinel.testing import first_finding

BROKEN = "layers.3.mlp"


def series(rows):
    return [measurement(10 * at, "layer_grad_norm", row) for at, row in enumerate(rows, 1)]


def scaled(factors, count=60, since=30, until=60):
    rows = list(healthy_norms(count))
    for row in rows[since:until]:
        row |= {layer: row[layer] * factor for layer, factor in factors.items()}
    return series(rows)


def test_a_layer_that_dominates_the_others_is_named_after_three_measurements():
    record, finding = first_finding(LayerGradientExploding(), scaled({BROKEN: 1e5}))

    assert record.step == 330
    assert finding.onset_step == 310
    assert f"`{BROKEN}`" in finding.summary
    assert "before" in finding.summary


def test_it_is_found_where_gradients_are_clipped_before_they_are_measured():
    records = scaled({BROKEN: 1e5})
    for record in records:
        total = sum(value * value for value in record.values.values()) ** 0.5
        record.values.update({name: value / total for name, value in record.values.items()})

    assert f"`{BROKEN}`" in first_finding(LayerGradientExploding(), records)[1].summary


def test_of_several_the_one_nearest_to_the_output_is_named():
    factors = dict.fromkeys(LAYERS[:5], 1e5)
    _, finding = first_finding(LayerGradientExploding(), scaled(factors))

    assert f"layer `{LAYERS[4]}`" in finding.summary


def test_a_gradient_that_explodes_in_all_layers_has_another_detector():
    factors = dict.fromkeys(LAYERS, 1e6)

    assert first_finding(LayerGradientExploding(), scaled(factors)) == (None, None)


def test_a_single_batch_is_clear():
    records = scaled({BROKEN: 1e6}, until=32)

    assert first_finding(LayerGradientExploding(), records) == (None, None)


def test_a_fresh_layer_that_grows_from_nothing_is_clear():
    rows = list(healthy_norms(100))
    for at, row in enumerate(rows):
        row["head"] = 1e-6 * min(1e6, 1.3**at)

    assert first_finding(LayerGradientExploding(), series(rows)) == (None, None)


def test_a_gradient_that_explodes_with_depth_is_found_from_the_start():
    rows = [{f"{at}": 1e5 * 0.2**at for at in range(9)} for _ in range(10)]
    record, finding = first_finding(LayerGradientExploding(), series(rows))

    assert record.step == 80
    assert "layer `0` is 1e+05" in finding.summary
    assert "that of `8`, behind it" in finding.summary


def test_queries_that_are_negligible_beside_the_other_layers_are_clear():
    rows = [{f"{at}.query": 1e-3 * 0.2**at for at in range(9)} for _ in range(20)]
    for row in rows:
        row |= {f"{at}.value": 0.5 for at in range(9)}

    assert first_finding(LayerGradientExploding(), series(rows)) == (None, None)


def test_healthy_norms_are_clear():
    for seed in range(5):
        records = series(healthy_norms(200, seed))
        assert first_finding(LayerGradientExploding(), records) == (None, None)
