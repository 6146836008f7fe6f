"""Text cut: a long text made short where it is read least, and what is left of it.

Of a prompt the end counts, since the question stands there; of a completion the beginning, and the
end, where loops are. What was left out is said in its place, with how much it was.
"""

from __future__ import annotations

from typing import NamedTuple

PROMPT = 1000
"""Characters kept of a prompt, from its end."""
HEAD, TAIL = 3000, 1000
"""Characters kept of a completion, from its beginning and its end."""

Told = tuple[dict[str, float], dict[str, str]]
"""Values and facts."""


class Cut(NamedTuple):
    """A text as it is kept: `first` characters of the original, a mark, `last` of its end.

    An uncut text has no mark: `first` is its length.
    """

    text: str
    first: int
    last: int


def cut_prompt(text: str, share: float = 1.0) -> str:
    """The end of a prompt; `share` of the usual length.

    >>> cut_prompt("is it so?", share=0.003)
    '[…6 characters left out…] so?'
    """
    return _cut(text, 0, int(PROMPT * share)).text.lstrip()


def cut_completion(text: str, share: float = 1.0) -> Cut:
    """The beginning and the end of a completion; `share` of the usual lengths.

    >>> cut_completion("la la la la", share=0.001)
    Cut(text='la  […7 characters left out…] a', first=3, last=1)
    """
    return _cut(text, int(HEAD * share), int(TAIL * share))


def told(prompt: str, completion: str, share: float = 1.0) -> Told:
    """Values and facts of a SAMPLE record: both texts cut, and what they were before.

    Values: `length` and `prompt_length` in characters before any cut; where the completion was cut,
    `first` and `last` as in Cut. Facts: `prompt`, `completion`.
    """
    cut = cut_completion(completion, share)
    values = {"prompt_length": float(len(prompt)), "length": float(len(completion))}
    if cut.first < len(completion):
        values |= {"first": float(cut.first), "last": float(cut.last)}
    return values, {"prompt": cut_prompt(prompt, share), "completion": cut.text}


def parts(cut: Cut) -> tuple[str, ...]:
    """What the model itself said of a cut text, without the mark.

    >>> parts(cut_completion("la la la la", share=0.001))
    ('la ', 'a')
    """
    if cut.first + cut.last >= len(cut.text):
        return (cut.text,)
    return cut.text[: cut.first], cut.text[len(cut.text) - cut.last :]


def _cut(text: str, first: int, last: int) -> Cut:
    left = len(text) - first - last
    if left <= 0:
        return Cut(text, len(text), 0)
    mark = f" […{left:,} characters left out…] "
    return Cut(f"{text[:first]}{mark}{text[len(text) - last :]}", first, last)
