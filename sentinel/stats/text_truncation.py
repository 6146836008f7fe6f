"""Text cut: a long text made short where it is read least, and what is left of it.

Of a prompt the end counts, since the question stands there; of a completion the beginning, and the
end, where loops are. What was left out is said in its place, with how much it was.
"""

from __future__ import annotations

from typing import NamedTuple

PROMPT_CHARS = 1000
"""Characters kept of a prompt, from its end."""
HEAD_CHARS, TAIL_CHARS = 3000, 1000
"""Characters kept of a completion, from its beginning and its end."""

SampleFields = tuple[dict[str, float], dict[str, str]]
"""Values and facts."""


class TruncatedText(NamedTuple):
    """A text as it is kept: `first` characters of the original, a mark, `last` of its end.

    An uncut text has no mark: `first` is its length.
    """

    text: str
    head_chars: int
    tail_chars: int


def truncate_prompt(text: str, length_factor: float = 1.0) -> str:
    """The end of a prompt; `share` of the usual length.

    >>> cut_prompt("is it so?", share=0.003)
    '[…6 characters left out…] so?'
    """
    return _truncate(text, 0, int(PROMPT_CHARS * length_factor)).text.lstrip()


def truncate_completion(text: str, length_factor: float = 1.0) -> TruncatedText:
    """The beginning and the end of a completion; `share` of the usual lengths.

    >>> cut_completion("la la la la", share=0.001)
    Cut(text='la  […7 characters left out…] a', first=3, last=1)
    """
    return _truncate(text, int(HEAD_CHARS * length_factor), int(TAIL_CHARS * length_factor))


def sample_fields(prompt: str, completion: str, length_factor: float = 1.0) -> SampleFields:
    """Values and facts of a SAMPLE record: both texts cut, and what they were before.

    Values: `length` and `prompt_length` in characters before any cut; where the completion was cut,
    `first` and `last` as in Cut. Facts: `prompt`, `completion`.
    """
    cut = truncate_completion(completion, length_factor)
    values = {"prompt_length": float(len(prompt)), "length": float(len(completion))}
    if cut.head_chars < len(completion):
        values |= {"first": float(cut.head_chars), "last": float(cut.tail_chars)}
    return values, {"prompt": truncate_prompt(prompt, length_factor), "completion": cut.text}


def original_parts(truncated: TruncatedText) -> tuple[str, ...]:
    """What the model itself said of a cut text, without the mark.

    >>> parts(cut_completion("la la la la", share=0.001))
    ('la ', 'a')
    """
    if truncated.head_chars + truncated.tail_chars >= len(truncated.text):
        return (truncated.text,)
    return truncated.text[: truncated.head_chars], truncated.text[
        len(truncated.text) - truncated.tail_chars :
    ]


def _truncate(text: str, head_chars: int, tail_chars: int) -> TruncatedText:
    left = len(text) - head_chars - tail_chars
    if left <= 0:
        return TruncatedText(text, len(text), 0)
    mark = f" […{left:,} characters left out…] "
    return TruncatedText(
        f"{text[:head_chars]}{mark}{text[len(text) - tail_chars :]}", head_chars, tail_chars
    )
