"""Tests of the detector layer_gradient_dead."""

from __future__ import annotations

from math import nan

from support.layer_measurements import LAYERS, healthy_norms, measurement

from sentinel.detectors.layer_gradient_dead import LayerGradientDead
from sentinel.model.finding import Clear, Severity
from sentinel.model.record import Event
from sentinel.testing import event, first_finding, update_detector

LOST = "layers.3.mlp"


def series(rows):
    return [measurement(10 * at, "layer_grad_norm", row) for at, row in enumerate(rows, 1)]


def with_zeros(is_zero, count=40, layers=(LOST,), zero=0.0):
    rows = list(healthy_norms(count))
    for at, row in enumerate(rows, 1):
        row.update(dict.fromkeys(layers, zero) if is_zero(at) else {})
    return series(rows)


def test_a_layer_that_loses_its_gradient_is_named_after_eight_measurements():
    record, finding = first_finding(LayerGradientDead(), with_zeros(lambda at: at > 20))

    assert record.step == 280
    assert finding.severity is None
    assert finding.onset_step == 210
    assert f"`{LOST}` is exactly 0 since step 210" in finding.summary
    assert finding.evidence["layer_gradient_norm_before"] > 0.0


def test_a_layer_without_any_gradient_since_the_start_is_found():
    records = with_zeros(lambda _: True, zero=nan)
    for record in records:
        share = nan if record.values[f"layer_grad_norm/{LOST}"] != 0.0 else 1.0
        record.values[f"layer_grad_zero_share/{LOST}"] = share
    record, finding = first_finding(LayerGradientDead(), records)

    assert record.step == 80
    assert "since the first measurement" in finding.summary
    assert finding.evidence["layer_gradient_norm_before"] == 0.0


def test_a_gradient_that_is_nan_is_not_a_missing_one():
    records = with_zeros(lambda _: True, zero=nan)
    for record in records:
        record.values[f"layer_grad_zero_share/{LOST}"] = 0.0

    assert first_finding(LayerGradientDead(), records) == (None, None)


def test_the_dead_layer_nearest_to_the_output_is_named_first():
    _, finding = first_finding(
        LayerGradientDead(), with_zeros(lambda at: at > 5, layers=LAYERS[:7])
    )

    assert f"layer `{LAYERS[6]}`" in finding.summary
    assert finding.evidence["dead_layers"] == 7.0


def test_a_head_that_no_loss_uses_is_info():
    rows = [{**row, "head": 0.0} for row in healthy_norms(20)]

    assert first_finding(LayerGradientDead(), series(rows))[1].severity is Severity.INFO


def test_an_encoder_without_any_gradient_is_info():
    """Under `torch.no_grad()`, or with sparse gradients: all of its kind have none."""
    records = with_zeros(lambda _: True, layers=LAYERS, zero=nan)
    for record in records:
        record.values.update({f"layer_grad_zero_share/{layer}": nan for layer in LAYERS})
        record.values["layer_grad_norm/head"] = 1.0

    _, finding = first_finding(LayerGradientDead(), records)
    assert finding.severity is Severity.INFO
    assert "1 of 13 layers have one" in finding.summary


def test_steps_without_any_gradient_are_no_problem_of_a_layer():
    """As in a batch whose groups have no spread of rewards."""
    rows = [dict.fromkeys(row, 0.0) if at % 5 else row for at, row in enumerate(healthy_norms(80))]

    assert first_finding(LayerGradientDead(), series(rows)) == (None, None)


def test_pauses_make_longer_ones_usual():
    """An expert without tokens in 6 measurements of 7, then in 20, then in 60."""
    pauses = with_zeros(lambda at: at % 7, count=70)
    longer = with_zeros(lambda at: at < 20, count=30)

    detector = LayerGradientDead()
    assert first_finding(detector, pauses) == (None, None)
    assert first_finding(detector, longer) == (None, None)
    assert first_finding(detector, with_zeros(lambda _: True, count=90))[1] is not None


def test_layers_that_are_frozen_later_are_not_measured_and_clear_it():
    detector = LayerGradientDead()
    assert first_finding(detector, with_zeros(lambda _: True))[1] is not None
    rows = [{layer: x for layer, x in row.items() if layer != LOST} for row in healthy_norms(3)]

    assert update_detector(detector, series(rows)[-1]) == Clear()


def test_a_restart_begins_anew():
    detector = LayerGradientDead()
    records = with_zeros(lambda _: True, count=7)
    for record in (*records, event(Event.START, 0)):
        assert not hasattr(update_detector(detector, record), "summary")

    assert first_finding(detector, records) == (None, None)


def test_healthy_norms_are_clear():
    for seed in range(5):
        assert first_finding(LayerGradientDead(), series(healthy_norms(200, seed))) == (None, None)
