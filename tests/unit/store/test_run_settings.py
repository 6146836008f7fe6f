"""Settings of many runs: their values, kinds, and which cannot be told apart."""

from __future__ import annotations

import pytest

from sentinel.store.run_settings import Setting, flat_settings, tabulate, to_value


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("3e-4", 3e-4),
        (" 8 ", 8.0),
        (8, 8.0),
        (True, True),
        ("False", False),
        ("None", None),
        ("", None),
        (float("nan"), None),
        ("inf", None),
        ("1_000", "1_000"),
        ("adamw", "adamw"),
        (["q", "v"], "q, v"),
        (10**400, str(10**400)[:100]),
        (object, str(object)),
    ],
)
def test_a_value_is_a_number_a_truth_value_a_text_or_none(given, expected):
    assert to_value(given) == expected
    assert type(to_value(given)) is type(expected)


def test_nested_settings_are_joined_and_what_names_the_run_is_left_out():
    given = {"a": {"b": {"c": 1}}, "pid": 3, "host": "n1", "patch/x": "on", "monitor/name": "r"}

    assert flat_settings(given) == {"a.b.c": 1.0}


def test_settings_are_sorted_by_what_they_can_say():
    runs = [
        {"lr": 10.0**-place, "model": "m", "seed": float(place), "path": f"/out/{place}"}
        for place in range(6)
    ]

    table = tabulate(runs)

    assert [each.name for each in table.varying] == ["lr"]
    assert table.constant == {"model": "m"}
    assert (table.seeds, table.identifiers) == (["seed"], ["path"])
    assert table.group == [0, 1, 2, 3, 4, 5]


def test_runs_that_differ_in_the_seed_only_are_one_group():
    runs = [{"lr": lr, "data_seed": seed} for lr in (0.1, 0.2) for seed in (1.0, 2.0)]

    assert tabulate(runs).group == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ([1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 8.0, 16.0], True),
        ([1.0, 2.0, 3.0, 4.0], [-1.0, -2.0, -3.0, -4.0], True),
        ([1.0, 2.0, 3.0, 4.0], [4.0, 1.0, 3.0, 2.0], False),
        ([1.0, 1.0, 2.0, 2.0], ["a", "a", "b", "b"], True),
        ([1.0, 1.0, 2.0, 2.0], [True, True, False, True], False),
        ([1.0, 2.0, 3.0, 1.0, 2.0, 3.0], [3.0, 9.0, 1.0, 3.0, 9.0, 1.0], True),
        ([1.0, None, 2.0, None], [5.0, None, 6.0, None], True),
        ([1.0, None, 2.0, None], [5.0, None, 6.0, 7.0], False),
    ],
)
def test_settings_that_no_tree_can_tell_apart_are_one(first, second, is_same):
    table = tabulate([{"a": a, "b": b} for a, b in zip(first, second, strict=True)])

    assert [each.same_as for each in table.varying] == ([("b",)] if is_same else [(), ()])


@pytest.mark.parametrize(
    ("numbers", "is_log"),
    [
        ([1e-5, 1e-4, 1e-3], True),
        ([1e-5, 1e-4, 0.0], False),
        ([1.0, 2.0, 3.0], False),
        ([0.01, 0.3, 0.6, 0.9], False),
        ([1.0, 1000.0], False),
    ],
)
def test_numbers_over_orders_of_magnitude_are_on_a_log_scale(numbers, is_log):
    assert Setting("x", "number", numbers).is_log is is_log
