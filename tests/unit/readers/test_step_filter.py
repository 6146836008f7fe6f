"""Counters: a run that goes back is told from two writers that count for themselves."""

from sentinel.readers.rows import StepFilter

A, B, C = frozenset("a"), frozenset("b"), frozenset("c")


def followed(rows):
    counters = StepFilter()
    return [step for kind, step in rows if counters.accepts(kind, step)]


def test_a_run_that_goes_back_is_followed_back():
    assert followed([(A, 1), (A, 2), (A, 3), (A, 2), (A, 3)]) == [1, 2, 3, 2, 3]


def test_another_writers_lower_count_is_not():
    assert followed([(A, 10), (B, 1), (A, 20), (B, 2), (A, 30), (B, 3)]) == [10, 20, 30]


def test_rows_of_many_kinds_for_one_step_are_one_count():
    rows = [(A, 10), (B, 10), (C, 10), (A, 20), (C, 20)]

    assert followed(rows) == [10, 10, 10, 20, 20]


def test_a_resume_shows_even_if_it_begins_with_a_new_kind():
    assert followed([(A, 10), (A, 20), (B, 12), (A, 13), (B, 14)]) == [10, 20, 13, 14]
