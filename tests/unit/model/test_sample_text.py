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


def test_a_long_completion_is_truncated_in_the_middle_and_a_prompt_at_its_start():
    text = "h" * HEAD_CHARS + "m" * 12345 + "t" * TAIL_CHARS
    truncated = truncate_completion(text)

    assert (
        truncated.text == "h" * HEAD_CHARS + " […12,345 characters left out…] " + "t" * TAIL_CHARS
    )
    assert original_parts(truncated) == ("h" * HEAD_CHARS, "t" * TAIL_CHARS)
    assert (
        truncate_prompt("x" * 20 + "p" * PROMPT_CHARS)
        == "[…20 characters left out…] " + "p" * PROMPT_CHARS
    )


@pytest.mark.parametrize("length", [0, 1, HEAD_CHARS + TAIL_CHARS])
def test_a_short_text_is_not_truncated(length):
    truncated = truncate_completion("x" * length)
    assert (truncated.text, original_parts(truncated)) == ("x" * length, ("x" * length,))


def test_a_text_that_looks_like_the_mark_is_an_original_part():
    text = "so […5 characters left out…] it goes"
    assert original_parts(truncate_completion(text)) == (text,)


def test_sample_fields_hold_the_lengths_before_truncation():
    values, attributes = sample_fields("p" * 5000, "c" * 9000)

    assert values == {
        "prompt_length": 5000,
        "length": 9000,
        "head_chars": HEAD_CHARS,
        "tail_chars": TAIL_CHARS,
    }
    assert len(attributes["completion"]) < HEAD_CHARS + TAIL_CHARS + 50


@pytest.mark.parametrize("length_factor", [0.0, 0.0001, 0.01, 0.5])
def test_original_parts_are_recovered_for_any_length_factor(length_factor):
    text = "".join(chr(0x4E00 + n) for n in range(9000))
    truncated = truncate_completion(text, length_factor)

    first, last = original_parts(truncated)
    assert text.startswith(first)
    assert text.endswith(last)
    assert (len(first), len(last)) == (
        int(HEAD_CHARS * length_factor),
        int(TAIL_CHARS * length_factor),
    )


def test_first_last_best_and_worst_are_selected():
    scores = [0.0] * 100
    scores[33], scores[71] = -5.0, 5.0

    selected = select_indices(100, 8, scores)

    assert {0, 33, 71, 99} <= set(selected)
    assert len(selected) <= 8
    assert selected == sorted(set(selected))


@pytest.mark.parametrize("limit", range(1, 12))
@pytest.mark.parametrize("size", [0, 1, 2, 5, 11, 1000])
def test_the_limit_is_never_exceeded(size, limit):
    for scores in ([], [1.0] * size, [float("nan")] * size, [float(n) for n in range(size)]):
        selected = select_indices(size, limit, scores)
        assert len(selected) <= min(size, limit)
        assert all(0 <= at < size for at in selected)
        assert selected or not size


class StrSubclass(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [None, 7, b"bytes", StrSubclass("mine"), ["a"], [{"content": "x"}, 7], {"content": "x"}],
)
def test_other_objects_have_no_plain_text(value):
    assert to_plain_text(value) is None


def test_a_recursive_conversation_terminates():
    loop = []
    loop.append({"content": loop})
    assert to_plain_text(loop) == ""
