"""What a terminal shows: escaping of text from training code, and its encoding."""

from __future__ import annotations

import sys
from json import dumps
from typing import Any
from unicodedata import category

from sentinel.model.json_safe import json_safe

_UNPRINTABLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of characters that are invisible, or that control how text is displayed."""


def escape_unprintable(text: str, allowed: str = "") -> str:
    r"""The text with unprintable characters as escapes, except those in `allowed`.

    Names and messages come from training code. Unescaped, they could move the cursor, change
    colors or reverse the direction of the text.

    >>> escape_unprintable("red \x1b[31m, reversed \u202e, half a character \ud83d")
    'red \\x1b[31m, reversed \\u202e, half a character \\ud83d'
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character in allowed or category(character) not in _UNPRINTABLE_CATEGORIES
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def print_json_line(value: Any) -> None:
    """Print the value as JSON on one line; NaN and infinity are texts."""
    print(dumps(json_safe(value), allow_nan=False))


def can_print(text: str) -> bool:
    """Whether standard output has the characters."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
