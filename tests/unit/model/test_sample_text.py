"""Texts of a batch are selected and truncated, and conversations are read as plain text."""

import pytest

from sentinel.model.sample_text import (
    HEAD_CHARS,
    PROMPT_CHARS,
    TAIL_CHARS,
    original_parts,
    sample_fields,
    select_indices,
    to_plain_text,
    truncate_completion,
    truncate_prompt,
)


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
        "head_chars": HEAD_CHARS,
        "tail_chars": TAIL_CHARS,
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
