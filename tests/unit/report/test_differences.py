"""What differs is ranked by the departures of one's own runs that had the difference."""

from __future__ import annotations

import pytest

from sentinel.report.differences import OtherRun, comparable_settings, rank_differences

GOOD = {"learning_rate": 1e-5, "torch": "2.9.0", "git_commit": "a" * 40}
BAD = {"learning_rate": 1e-3, "torch": "2.9.1", "git_commit": "b" * 40}


def others(*rows):
    return [OtherRun(settings, has_departed) for settings, has_departed in rows]


def names(differences):
    return [each.name for each in differences]


def test_without_other_runs_settings_come_before_versions_and_code():
    assert names(rank_differences([GOOD], BAD, [])) == ["learning_rate", "torch", "git_commit"]


def test_the_difference_that_came_with_departures_is_first():
    own = others(
        (GOOD | {"torch": "2.9.1"}, True),
        (GOOD | {"torch": "2.9.1"}, True),
        (GOOD | {"learning_rate": 5e-4}, False),
        (GOOD, False),
        (GOOD, False),
        (GOOD, False),
    )
    first, *_, last = rank_differences([GOOD], BAD, own)

    assert (first.name, first.departed, first.count) == ("torch", 2, 2)
    assert (first.departed_without, first.count_without) == (0, 4)
    # Two of two, and none of four: 1 of 15 ways to choose two of six.
    assert first.chance == pytest.approx(1 / 15)
    assert (last.name, last.is_unlikely) == ("learning_rate", False)


def test_only_what_differs_from_each_good_run_and_is_known_of_all_counts():
    second = GOOD | {"torch": "2.9.1"}

    assert names(rank_differences([GOOD, second], BAD, [])) == ["learning_rate", "git_commit"]
    assert rank_differences([GOOD], {"vllm": "0.9"}, []) == []
    assert rank_differences([GOOD | {"vllm": "0.8"}], {}, []) == []


def test_a_setting_and_its_option_are_one_difference():
    good, bad = (
        comparable_settings(
            {
                "learning_rate": rate,
                "command": f"python train.py --lr {rate} --batch=8 --output_dir /x/{rate} --seed 1",
            }
        )
        for rate in (1e-5, 1e-3)
    )
    (difference,) = rank_differences([good], bad, [])

    assert (difference.name, difference.also) == ("learning_rate", ("--lr",))


def test_two_settings_that_change_alike_stay_two():
    found = rank_differences([{"a": 8.0, "b": 8.0}], {"a": 16.0, "b": 16.0}, [])

    assert names(found) == ["a", "b"]


def test_what_names_stores_logs_or_seeds_a_run_or_is_its_result_cannot_differ():
    metadata = {
        "output_dir": "/a", "seed": 1, "data_seed": 2, "logging_steps": 5, "save_steps": 9,
        "train_loss": 0.4, "train_runtime": 3.0, "pid": "7", "host": "n1", "run_name": "x",
        "git_changes": "unknown", "monitor/name": "a", "patch/trl": "on", "slurm/job_id": "3",
    }  # fmt: skip

    assert comparable_settings(metadata) == {}


def test_digits_of_an_identifier_are_no_number():
    found = comparable_settings({"dataset_fingerprint": "1234567890e12345"})

    assert found == {"dataset_fingerprint": "1234567890e12345"}
