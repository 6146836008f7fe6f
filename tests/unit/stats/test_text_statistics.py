"""Text health: statistics of texts, against values counted by hand."""

import pytest

from sentinel.stats.text_statistics import (
    CompletionText,
    compute_text_statistics,
    longest_word_run,
    repetition_share,
    split_words,
)


def text(said, **told):
    return CompletionText((said,), float(len(said)), **told)


@pytest.mark.parametrize(
    ("said", "share"),
    [
        ("", 0.0),
        ("one two three", 0.0),  # no n-gram of four
        ("a b c d", 0.0),
        ("a b c d e f g h", 0.0),
        ("a b c d a b c d", 1 / 5),  # abcd bcda cdab dabc abcd
        ("no " * 10, 6 / 7),
        ("a" * 103, 99 / 100),  # no words: letters
        ("好" * 13, 9 / 10),
        ("我们今天去学校学习新的知识", 0.0),
        ("ภาษา" * 4, 9 / 13),
    ],
)
def test_repetition_is_the_share_of_n_grams_that_came_before(said, share):
    assert repetition_share([split_words(said)]) == pytest.approx(share)


def test_no_n_gram_reaches_across_what_was_cut_out():
    assert repetition_share([split_words("a b c d"), split_words("a b c d")]) == 0.5
    assert repetition_share([split_words("a b"), split_words("c d")]) == 0.0


def test_the_longest_run_is_of_one_word():
    assert longest_word_run([split_words("a a b b b a"), split_words("b b")]) == 3
    assert longest_word_run([split_words("哈哈哈哈")]) == 4
    assert longest_word_run([[]]) == 0


def test_ordinary_prose_with_a_long_word_in_it_keeps_its_words():
    said = "see https://example.org/a/very/long/path/to/some/page.html for all of it"
    assert split_words(said) == said.split()


def test_a_batch_is_judged_as_counted_by_hand():
    found = compute_text_statistics(
        [
            text("a b c d a b c d", finished=1.0),
            text("a b x", finished=0.0),
            text(" \n\t ", finished=0.0),
            text("a a a"),
        ]
    )

    assert found == {
        "sample_repetition": pytest.approx((1 / 5 + 0 + 0) / 3),
        "sample_longest_run": 3.0,
        "sample_empty": 1 / 4,
        "sample_truncated": pytest.approx(2 / 3),
        "sample_distinct_1": pytest.approx(5 / 14),  # a b c d x
        "sample_distinct_2": pytest.approx(6 / 11),  # ab bc cd da bx aa
        "sample_length": (15 + 5 + 4 + 5) / 4,
    }


def test_a_batch_of_nothing_tells_only_that():
    assert compute_text_statistics([text(""), text("  ")]) == {
        "sample_empty": 1.0,
        "sample_length": 1.0,
    }


def test_texts_that_are_all_alike_are_of_no_variety():
    same = compute_text_statistics([text("the cat sat on the mat")] * 10)
    apart = compute_text_statistics([text(f"{n}a {n}b {n}c {n}d {n}e {n}f") for n in range(10)])

    assert same["sample_distinct_1"] == pytest.approx(5 / 60)
    assert same["sample_repetition"] == 0.0
    assert (apart["sample_distinct_1"], apart["sample_distinct_2"]) == (1.0, 1.0)
