"""The table of costs: medians, ratios of the same round, and what is missing."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import comparison
from comparison import QUICK, Group, Row, markdown, measure

ROW = Row("a task", "ms", {"sentinel": [1.0, 10.0, 4.0], "wandb": [2.0, 5.0, 16.0]})


def cells(row):
    """The cells of a row by column."""
    head, _, line = (text.strip("| ").split(" | ") for text in markdown([row]).splitlines())
    return dict(zip(head, line, strict=True))


def test_a_ratio_is_the_median_of_the_ratios_within_a_round():
    found = cells(ROW)

    assert (found["sentinel"], found["wandb"], found["of best peer"]) == ("**4**", "5", "0.5")


def test_the_ratio_to_the_floor_is_that_to_the_least_of_several():
    row = Row("a task", "s", {"sentinel": [6.0], "json": [3.0], "orjson": [2.0]})

    assert cells(row)["floor"] == "3 (json), 2 (orjson)"
    assert cells(row)["of floor"] == "3"


def test_a_tool_without_such_a_task_has_a_dash():
    assert cells(ROW)["mlflow"] == cells(ROW)["floor"] == cells(ROW)["of floor"] == "-"


def test_a_tool_that_is_missing_is_shown_and_not_measured(monkeypatch):
    monkeypatch.setitem(comparison.MODULES, "wandb", "no_such_module")
    measures = {"sentinel": lambda _folder: [2.0], "wandb": lambda _folder: 1 / 0}

    (row,) = measure(Group(("a task",), "ms", measures), QUICK)

    assert cells(row)["wandb"] == "not installed"
    assert cells(row)["sentinel"] == "**2**"


def test_a_tool_that_fails_is_shown_with_its_error_and_the_others_are_measured(capsys):
    measures = {"sentinel": lambda _folder: [2.0], "wandb": lambda _folder: [1 / 0]}

    (row,) = measure(Group(("a task",), "ms", measures), QUICK)

    assert (cells(row)["wandb"], cells(row)["sentinel"]) == ("failed", "**2**")
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_an_error_of_sentinel_itself_is_raised():
    with pytest.raises(ChildProcessError, match="ZeroDivisionError"):
        measure(Group(("a task",), "ms", {"sentinel": lambda _folder: [1 / 0]}), QUICK)


def test_a_program_that_is_missing_is_shown(monkeypatch):
    group = Group(("a task",), "calls", {"sentinel": lambda _folder: 1 / 0}, program="no-such-one")

    (row,) = measure(group, QUICK)

    assert cells(row)["sentinel"] == "**no no-such-one**"
