"""Text plain: what was said in a text, or in the messages of a conversation."""

from __future__ import annotations

from typing import Any

_MESSAGES = 1000
"""Messages of one conversation, and parts of one message, that are read: the last ones."""


def plain(given: Any) -> str | None:
    r"""The text itself, or what the messages of a conversation say; None for anything else.

    Only exact texts, lists and dicts are looked into, so nobody's code is run.

    >>> plain("so"), plain([{"role": "user", "content": "so"}, {"content": "be it"}]), plain(7)
    ('so', 'so\nbe it', None)
    >>> plain([{"content": [{"type": "image"}, {"type": "text", "text": "a cat"}]}])
    'a cat'
    """
    if type(given) is str:
        return given
    said = _each(given, "content")
    return None if said is None else "\n".join(said)


def _each(given: Any, key: str) -> list[str] | None:
    if type(given) is not list:
        return None
    found: list[str] = []
    for message in given[-_MESSAGES:]:
        if type(message) is not dict:
            return None
        said = message.get(key)
        if type(said) is str:
            found.append(said)
        elif key == "content":
            found.extend(_each(said, "text") or ())
    return found
