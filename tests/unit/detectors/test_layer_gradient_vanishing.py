"""Tests of the detector layer_gradient_vanishing."""

from __future__ import annotations

from support.layer_measurements import LAYERS, healthy_norms, measurement

from sentinel.detectors.layer_gradient_vanishing import LayerGradientVanishing
from sentinel.testing import first_finding

LOST = "layers.3.mlp"


def series(rows):
    return [measurement(10 * at, "layer_grad_norm", row) for at, row in enumerate(rows, 1)]


def scaled(factors, count=60, since=30):
    """Healthy norms, whose layers are multiplied by a factor each from a measurement on."""
    rows = list(healthy_norms(count))
    for row in rows[since:]:
        row |= {layer: row[layer] * factor for layer, factor in factors.items()}
    return series(rows)


def test_a_layer_that_falls_beside_the_others_is_named_with_its_level():
    record, finding = first_finding(LayerGradientVanishing(), scaled({LOST: 1e-7}))

    assert record.step == 380
    assert finding.onset_step == 310
    assert f"`{LOST}`" in finding.summary
    assert "other layers have kept theirs" in finding.summary
    assert finding.evidence["layer_gradient_norm_before"] > 0.0


def test_of_several_the_one_nearest_to_the_output_is_named():
    _, finding = first_finding(LayerGradientVanishing(), scaled(dict.fromkeys(LAYERS[:5], 1e-7)))

    assert f"layer `{LAYERS[4]}`" in finding.summary
    assert finding.evidence["vanished_layers"] == 5.0


def test_a_gradient_that_vanishes_in_all_layers_has_another_detector():
    assert first_finding(LayerGradientVanishing(), scaled(dict.fromkeys(LAYERS, 1e-9))) == (
        None,
        None,
    )


def test_a_gradient_that_vanishes_with_depth_is_found_from_the_start():
    rows = [{f"{at}": 1e-8 * 10.0**at for at in range(9)} for _ in range(10)]
    record, finding = first_finding(LayerGradientVanishing(), series(rows))

    assert record.step == 80
    assert "layer `0` is 1e-08" in finding.summary
    assert "that of `8`, behind it, is 1" in finding.summary
    assert finding.evidence["layer_gradient_norm_before"] == 0.0


def test_small_layers_of_another_kind_or_without_a_trend_are_clear():
    kinds = [{"words": 1e-9, "blocks.0": 1.0, "blocks.1": 0.9, "head": 2.0} for _ in range(20)]
    experts = [{f"experts.{at}": 1e-7 if at == 3 else 1.0 for at in range(8)} for _ in range(20)]

    assert first_finding(LayerGradientVanishing(), series(kinds)) == (None, None)
    assert first_finding(LayerGradientVanishing(), series(experts)) == (None, None)


def test_a_few_low_measurements_are_clear():
    rows = list(healthy_norms(100))
    for at, row in enumerate(rows):
        row[LOST] *= 1e-9 if at % 20 > 14 else 1.0

    assert first_finding(LayerGradientVanishing(), series(rows)) == (None, None)


def test_healthy_norms_are_clear():
    for seed in range(5):
        records = series(healthy_norms(200, seed))
        assert first_finding(LayerGradientVanishing(), records) == (None, None)
