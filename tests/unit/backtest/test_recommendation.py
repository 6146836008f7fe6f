"""Which settings are recommended, and when none are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentinel.backtest.backtest import Backtest, BacktestRun, match_names
from sentinel.backtest.marks import MarkedCase, RunMarks, StepRange
from sentinel.backtest.recommendation import recommend
from sentinel.backtest.run_replay import RunFindings, SentNotification
from sentinel.backtest.variants import Variant
from sentinel.config.settings import Settings

STEPS = 100


def findings(steps):
    sent = tuple(SentNotification(step, "opened", "warning", "kl_blowup", "") for step in steps)
    return RunFindings(STEPS, STEPS, 0.0, STEPS, sent, (), ())


def make_run(name, steps, *, is_healthy=False, days=1.0):
    """A run with the steps of the notifications by each of the settings."""
    return BacktestRun(
        name, days, [findings(each) for each in steps], is_healthy, is_faulty=not is_healthy
    )


def make_backtest(runs):
    names = [(), *((f"limit={n}",) for n in range(1, len(runs[0].findings)))]
    return Backtest([Variant(each, Settings()) for each in names], runs)


def recommend_for(runs, budget=0.1):
    return recommend(make_backtest(runs), budget)


def healthy_runs(count, steps, days=1.0):
    return [make_run(f"good-{n}", steps, is_healthy=True, days=days) for n in range(count)]


def test_of_settings_within_the_budget_those_that_notify_most_runs_are_chosen():
    # The current settings miss a run, the first others send nothing false, the last ones too much.
    faulty = [make_run("bad-1", [[50], [50], [50]])]
    faulty += [make_run(name, [[], [80], [60]]) for name in ("bad-2", "bad-3")]
    made = recommend_for([*healthy_runs(3, [[], [], [5] * 3], 40.0), *faulty])

    assert made.variant == 1
    assert made.reason.startswith("0 false notifications in 120 run days: at most 0.025")
    assert (made.left_out.found, made.left_out.faults, made.left_out.lost) == (3, 3, ())
    assert made.left_out.choices == (1,) * 6


def test_of_those_the_earliest_is_chosen_and_else_that_with_the_fewest_false_notifications():
    healthy = [*healthy_runs(4, [[], [], []], 40.0)]
    one_false = make_run("one", [[], [7], []], is_healthy=True, days=40.0)
    early = make_run("bad", [[90], [10], [90]])
    late = make_run("bad", [[90], [90], [90]])

    assert recommend_for([*healthy, one_false, early]).variant == 1
    assert recommend_for([*healthy, one_false, late]).variant == 0


def test_too_few_runs_give_no_recommendation_and_how_many_are_needed():
    made = recommend_for([*healthy_runs(10, [[], []]), make_run("bad", [[], [5]])])

    assert made.variant is None
    assert made.needed_runs == 30
    assert made.needed_days == pytest.approx(29.96, abs=0.01)
    assert "Too few runs: with 0 false notifications of 10 judged runs in 10 days" in made.reason
    assert recommend_for(healthy_runs(30, [[], []])).variant is not None


def test_a_single_healthy_run_is_too_few_however_long_it_is():
    made = recommend_for(healthy_runs(1, [[], []], 400.0))

    assert (made.variant, made.needed_days, made.needed_runs) == (None, None, 2)
    assert made.reason.startswith("1 judged run of any length is too few: at least 2 are needed")


def test_settings_that_find_nothing_are_not_recommended_in_place_of_some_that_do():
    healthy = healthy_runs(40, [[3], []])
    only_now = make_run("bad-1", [[50], []])

    nothing = recommend_for([*healthy, only_now])
    less = recommend_for([*healthy, only_now, make_run("bad-2", [[50], [60]])])
    assert nothing.variant is None
    assert "find no fault. The current ones find 1 of 1 fault, with 1 false" in nothing.reason
    assert less.variant == 1
    assert less.reason.endswith("1 of 2 faults found, 2 by the current settings.")


def test_judged_runs_without_times_are_no_part_of_the_numbers():
    timeless = make_run("timeless", [[1, 2], [1, 2]], is_healthy=True, days=0.0)
    made = recommend_for([*healthy_runs(40, [[], []]), timeless])

    assert made.variant == 0
    assert "1 judged run without times left out of these numbers" in made.reason


def test_a_rate_above_the_budget_needs_other_settings_and_not_more_runs():
    made = recommend_for(healthy_runs(40, [[3], [5]]))

    assert (made.variant, made.needed_runs) == (None, None)
    assert "None of the settings is within the budget" in made.reason
    assert "kl_blowup (40)" in made.reason


@pytest.mark.parametrize("budget", [0.05, 0.2])
def test_the_budget_decides(budget):
    made = recommend_for(healthy_runs(30, [[], []]), budget)

    assert (made.variant is None) == (budget < 0.1)


def test_without_healthy_runs_or_without_times_there_is_none():
    unnamed = recommend_for([make_run("any", [[], []])])
    timeless = recommend_for(healthy_runs(3, [[], []], days=0.0))

    assert unnamed.variant is None
    assert "--healthy" in unnamed.reason
    assert timeless.variant is None
    assert "--step-seconds" in timeless.reason


def test_a_choice_that_fails_in_the_runs_left_out_is_not_recommended():
    """Both other settings seem better, each but for one run, and are chosen without that."""
    first = make_run("first", [[], [3] * 100, []], is_healthy=True, days=40.0)
    second = make_run("second", [[], [], [3] * 100], is_healthy=True, days=40.0)
    faulty = make_run("bad", [[50], [10], [10]])
    made = recommend_for([first, second, *healthy_runs(3, [[]] * 3, 40.0), faulty])

    assert made.variant is None
    assert "exceed the budget in the run that is left out: 1 false" in made.reason
    assert made.left_out.false.count == 200


def test_if_one_run_less_is_too_few_one_more_is_asked_for():
    """30 days without a false notification are just enough for the budget, 29 are not."""
    bad = make_run("bad", [[50], [50]])
    made = recommend_for([*healthy_runs(30, [[3], []]), bad])

    assert (made.variant, made.needed_runs, made.left_out.undecided) == (None, 31, 30)
    assert made.reason.startswith("Too few runs: without one of them, for 30 of the 30 judged")
    assert recommend_for([*healthy_runs(31, [[3], []]), bad]).variant == 1


def test_what_only_a_run_itself_tells_is_lost_without_it():
    """One faulty run is notified only with the sensitive settings, which no other run needs."""
    healthy = healthy_runs(8, [[], [], []], 40.0)
    one_false = make_run("one", [[], [], [7]], is_healthy=True, days=40.0)
    hidden = make_run("hidden", [[60], [], [60]])
    plain = [make_run(f"bad-{n}", [[50], [10], [50]]) for n in range(3)]
    left_out = recommend_for([*healthy, one_false, hidden, *plain]).left_out

    assert left_out.lost == ("hidden",)
    assert left_out.found == 3


def test_each_run_is_counted_once_for_the_choices_without_the_others(monkeypatch):
    """Counted again for each run that is left out, a thousand runs take an hour."""
    counted = []
    count = BacktestRun.false_notifications
    monkeypatch.setattr(
        BacktestRun, "false_notifications", lambda *given: counted.append(given) or count(*given)
    )
    runs = [*healthy_runs(60, [[], []], 1.0), make_run("bad", [[], [5]])]
    made = recommend_for(runs)

    assert (made.variant, made.left_out.lost) == (1, ())
    assert len(counted) < 3 * len(runs) * 2


def test_a_pattern_without_a_run_names_the_nearest():
    with pytest.raises(ValueError, match=r"matches none of the runs. Did you mean \"good-1\""):
        match_names(["god-1"], ["good-1", "bad"])


def test_in_a_run_with_marks_what_is_outside_the_useful_cases_is_false():
    cases = (MarkedCase("a", True, StepRange(40, 60)), MarkedCase("b", False, StepRange(70, 75)))
    steps = [[50, 72], [45, 46, 61], []]
    run = replace(make_run("marked", steps), marks=RunMarks(cases, is_complete=True))

    assert [len(run.false_notifications(each)) for each in range(3)] == [1, 1, 0]
    assert [run.found_count(each) for each in range(3)] == [1, 1, 0]
    assert [run.found_after(each) for each in range(3)] == [0.5, 0.45, 1.0]


def test_a_run_whose_marks_are_not_complete_is_not_judged():
    marks = RunMarks((MarkedCase("a", False, StepRange(70, 75)),))
    run = replace(make_run("marked", [[50, 72]]), marks=marks)

    assert not run.is_judged
    assert (len(run.false_notifications(0)), run.found_count(0), len(run.faults)) == (0, 1, 1)


def test_a_run_of_which_nothing_is_known_counts_neither_for_nor_against_settings():
    """With marks only, runs without a case cannot be marked: they may well be healthy."""
    useful = RunMarks((MarkedCase("a", True, StepRange(40, 60)),), is_complete=True)
    marked = [
        replace(make_run(f"marked-{n}", [[50], [50]], days=40.0), marks=useful) for n in range(3)
    ]
    unknown = [
        replace(make_run(f"unknown-{n}", [[], [7]], days=40.0), is_faulty=False) for n in range(9)
    ]
    made = recommend_for([*marked, *unknown])

    assert (made.variant, made.left_out.faults) == (0, 3)
    assert recommend_for([*marked, replace(unknown[0], is_faulty=True)]).variant == 1


def test_the_useful_cases_of_a_run_are_to_be_found_before_all_are_marked():
    marks = RunMarks((MarkedCase("a", True, StepRange(40, 60)),))
    run = replace(make_run("marked", [[30], [50]]), marks=marks)

    assert [run.found_count(each) for each in range(2)] == [0, 1]
    assert not run.is_judged


def test_what_the_user_calls_healthy_is_healthy_whatever_its_marks():
    marks = RunMarks((MarkedCase("a", True, StepRange(0)),), is_complete=True)
    run = replace(make_run("healthy", [[50]], is_healthy=True), marks=marks)

    assert (len(run.false_notifications(0)), run.faults) == (1, ())
