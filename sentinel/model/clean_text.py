"""Cleaning of untrusted text: names and texts of runs, people and models."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

_NO_ESCAPES: Mapping[str, str] = {}


def clean(text: str, max_chars: int | None = None, escapes: Mapping[str, str] = _NO_ESCAPES) -> str:
    r"""The text without control, hidden and direction-changing characters, on one line.

    `escapes` replaces single characters. A longer result is cut to `max_chars`, never within an
    escape.

    >>> clean("a\nb \u202ec <d>", escapes={"<": "&lt;", ">": "&gt;"})
    'a b c &lt;d&gt;'
    >>> clean("a long text", max_chars=7)
    'a long…'
    """
    pieces = [_clean_character(character, escapes) for character in text]
    if max_chars is None or sum(map(len, pieces)) <= max_chars:
        return "".join(pieces)
    fitting, remaining_chars = [], max_chars - len("…")
    for piece in pieces:
        remaining_chars -= len(piece)
        if remaining_chars < 0:
            break
        fitting.append(piece)
    return "".join(fitting) + "…"


def _clean_character(character: str, escapes: Mapping[str, str]) -> str:
    category = unicodedata.category(character)
    if character.isspace() or category.startswith("Z"):
        return " "
    return "" if category.startswith("C") else escapes.get(character, character)
