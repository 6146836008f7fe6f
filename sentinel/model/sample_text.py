"""Sampled texts: which texts of a batch are recorded, and how a long text is truncated.

Of a prompt the end is kept, since that is where the question is; of a completion the beginning and
the end, where loops show. A mark in place of the rest states its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, NamedTuple

PROMPT_CHARS = 1000
"""Characters kept of a prompt, from its end."""
HEAD_CHARS, TAIL_CHARS = 3000, 1000
"""Characters kept of a completion, from its beginning and its end."""

_MAX_MESSAGES = 1000
"""Messages of one conversation, and parts of one message, that are read: the last ones."""

SampleFields = tuple[dict[str, float], dict[str, str]]
"""Values and attributes of a SAMPLE record."""


class TruncatedText(NamedTuple):
    """A text as it is stored: the first `head_chars` characters, a mark, the last `tail_chars`.

    A text that was not truncated has no mark; `head_chars` is its length.
    """

    text: str
    head_chars: int
    tail_chars: int


def truncate_prompt(text: str, length_factor: float = 1.0) -> str:
    """The end of a prompt, `PROMPT_CHARS * length_factor` characters.

    >>> truncate_prompt("is it so?", length_factor=0.003)
    '[…6 characters left out…] so?'
    """
    return _truncate(text, 0, int(PROMPT_CHARS * length_factor)).text.lstrip()


def truncate_completion(text: str, length_factor: float = 1.0) -> TruncatedText:
    """The beginning and the end of a completion, both lengths times `length_factor`.

    >>> truncate_completion("la la la la", length_factor=0.001)
    TruncatedText(text='la  […7 characters left out…] a', head_chars=3, tail_chars=1)
    """
    return _truncate(text, int(HEAD_CHARS * length_factor), int(TAIL_CHARS * length_factor))


def sample_fields(prompt: str, completion: str, length_factor: float = 1.0) -> SampleFields:
    """Values and attributes of a SAMPLE record with both texts, truncated.

    Values: `length` and `prompt_length` in characters before truncation; if the completion was
    truncated, `head_chars` and `tail_chars`. Attributes: `prompt`, `completion`.
    """
    truncated = truncate_completion(completion, length_factor)
    values = {"prompt_length": float(len(prompt)), "length": float(len(completion))}
    if truncated.head_chars < len(completion):
        values["head_chars"] = float(truncated.head_chars)
        values["tail_chars"] = float(truncated.tail_chars)
    texts = {"prompt": truncate_prompt(prompt, length_factor), "completion": truncated.text}
    return values, texts


def original_parts(truncated: TruncatedText) -> tuple[str, ...]:
    """The parts of a truncated text that the model wrote, without the mark.

    >>> original_parts(truncate_completion("la la la la", length_factor=0.001))
    ('la ', 'a')
    """
    text, head_chars, tail_chars = truncated
    if head_chars + tail_chars >= len(text):
        return (text,)
    return text[:head_chars], text[len(text) - tail_chars :]


def _truncate(text: str, head_chars: int, tail_chars: int) -> TruncatedText:
    omitted = len(text) - head_chars - tail_chars
    if omitted <= 0:
        return TruncatedText(text, len(text), 0)
    mark = f" […{omitted:,} characters left out…] "
    shortened = f"{text[:head_chars]}{mark}{text[len(text) - tail_chars :]}"
    return TruncatedText(shortened, head_chars, tail_chars)


def select_indices(size: int, limit: int, scores: Sequence[float] = ()) -> list[int]:
    """At most `limit` of the indices below `size`: evenly spaced, with the first and the last.

    The indices of the lowest and the highest of `scores`, which may be fewer, are among them.

    >>> select_indices(9, 3), select_indices(9, 5, scores=[0.0, 5.0, 1.0, -2.0])
    ([0, 4, 8], [0, 1, 3, 4, 8])
    """
    if size <= limit:
        return list(range(size))
    extremes = set(_extreme_indices(scores[:size])[:limit])
    # As few of the evenly spaced indices as necessary give way to the extremes.
    choices = (extremes | _evenly_spaced(size, limit - fewer) for fewer in range(len(extremes) + 1))
    return sorted(next(chosen for chosen in choices if len(chosen) <= limit))


def _extreme_indices(scores: Sequence[float]) -> list[int]:
    finite = [at for at, score in enumerate(scores) if isfinite(score)]
    return [pick(finite, key=scores.__getitem__) for pick in (min, max)] if finite else []


def _evenly_spaced(size: int, limit: int) -> set[int]:
    return {at * (size - 1) // max(1, limit - 1) for at in range(limit)}


def to_plain_text(text_or_messages: Any) -> str | None:
    r"""The text itself, or the text of a conversation's messages; None for anything else.

    Only exact `str`, `list` and `dict` objects are read, so that no foreign code runs.

    >>> to_plain_text("so"), to_plain_text([{"content": "so"}, {"content": "be it"}])
    ('so', 'so\nbe it')
    >>> to_plain_text([{"content": [{"type": "image"}, {"type": "text", "text": "a cat"}]}])
    'a cat'
    """
    if type(text_or_messages) is str:
        return text_or_messages
    texts = _collect_texts(text_or_messages, "content")
    return None if texts is None else "\n".join(texts)


def _collect_texts(messages: Any, key: str) -> list[str] | None:
    if type(messages) is not list:
        return None
    texts: list[str] = []
    for message in messages[-_MAX_MESSAGES:]:
        if type(message) is not dict:
            return None
        content = message.get(key)
        if type(content) is str:
            texts.append(content)
        elif key == "content":
            texts.extend(_collect_texts(content, "text") or ())
    return texts
