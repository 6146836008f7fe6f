"""Statistics of the texts of one step: repetition, emptiness, truncation, diversity and length.

Formula: repetition of a text is 1 - distinct n-grams / n-grams, n = 4; distinct-n of a batch is
distinct n-grams / n-grams over all its texts together. n-grams are of words; a character of a
script that is written without spaces is a word, and so is every character of a text whose words are
longer on average than in any language.
Source: distinct-n as Li et al. 2016 (arXiv:1510.03055); repeated 4-grams as Welleck et al. 2020
(arXiv:1908.04319).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import fsum

REPETITION_NGRAM_WORDS = 4
"""Words in an n-gram of repetition."""
MAX_MEAN_WORD_CHARS = 24
"""Mean word length above which a text is split into characters."""

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, kana and Han."""
_WORDS = f"[{_UNSPACED}]|[^\\s{_UNSPACED}]+"
"""Compiled at the first text: it takes as long as to import ten modules."""


@dataclass(frozen=True, slots=True)
class CompletionText:
    """One completion: the parts that are known, and its full length in characters.

    `finished` is 1 if the model ended it, 0 if the length limit did, None if unknown.
    """

    parts: tuple[str, ...]
    length_chars: float
    finished: float | None = None


def split_words(text: str) -> list[str]:
    """The words of a text.

    >>> split_words("so be it"), split_words("好的 ok")
    (['so', 'be', 'it'], ['好', '的', 'ok'])
    """
    words: list[str] = re.findall(_WORDS, text)
    if len(text) > MAX_MEAN_WORD_CHARS and sum(map(len, words)) > MAX_MEAN_WORD_CHARS * len(words):
        return [letter for letter in text if not letter.isspace()]
    return words


def repetition_share(parts: Sequence[Sequence[str]]) -> float:
    """Share of n-grams that repeat an earlier one; 0 if there are none.

    >>> repetition_share([split_words("round and round and round and round")])
    0.5
    """
    grams = [gram for part in parts for gram in _ngrams(part, REPETITION_NGRAM_WORDS)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def longest_word_run(parts: Sequence[Sequence[str]]) -> int:
    """Length of the longest run of one word.

    >>> longest_word_run([split_words("no no no yes yes")])
    3
    """
    runs = (sum(1 for _ in same) for part in parts for _, same in groupby(part))
    return max(runs, default=0)


def distinct_ngram_share(
    texts: Sequence[Sequence[Sequence[str]]], ngram_words: int
) -> float | None:
    """Share of distinct n-grams of that size over all texts; None if there are none.

    >>> distinct_ngram_share([[["a", "b"]], [["a", "c"]]], 1)
    0.75
    """
    grams = [gram for parts in texts for part in parts for gram in _ngrams(part, ngram_words)]
    return len(set(grams)) / len(grams) if grams else None


def compute_text_statistics(texts: Sequence[CompletionText]) -> dict[str, float]:
    """Statistics of the texts of a step, at least one; unknown ones are left out.

    `sample_repetition` (mean share), `sample_longest_run` (words, the longest of all),
    `sample_empty` (share), `sample_truncated` (share of the texts for which it is known),
    `sample_distinct_1`, `sample_distinct_2` (shares), `sample_length` (mean, characters).
    """
    split = [[split_words(part) for part in text.parts] for text in texts]
    nonempty = [parts for parts in split if any(parts)]
    finished = [text.finished for text in texts if text.finished is not None]
    statistics = {
        "sample_repetition": _mean([repetition_share(parts) for parts in nonempty]),
        "sample_longest_run": float(max(map(longest_word_run, nonempty))) if nonempty else None,
        "sample_empty": 1.0 - len(nonempty) / len(texts),
        "sample_truncated": _mean([1.0 - each for each in finished]),
        "sample_distinct_1": distinct_ngram_share(nonempty, 1),
        "sample_distinct_2": distinct_ngram_share(nonempty, 2),
        "sample_length": _mean([text.length_chars for text in texts]),
    }
    return {name: value for name, value in statistics.items() if value is not None}


def _ngrams(words: Sequence[str], ngram_words: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[at:] for at in range(ngram_words)), strict=False)


def _mean(values: Sequence[float]) -> float | None:
    return fsum(values) / len(values) if values else None
