"""StepFilter distinguishes a run that goes back from two writers that count separately."""

from itertools import pairwise

import pytest

from sentinel.readers.rows import RowConverter, StepFilter

A, B, C = frozenset("a"), frozenset("b"), frozenset("c")


def followed(rows):
    counters = StepFilter()
    return [step for kind, step in rows if counters.accepts(kind, step)]


def test_a_run_that_goes_back_is_accepted():
    assert followed([(A, 1), (A, 2), (A, 3), (A, 2), (A, 3)]) == [1, 2, 3, 2, 3]


def test_a_lower_count_of_another_writer_is_rejected():
    assert followed([(A, 10), (B, 1), (A, 20), (B, 2), (A, 30), (B, 3)]) == [10, 20, 30]


def test_rows_with_different_keys_share_one_count():
    rows = [(A, 10), (B, 10), (C, 10), (A, 20), (C, 20)]

    assert followed(rows) == [10, 10, 10, 20, 20]


def test_a_resume_is_detected_even_if_it_starts_with_new_keys():
    assert followed([(A, 10), (A, 20), (B, 12), (A, 13), (B, 14)]) == [10, 20, 13, 14]


def run_steps(rows):
    """The steps of records of rows with an epoch and a step; no two have the same loss."""
    converter = RowConverter("run")
    records = [converter.to_record({"loss": 1.0 + n, **row}) for n, row in enumerate(rows)]
    return [(record.step, record.values.get("global_step")) for record in records]


def test_steps_that_start_over_with_each_epoch_are_added_up():
    rows = [{"epoch": epoch, "iter": step} for epoch in (1, 2, 3) for step in (50, 100, 150)]

    assert run_steps(rows) == [(step, float(step)) for step in range(50, 500, 50)]


def test_steps_from_zero_do_not_repeat_a_step():
    rows = [{"epoch": epoch, "step": step} for epoch in (0, 1) for step in range(3)]

    assert [step for step, _ in run_steps(rows)] == [0, 1, 2, 3, 4, 5]


def test_rows_of_an_evaluation_do_not_add_an_epoch():
    rows = [
        {"epoch": epoch, "step": step, **({"acc": 0.5} if step == 3 else {})}
        for epoch in (0, 1, 2)
        for step in (1, 2, 3)
    ]

    assert [step for step, _ in run_steps(rows)] == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_resume_within_an_epoch_goes_back():
    rows = [{"epoch": 1, "step": step} for step in (10, 20, 30, 20, 30)]

    assert [step for step, _ in run_steps(rows)] == [10, 20, 30, 20, 30]


def test_steps_of_the_run_stay_as_they_are():
    rows = [{"epoch": step / 100, "step": step} for step in (50, 100, 150, 200, 100)]
    assert [step for step, _ in run_steps(rows)] == [50, 100, 150, 200, 100]

    rows = [{"epoch": epoch, "step": 100 * epoch} for epoch in (1, 2, 3)]
    assert [step for step, _ in run_steps(rows)] == [100, 200, 300]


@pytest.mark.parametrize("block", [1, 2, 3, 8])
def test_two_ranks_that_write_one_file_go_back_once(block):
    """Each writes `block` rows at a time."""
    rows = [
        (A, 10 * (first + row))
        for first in range(0, 40, block)
        for _ in range(2)
        for row in range(block)
    ]
    steps = followed(rows)

    assert steps[-1] == max(step for _, step in rows)
    assert sum(later < step for step, later in pairwise(steps)) <= 1


def test_repeated_resumes_go_back_each_time():
    resumes = [10, 20, 30, 40, 30, 40, 50, 60, 50, 60, 70]
    assert followed((A, step) for step in resumes) == resumes

    begun_again = [10, 20, 30, 40, 10, 20, 30, 40, 50, 60, 30, 40, 50]
    assert followed((A, step) for step in begun_again) == begun_again
