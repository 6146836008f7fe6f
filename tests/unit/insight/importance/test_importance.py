"""The importance of settings, on functions whose answer is known."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from math import inf, log10, nan
from random import Random

import pytest

from sentinel.insight.importance import bootstrap_forest
from sentinel.insight.importance.importance import Importance, importance

FEW_SAMPLES, FEW_TREES = 16, 8
"""Enough for what is asserted, and soon done."""


@pytest.fixture(autouse=True)
def small_forests(monkeypatch):
    module = import_module("sentinel.insight.importance.importance")
    monkeypatch.setattr(module, "MIN_SAMPLES", FEW_SAMPLES)
    monkeypatch.setattr(module, "MAX_SAMPLES", FEW_SAMPLES)
    monkeypatch.setattr(bootstrap_forest, "TREES", FEW_TREES)


def sweep(count, outcome, *, seed=0, repeats=1, **choices):
    """Runs with random settings; `choices` are functions of a source of numbers."""
    source = Random(seed)
    runs = []
    for place in range(count):
        settings = {name: choose(source) for name, choose in choices.items()}
        for repeat in range(repeats):
            value = outcome(settings, source)
            named = settings | {"seed": place * repeats + repeat, "model": "tiny"}
            runs.append({"name": f"r{place}-{repeat}", "settings": named, "outcome": value})
    return runs


def by_name(result):
    return {row["name"]: row for row in result.settings}


UNIT = {name: lambda source: source.random() for name in ("a", "b", "c", "d")}


def test_what_matters_is_told_from_what_does_not():
    def outcome(s, source):
        peak = (log10(s["lr"]) + 3.5) ** 2
        return peak + 1.0 * (s["optimizer"] == "sgd") + 0.1 * source.gauss(0, 1)

    runs = sweep(
        60,
        outcome,
        lr=lambda source: 10 ** source.uniform(-5, -2),
        optimizer=lambda source: source.choice(["adamw", "lion", "sgd"]),
        packing=lambda source: source.random() < 0.5,
        decay=lambda source: source.choice([0.0, 0.01, None]),
    )
    result = importance(runs, "eval_loss", seed=1)
    rows = by_name(result)

    assert (result.outcome, result.better, result.runs) == ("eval_loss", "lower", 60)
    assert [row["name"] for row in result.settings][:2] == ["lr", "optimizer"]
    assert result.score["low"] > 0.3
    assert rows["lr"]["low"] > 0
    assert rows["packing"]["low"] <= 0 <= rows["packing"]["high"]
    assert [rows[name]["kind"] for name in ("lr", "optimizer", "packing", "decay")] == [
        "number",
        "choice",
        "flag",
        "number",
    ]
    assert [row["scale"] for row in result.settings][:2] == ["log", "linear"]
    # The valley: both ends are worse than the middle, which no rank correlation shows.
    curve = rows["lr"]["partial_dependence"]
    lowest = curve["y"].index(min(curve["y"]))
    assert 1e-4 < curve["x"][lowest] < 1e-3
    bands = zip(curve["low"], curve["y"], curve["high"], strict=True)
    assert all(low <= y <= high for low, y, high in bands)
    choices = rows["optimizer"]["partial_dependence"]
    assert choices["y"][choices["x"].index("sgd")] == max(choices["y"]) > 0.5
    assert rows["decay"]["missing"] > 0
    assert rows["decay"]["partial_dependence"]["x"][-1] is None
    assert result.constant == [{"name": "model", "value": "tiny"}]
    assert result.note == ["Left out as seeds: seed."]


def test_importance_is_the_share_of_the_variance():
    """Y = 3a + 2b + c, of uniform settings: the shares are 9, 4 and 1 of 14."""
    runs = sweep(400, lambda s, _: 3 * s["a"] + 2 * s["b"] + s["c"], **UNIT)
    rows = by_name(importance(runs))

    assert [rows[name]["importance"] for name in "abcd"] == pytest.approx(
        [9 / 14, 4 / 14, 1 / 14, 0], abs=0.12
    )
    assert [rows[name]["correlation"] > 0.15 for name in "abcd"] == [True, True, True, False]
    assert rows["d"]["correlation_low"] < 0 < rows["d"]["correlation_high"]


def test_an_interaction_counts_although_nothing_correlates():
    runs = sweep(300, lambda s, _: (s["a"] - 0.5) * (s["b"] - 0.5), **UNIT)
    rows = by_name(importance(runs))

    assert min(rows["a"]["low"], rows["b"]["low"]) > max(rows["c"]["high"], rows["d"]["high"])
    assert abs(rows["a"]["correlation"]) < 0.2


def test_noise_is_said_to_be_explained_by_nothing():
    runs = sweep(40, lambda _, source: source.gauss(0, 1), **UNIT)
    result = importance(runs)

    assert result.score["low"] <= 0
    assert result.note[0].startswith("The settings do not explain the outcome")


def test_few_runs_get_correlations_and_a_plain_statement():
    result = importance(sweep(8, lambda s, _: s["a"], **UNIT))
    rows = by_name(result)

    assert result.score is None
    assert rows["a"]["importance"] is rows["a"]["partial_dependence"] is None
    assert rows["a"]["correlation"] == pytest.approx(1.0)
    assert "8 runs with different settings are too few" in result.note[0]
    assert "at least 10" in result.note[0]


def test_runs_with_equal_settings_are_never_on_both_sides():
    """Noise is repeated: a forest that saw the twin of a held-out run would predict it."""
    noise = {}
    runs = sweep(
        12, lambda s, source: noise.setdefault(s["a"], source.gauss(0, 1)), repeats=4, **UNIT
    )
    result = importance(runs)

    assert result.runs == 48
    assert result.score["low"] <= 0
    (note,) = [note for note in result.note if "repeat the settings" in note]
    assert "48 runs" in note
    assert "0% of the variance" in note


def test_failed_runs_are_left_out_or_count_as_the_worst():
    runs = sweep(60, lambda s, _: s["b"] if s["a"] < 0.7 else nan, **UNIT)
    runs += [{"name": "gone", "settings": {"a": 0.1}, "outcome": None}]
    runs += [{"name": "crashed", "settings": {"a": 0.9}, "outcome": 0.2, "failed": True}]

    dropped = importance(runs, "loss")
    worst = importance(runs, "loss", failed="worst")

    assert worst.runs == 61
    assert dropped.runs == sum(run["settings"]["a"] < 0.7 for run in runs[:60])
    assert worst.settings[0]["name"] == "a"
    assert dropped.settings[0]["name"] == "b"
    assert "1 run of 62 without loss" in dropped.note[0]
    assert "failed or ended with NaN: left out" in dropped.note[1]
    assert any("count as the worst" in note for note in worst.note)


def test_extreme_outcomes_do_not_decide_alone():
    runs = sweep(60, lambda s, _: s["a"], **UNIT)
    runs[7]["outcome"] = 1e9
    result = importance(runs, "loss")

    assert result.settings[0]["name"] == "a"
    assert result.score["low"] > 0.3
    assert any("1 run with loss far from the others" in note for note in result.note)


def test_settings_that_change_together_are_named():
    runs = sweep(40, lambda s, _: s["a"], **UNIT)
    for run in runs:
        settings = run["settings"]
        settings |= {"alpha": 2 * settings["a"], "near": settings["b"] + 0.3 * settings["c"]}
    result = importance(runs)

    assert by_name(result)["a"]["same_as"] == ["alpha"]
    assert "a, alpha always change together: their importances cannot be separated." in result.note
    assert any(note.startswith("b and near mostly change together") for note in result.note)


def test_the_result_is_the_same_for_a_seed_and_survives_json():
    runs = sweep(30, lambda s, source: s["a"] + source.random(), **UNIT)
    first = importance(runs, "my_score")
    stored = json.loads(json.dumps(first.to_json(), allow_nan=False))

    assert Importance.from_json(stored) == first
    assert importance(runs, "my_score") == first
    assert importance(runs, "my_score", seed=5) != first
    assert first.better == "higher"
    assert first.table["columns"][0] == "run"
    assert first.table["columns"][-1] == "my_score"
    assert len(first.table["rows"]) == 30
    assert replace(first, note=[]) != first


def test_patterns_leave_settings_out():
    runs = sweep(30, lambda s, source: s["a"] + source.random(), **UNIT)

    assert set(by_name(importance(runs, exclude=["[bc]"]))) == {"a", "d"}


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"outcome": 1.0}, {}, "loss is 1 in every run"),
        ({"outcome": inf}, {}, "only 0 of 12 runs have a finite loss: at least 5"),
        ({"outcome": 1e150}, {}, "runs have a finite loss of at most 1e.100: at least 5"),
        ({"settings": {"a": 1}}, {}, "no setting differs between the 12 runs"),
        ({}, {"failed": "keep"}, 'failed must be "drop" or "worst"'),
        ({}, {"better": "more"}, 'better must be "lower" or "higher"'),
    ],
)
def test_an_unusable_input_is_an_error_with_the_remedy(changes, options, message):
    runs = [run | changes for run in sweep(12, lambda s, _: s["a"], **UNIT)]

    with pytest.raises(ValueError, match=message):
        importance(runs, "loss", **options)


def test_the_worst_run_needs_to_be_known():
    runs = sweep(12, lambda s, _: s["a"], **UNIT)
    runs[0]["outcome"] = nan

    with pytest.raises(ValueError, match="whether a lower or a higher wobble is better"):
        importance(runs, "wobble", failed="worst")


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(ImportError, match=r"pip install 'train-sentinel\[insight\]'"):
        importance(sweep(12, lambda s, _: s["a"], **UNIT))


def test_hostile_values_are_settings_like_others():
    values = [1e308, -1e308, 1e-300, 10**400, nan, [1, 2], {"x": {"y": None}}, "<b>\ud800", b"x"]
    runs = sweep(40, lambda s, _: s["a"], wild=lambda source: source.choice(values), **UNIT)
    runs[3]["outcome"] = 1e308
    result = importance(runs, "loss")

    assert result.runs == 39
    assert result.settings[0]["name"] == "a"
    json.dumps(result.to_json(), allow_nan=False)
