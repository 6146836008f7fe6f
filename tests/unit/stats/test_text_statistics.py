"""Statistics of texts, compared with values counted by hand."""

import pytest

from sentinel.stats.text_statistics import (
    CompletionText,
    compute_text_statistics,
    longest_word_run,
    repetition_share,
    split_words,
)


def text(content, **fields):
    return CompletionText((content,), float(len(content)), **fields)


@pytest.mark.parametrize(
    ("content", "share"),
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
def test_repetition_is_the_share_of_repeated_ngrams(content, share):
    assert repetition_share([split_words(content)]) == pytest.approx(share)


def test_no_ngram_spans_two_parts():
    assert repetition_share([split_words("a b c d"), split_words("a b c d")]) == 0.5
    assert repetition_share([split_words("a b"), split_words("c d")]) == 0.0


def test_the_longest_run_repeats_one_word():
    assert longest_word_run([split_words("a a b b b a"), split_words("b b")]) == 3
    assert longest_word_run([split_words("哈哈哈哈")]) == 4
    assert longest_word_run([[]]) == 0


def test_prose_with_a_long_word_is_split_into_words():
    content = "see https://example.org/a/very/long/path/to/some/page.html for all of it"
    assert split_words(content) == content.split()


def test_batch_statistics_equal_those_counted_by_hand():
    statistics = compute_text_statistics(
        [
            text("a b c d a b c d", finished=1.0),
            text("a b x", finished=0.0),
            text(" \n\t ", finished=0.0),
            text("a a a"),
        ]
    )

    assert statistics == {
        "sample_repetition": pytest.approx((1 / 5 + 0 + 0) / 3),
        "sample_longest_run": 3.0,
        "sample_empty": 1 / 4,
        "sample_truncated": pytest.approx(2 / 3),
        "sample_distinct_1": pytest.approx(5 / 14),  # a b c d x
        "sample_distinct_2": pytest.approx(6 / 11),  # ab bc cd da bx aa
        "sample_length": (15 + 5 + 4 + 5) / 4,
    }


def test_a_batch_of_blank_texts_has_only_emptiness_and_length():
    assert compute_text_statistics([text(""), text("  ")]) == {
        "sample_empty": 1.0,
        "sample_length": 1.0,
    }


def test_identical_texts_have_low_diversity():
    same = compute_text_statistics([text("the cat sat on the mat")] * 10)
    different = compute_text_statistics([text(f"{n}a {n}b {n}c {n}d {n}e {n}f") for n in range(10)])

    assert same["sample_distinct_1"] == pytest.approx(5 / 60)
    assert same["sample_repetition"] == 0.0
    assert (different["sample_distinct_1"], different["sample_distinct_2"]) == (1.0, 1.0)
