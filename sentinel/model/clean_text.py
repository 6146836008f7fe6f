"""Cleaning of untrusted text: names and texts of runs, people and models."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from itertools import accumulate, takewhile
from urllib.parse import quote, urlsplit

MAX_URL_CHARS = 500
"""Characters of a link; a longer one is left out, since a part of it leads nowhere."""

_NO_ESCAPES: Mapping[str, str] = {}
_CHUNK_CHARS = 512
"""Characters that are cleaned at once: of a long text that is cut only the start is needed."""
_MAX_CACHED = 10_000
"""Bounds the memory after texts of every language; then the table begins anew."""
_URL_CHARACTERS = ":/?#[]!$&'*+,;=%-._~"


class _CleanCharacters(dict[int, str]):
    """A table for `str.translate` that caches the characters of the texts that were cleaned."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        if character.isspace() or category.startswith("Z"):
            clean_character = " "
        else:
            clean_character = "" if category.startswith("C") else character
        if len(self) >= _MAX_CACHED:
            self.clear()
        self[code] = clean_character
        return clean_character


_CLEAN_CHARACTERS = _CleanCharacters()


def clean(text: str, max_chars: int | None = None, escapes: Mapping[str, str] = _NO_ESCAPES) -> str:
    r"""The text without control, hidden and direction-changing characters, on one line.

    `escapes` replaces single characters. A longer result is cut to `max_chars`, never within an
    escape.

    >>> clean("a\nb \u202ec <d>", escapes={"<": "&lt;", ">": "&gt;"})
    'a b c &lt;d&gt;'
    >>> clean("a long text", max_chars=7)
    'a long…'
    """
    cleaned = ""
    for start in range(0, len(text), _CHUNK_CHARS):
        cleaned += text[start : start + _CHUNK_CHARS].translate(_CLEAN_CHARACTERS)
        if max_chars is not None and len(cleaned) > max_chars:
            break
    table = {ord(each): piece for each, piece in escapes.items()}
    escaped = cleaned.translate(table) if table else cleaned
    if max_chars is None or len(escaped) <= max_chars:
        return escaped
    # The characters after which the ellipsis still fits.
    lengths = accumulate(len(escapes.get(character, character)) for character in cleaned)
    fitting = sum(1 for _ in takewhile((max_chars - len("…")).__ge__, lengths))
    return cleaned[:fitting].translate(table) + "…"


def clean_url(url: str) -> str:
    """The web address without characters that end a link in a markup; empty if it is none.

    >>> clean_url("https://host/runs/a b|c>(d)")
    'https://host/runs/a%20b%7Cc%3E%28d%29'
    >>> clean_url("javascript:alert(1)")
    ''
    """
    quoted = quote(clean(url).strip(), safe=_URL_CHARACTERS)
    try:
        parts = urlsplit(quoted)
    except ValueError:
        return ""
    is_web_address = parts.scheme in {"http", "https"} and bool(parts.netloc)
    return quoted if is_web_address and len(quoted) <= MAX_URL_CHARS else ""
