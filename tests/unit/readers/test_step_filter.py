"""StepFilter distinguishes a run that goes back from two writers that count separately."""

from sentinel.readers.rows import StepFilter

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
