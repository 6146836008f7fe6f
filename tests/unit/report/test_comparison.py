"""Tests of the comparison of runs, on curves given as plain data."""

from math import isnan

import pytest

from sentinel.report.comparison import ComparedRun, compare
from sentinel.report.markdown import case_count_text
from sentinel.store.series.curve_results import curve_results


def curve(values, x=None, **fields):
    x = list(range(len(values))) if x is None else x
    spread = {"mean": values, "min": values, "max": values, "attempt": [0] * len(values)}
    return {"x": x, **spread, "is_raw": True, "count": len(values), **fields}


class PlainReader:
    """A run of which everything is given."""

    def __init__(self, curves, cases=(), metadata=None, groups=None):
        self.curves, self.given_cases = curves, list(cases)
        self.given_metadata, self.groups = metadata or {}, groups or {}
        self.asked = []

    def signals(self):
        return [
            {
                "name": name,
                "label": name.title(),
                "unit": "",
                "group": self.groups.get(name, "main"),
            }
            for name in self.curves
        ]

    def series(self, names, *, points=800, axis="step", start=None, end=None):
        self.asked.append((list(names), points, axis))
        return {"axis": axis, "series": {name: self.curves[name] for name in names}}

    def cases(self):
        return self.given_cases

    def metadata(self):
        return self.given_metadata


def case(detector, onset=10, severity="warning", *, cause=None, resolved=None, run="a"):
    diagnosis = {"cause": cause, "title": f"The {cause}"} if cause else None
    return {
        "name": f"{run}/{detector}#1",
        "detector": detector,
        "subject": detector,
        "severity": severity,
        "onset_step": onset,
        "opened_step": onset + 1,
        "resolved_step": resolved,
        "diagnosis": diagnosis,
    }


def compared(name="a", state=None, **fields):
    curves = fields.pop("curves", {"loss": curve([3.0, 2.0, 1.0])})
    return ComparedRun(name, PlainReader(curves, **fields), state or {"step": 2, "run": name})


def test_the_best_run_has_the_lowest_loss_and_the_highest_reward():
    runs = [
        compared("a", curves={"loss": curve([3.0, 1.0]), "reward": curve([0.1, 0.2])}),
        compared("b", curves={"loss": curve([3.0, 2.0]), "reward": curve([0.1, 0.9])}),
    ]
    loss, reward = compare(runs)["metrics"]

    assert (loss["better"], loss["best_run"]) == ("lower", 0)
    assert (reward["better"], reward["best_run"]) == ("higher", 1)


def test_the_best_run_is_judged_by_the_end_of_its_curve_and_not_by_one_step():
    """By the best value of a curve the first one would win, and by the last one the second."""
    lucky = [2.0] * 50 + [0.1] + [2.0] * 49
    runs = [
        compared("lucky step", curves={"loss": curve(lucky)}),
        compared("lucky end", curves={"loss": curve([3.0] * 99 + [0.5])}),
        compared("best", curves={"loss": curve([1.0] * 99 + [1.1])}),
        compared("lost", curves={"loss": curve([0.0] * 50 + [None], bad=[50])}),
    ]
    (loss,) = compare(runs)["metrics"]

    assert loss["best_run"] == 2
    finals = [value["final"] for value in loss["values"]]
    assert finals[:3] == pytest.approx([2.0, (3.0 * 10 + 0.5) / 11, (10.0 + 1.1) / 11], 0.02)
    assert isnan(finals[3])


def test_the_level_of_a_resumed_run_is_that_of_its_last_attempt():
    x = [*range(100), *range(90, 100)]
    resumed = curve([5.0] * 100 + [1.0] * 10, x=x, attempt=[0] * 100 + [1] * 10)

    assert curve_results(resumed, "lower")["final"] == 1.0


def test_runs_of_different_lengths_are_compared_where_both_have_values():
    runs = [
        compared("a", curves={"loss": curve([5.0, 4.0, 3.0, 2.0])}),
        compared("b", curves={"loss": curve([6.0, 5.0])}),
    ]
    (loss,) = compare(runs)["metrics"]

    assert loss["common_x"] == 1
    assert [value["last"] for value in loss["values"]] == [2.0, 5.0]
    assert [value["at_common"] for value in loss["values"]] == [4.0, 5.0]


def test_a_spike_within_a_bucket_counts_as_the_best_or_the_highest_value():
    one = curve([3.0, 2.0]) | {"min": [3.0, 0.5], "max": [9.0, 2.0], "is_raw": False}

    summary = curve_results(one, "lower")

    assert (summary["best"], summary["best_x"], summary["max"]) == (0.5, 1, 9.0)


def test_values_that_are_missing_are_left_out():
    summary = curve_results(curve([None, 2.0, None]), "lower")

    assert (summary["first"], summary["last"], summary["last_x"]) == (2.0, 2.0, 1)
    assert curve_results(curve([None]), "lower")["last"] is None


