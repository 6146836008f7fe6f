"""Where the last run of a comparison departs, and what is said of the cause."""

from __future__ import annotations

from math import nan

import numpy as np
import pytest
from unit.report.test_comparison import PlainReader, curve

from sentinel.report.comparison import ComparedRun
from sentinel.report.what_changed import what_changed
from sentinel.store.database import NewerSchemaError

STEPS = 200
SETTINGS = {"learning_rate": 1e-4, "torch": "2.9.0", "framework": "trl"}


def run(name, seed, *, change_at=None, bad=(), **settings):
    """A run whose loss rises by half from a step on."""
    rng, steps = np.random.default_rng(seed), np.arange(STEPS)
    loss = 1 + np.exp(-steps / 40) + 0.03 * rng.normal(size=STEPS)
    if change_at is not None:
        loss[change_at:] += 0.5
    values = [None if at in bad else float(each) for at, each in enumerate(loss)]
    grad_norm = [float(each) for each in 1 + 0.1 * rng.normal(size=STEPS)]
    curves = {"loss": curve(values, bad=[*bad]), "grad_norm": curve(grad_norm)}
    reader = PlainReader(curves, metadata=SETTINGS | {"seed": seed} | settings)
    return ComparedRun(name, reader, {"step": STEPS, "run": name})


def test_runs_that_differ_by_the_seed_do_not_depart():
    answer = what_changed([run("a", 1), run("b", 2)])

    assert answer["departures"] == answer["differences"] == []
    assert answer["text"] == "b does not leave the band of a in any of 2 signals."
    assert answer["conclusion"] == ""


def test_the_only_difference_is_the_likeliest_cause():
    answer = what_changed(
        [run("a", 1), run("b", 2), run("c", 3, change_at=120, learning_rate=1e-2)]
    )

    (departure,) = answer["departures"]
    assert departure["signal"] == "loss"
    assert departure["step"] == pytest.approx(120, abs=STEPS / 20)
    assert (departure["side"], departure["effect"]) == ("above", "worse")
    assert answer["text"].startswith("c leaves the band of a and b at step 1")
    assert answer["conclusion"].startswith("The likeliest cause is learning_rate: no other")


def test_two_differences_without_other_runs_cannot_be_distinguished():
    answer = what_changed(
        [run("a", 1), run("b", 2, change_at=50, learning_rate=1e-2, torch="2.9.1")]
    )

    assert [each["name"] for each in answer["differences"]] == ["learning_rate", "torch"]
    assert answer["conclusion"] == (
        "The cause cannot be determined: 2 settings differ (learning_rate, torch), and there are "
        "no other runs of yours that could distinguish them."
    )


def test_own_runs_distinguish_them():
    own = [
        *(run(f"rate-{seed}", seed, learning_rate=1e-2) for seed in range(10, 14)),
        *(run(f"torch-{seed}", seed, change_at=30, torch="2.9.1") for seed in range(20, 23)),
    ]
    pair = [run("a", 1), run("b", 2, change_at=50, learning_rate=1e-2, torch="2.9.1")]
    answer = what_changed(pair, own)

    assert answer["own_runs"] == 7
    assert answer["conclusion"] == (
        "The likeliest cause is torch: of your other runs, 3 of 3 runs with such a difference "
        "departed, and 0 of 4 without it."
    )


def test_a_difference_that_never_came_with_a_departure_leaves_the_other_one():
    own = [run(f"rate-{seed}", seed, learning_rate=1e-2) for seed in range(10, 14)]
    pair = [run("a", 1), run("b", 2, change_at=50, learning_rate=1e-2, torch="2.9.1")]

    assert what_changed(pair, own)["conclusion"].startswith(
        "The likeliest cause is torch: no other"
    )
    pair[1] = run("b", 2, change_at=50, learning_rate=1e-2)
    assert "was in at least 4 of your other runs" in what_changed(pair, own)["conclusion"]


def test_nothing_recorded_differs():
    answer = what_changed([run("a", 1), run("b", 2, change_at=50)])

    assert answer["conclusion"].startswith("The cause cannot be determined: nothing that is")


def test_a_value_that_is_not_finite_is_a_departure_unless_a_good_run_has_one():
    answer = what_changed([run("a", 1), run("b", 2, bad=[70, 71])])
    (departure,) = answer["departures"]

    assert (departure["signal"], departure["step"], departure["side"]) == ("loss", 70, "not finite")
    assert answer["text"] == "b departs from a at step 70: Loss is not finite."
    assert what_changed([run("a", 1, bad=[5]), run("b", 2, bad=[70])])["departures"] == []


def test_own_runs_that_cannot_be_read_are_left_out():
    class Broken(PlainReader):
        def signals(self):
            raise NewerSchemaError("later")

    own = [ComparedRun("broken", Broken({}), {}), run("other", 5)]
    answer = what_changed([run("a", 1), run("b", 2, change_at=50, torch="2.9.1")], own)

    assert answer["own_runs"] == 1


def test_another_schedule_of_learning_rates_is_a_difference_and_no_departure():
    pair = [run("a", 1), run("b", 2, change_at=50)]
    for each, peak in zip(pair, (1e-4, 3e-4), strict=True):
        rates = [peak * (1 - at / STEPS) + 1e-6 for at in range(STEPS)]
        each.reader.curves["learning_rate"] = curve(rates)
    answer = what_changed(pair)

    assert [each["signal"] for each in answer["departures"]] == ["loss"]
    assert [each["name"] for each in answer["differences"]] == ["learning rate schedule"]
    assert answer["conclusion"].startswith("The likeliest cause is learning rate schedule")
    for each, peak in zip(pair, (1e-4, 3e-4), strict=True):
        each.reader.given_metadata["command"] = f"python train.py --lr {peak}"
    assert [each["name"] for each in what_changed(pair)["differences"]] == ["--lr"]


def test_progress_and_second_records_of_a_signal_are_no_departures():
    runs = [run("a", 1), run("b", 2, change_at=100)]
    for each, step_size in zip(runs, (1.0, 0.1), strict=True):
        curves = each.reader.curves
        curves["epoch"] = curve([step_size * at for at in range(STEPS)])
        curves["logged_loss"] = curves["loss"]

    assert [each["signal"] for each in what_changed(runs)["departures"]] == ["loss"]
    for each in runs:
        del each.reader.curves["loss"]
    assert [each["signal"] for each in what_changed(runs)["departures"]] == ["logged_loss"]


def test_a_departure_of_speed_leads_only_where_nothing_else_departs():
    runs = [run("a", 1), run("b", 2, change_at=100)]
    for each, seconds in zip(runs, (1.0, 0.2), strict=True):
        each.reader.curves["step_time"] = curve([seconds] * STEPS)

    assert [each["signal"] for each in what_changed(runs)["departures"]] == ["loss", "step_time"]
    for each in runs:
        del each.reader.curves["loss"]
    assert what_changed(runs)["departures"][0]["signal"] == "step_time"


def test_too_few_steps():
    short = ComparedRun("c", PlainReader({"loss": curve([1.0, nan, 2.0])}), {"step": 2})

    answer = what_changed([run("a", 1), short])
    assert answer["text"] == "There are too few common steps to compare c with a."
