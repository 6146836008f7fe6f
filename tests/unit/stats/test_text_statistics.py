"""Text health: statistics of texts, against values counted by hand."""

import pytest

from sentinel.stats.chat_text import to_plain_text
from sentinel.stats.text_selection import select_indices
from sentinel.stats.text_statistics import (
    CompletionText,
    compute_text_statistics,
    longest_word_run,
    repetition_share,
    split_words,
)
from sentinel.stats.text_truncation import (
    HEAD_CHARS,
    PROMPT_CHARS,
    TAIL_CHARS,
    original_parts,
    sample_fields,
    truncate_completion,
    truncate_prompt,
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


def test_a_long_text_is_cut_where_it_is_read_least():
    said = "h" * HEAD_CHARS + "m" * 12345 + "t" * TAIL_CHARS
    cut = truncate_completion(said)

    assert cut.text == "h" * HEAD_CHARS + " […12,345 characters left out…] " + "t" * TAIL_CHARS
    assert original_parts(cut) == ("h" * HEAD_CHARS, "t" * TAIL_CHARS)
    assert (
        truncate_prompt("x" * 20 + "p" * PROMPT_CHARS)
        == "[…20 characters left out…] " + "p" * PROMPT_CHARS
    )


@pytest.mark.parametrize("length", [0, 1, HEAD_CHARS + TAIL_CHARS])
def test_a_text_that_fits_is_whole(length):
    cut = truncate_completion("x" * length)
    assert (cut.text, original_parts(cut)) == ("x" * length, ("x" * length,))


def test_a_text_that_looks_like_the_mark_is_still_the_models():
    said = "so […5 characters left out…] it goes"
    assert original_parts(truncate_completion(said)) == (said,)


def test_what_is_told_holds_the_lengths_before_the_cut():
    values, facts = sample_fields("p" * 5000, "c" * 9000)

    assert values == {
        "prompt_length": 5000,
        "length": 9000,
        "first": HEAD_CHARS,
        "last": TAIL_CHARS,
    }
    assert len(facts["completion"]) < HEAD_CHARS + TAIL_CHARS + 50


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.5])
def test_any_share_of_the_room_leaves_parts_that_can_be_found_again(share):
    said = "".join(chr(0x4E00 + n) for n in range(9000))
    cut = truncate_completion(said, share)

    first, last = original_parts(cut)
    assert said.startswith(first)
    assert said.endswith(last)
    assert (len(first), len(last)) == (int(HEAD_CHARS * share), int(TAIL_CHARS * share))


def test_the_first_the_last_the_best_and_the_worst_are_chosen():
    totals = [0.0] * 100
    totals[33], totals[71] = -5.0, 5.0

    chosen = select_indices(100, 8, totals)

    assert {0, 33, 71, 99} <= set(chosen)
    assert len(chosen) <= 8
    assert chosen == sorted(set(chosen))


@pytest.mark.parametrize("most", range(1, 12))
@pytest.mark.parametrize("size", [0, 1, 2, 5, 11, 1000])
def test_never_more_are_chosen_than_wanted(size, most):
    for totals in ([], [1.0] * size, [float("nan")] * size, [float(n) for n in range(size)]):
        chosen = select_indices(size, most, totals)
        assert len(chosen) <= min(size, most)
        assert all(0 <= at < size for at in chosen)
        assert chosen or not size


class Str(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "given", [None, 7, b"bytes", Str("mine"), ["a"], [{"content": "x"}, 7], {"content": "x"}]
)
def test_what_is_no_text_and_no_conversation_is_none(given):
    assert to_plain_text(given) is None


def test_a_conversation_that_contains_itself_has_an_end():
    loop = []
    loop.append({"content": loop})
    assert to_plain_text(loop) == ""