def test_a_last_value_that_is_not_finite_is_shown_as_such():
    bad = curve([2.0, 1.0, None], bad=[2])
    for signal in (None, {"latest": None, "bad_count": 4}):
        summary = curve_results(bad, "lower", signal)
        assert isnan(summary["last"])
        assert (summary["best"], summary["last_x"]) == (1.0, 2)
    assert summary["bad_count"] == 4
    assert curve_results(bad, "lower", {"latest": 0.5, "bad_count": 1})["last"] == 0.5
    runs = [compared("a", curves={"loss": bad}), compared("b", curves={"loss": curve([1.0] * 9)})]
    (loss,) = compare(runs)["metrics"]
    assert loss["common_x"] == 2
    assert isnan(loss["values"][0]["at_common"])
    assert loss["values"][1]["at_common"] == 1.0


def test_cases_that_lasted_until_the_end_of_the_run_are_counted():
    lasting = case("kl_blowup", resolved=20) | {
        "resolution": "it was acknowledged",
        "lasted_until": "the run finished",
    }
    over = case("loss_spike", resolved=20) | {"resolution": "it cleared"}
    (run,) = compare([compared("a", cases=[lasting, over])])["runs"]

    assert (run["cases"], run["open_cases"], run["lasting_cases"]) == (2, 0, 1)
    assert case_count_text(run) == "2, 1 open when the run ended"


def test_cases_that_fired_when_their_training_ended_are_counted_by_themselves():
    """One of several trainings of a run, such as a fold."""
    fold = case("nan_or_inf", resolved=20) | {"lasted_until": "the training finished"}
    other = fold | {"name": "a/nan_or_inf#2"}
    lasting = case("kl_blowup", resolved=40) | {"lasted_until": "the run finished"}
    is_open = case("loss_spike")
    texts = [
        case_count_text(compare([compared("a", cases=cases)])["runs"][0])
        for cases in ([fold], [fold, other, lasting], [fold, is_open])
    ]

    assert texts == [
        "1, 1 open when its training ended",
        "3, 1 open when the run ended, 2 open when their training ended",
        "2, 1 open, 1 open when its training ended",
    ]


def test_time_counts_from_the_start_of_each_run():
    runs = [
        compared("a", {"started": 90.0}, curves={"loss": curve([1.0, 2.0], x=[100.0, 110.0])}),
        compared("b", {}, curves={"loss": curve([1.0, 2.0], x=[500.0, 520.0], bad=[520.0])}),
    ]
    series = compare(runs, axis="time")["series"]["loss"]

    assert [each["x"] for each in series] == [[10.0, 20.0], [0.0, 20.0]]
    assert series[1]["bad"] == [20.0]


def test_only_different_settings_are_shown():
    runs = [
        compared("a", metadata={"lr": 1e-3, "batch": 8, "pid": 1.0, "mlflow_run": "x"}),
        compared("b", metadata={"lr": 1e-4, "batch": 8.0, "pid": 2.0, "warmup": 5.0}),
    ]
    comparison = compare(runs)

    assert comparison["settings"] == [
        {"name": "lr", "values": [1e-3, 1e-4]},
        {"name": "warmup", "values": [None, 5.0]},
    ]
    assert comparison["same_settings"] == 1


def test_problems_stand_side_by_side_by_their_cause():
    runs = [
        compared("a", cases=[case("kl_blowup", 40, "critical", cause="learning_rate_too_high")]),
        compared(
            "b",
            cases=[
                case("grad_explosion", 60, "critical", cause="learning_rate_too_high", run="b"),
                case("rank3/straggler", 5, run="b"),
            ],
        ),
    ]
    comparison = compare(runs)
    first, second = comparison["problems"]

    assert first["title"] == "The learning_rate_too_high"
    assert [[each["onset_step"] for each in cell] for cell in first["cells"]] == [[40], [60]]
    assert [len(cell) for cell in second["cells"]] == [0, 1]


def test_a_metric_of_one_run_has_no_value_in_the_other():
    runs = [compared("a"), compared("b", curves={"reward": curve([1.0])})]
    metrics = {each["signal"]: each for each in compare(runs)["metrics"]}

    assert metrics["loss"]["values"][1] is None
    assert metrics["loss"]["best_run"] is None
    assert compare(runs)["series"]["reward"][0] is None


def test_machine_signals_are_compared_only_if_they_are_named():
    groups = {"gpu_power": "machine"}
    curves = {"loss": curve([1.0]), "gpu_power": curve([300.0])}
    run = compared("a", curves=curves, groups=groups)

    assert [each["signal"] for each in compare([run])["metrics"]] == ["loss"]
    named = compare([run], signals=["gpu_power", "unknown"])["metrics"]
    assert [each["signal"] for each in named] == ["gpu_power"]


def test_an_unknown_axis_and_too_many_runs_are_refused():
    with pytest.raises(ValueError, match="step, time, tokens"):
        compare([compared()], axis="epochs")
    with pytest.raises(ValueError, match="1 to 20"):
        compare([compared()] * 21)


def test_the_health_of_a_run_is_the_status_of_its_verdict():
    lasted = case("kl_blowup", 40, "critical", resolved=60) | {"lasted_until": "the run finished"}
    runs = [
        compared("a", {"run": "a", "state": "finished", "step": 60}, cases=[lasted]),
        compared("b", {"run": "b", "state": "running", "step": 60}),
    ]
    assert [run["health"] for run in compare(runs)["runs"]] == ["ended_badly", "healthy"]
