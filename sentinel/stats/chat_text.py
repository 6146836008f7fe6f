"""Text plain: what was said in a text, or in the messages of a conversation."""

from __future__ import annotations

from typing import Any

_MAX_MESSAGES = 1000
"""Messages of one conversation, and parts of one message, that are read: the last ones."""


def to_plain_text(text_or_messages: Any) -> str | None:
    r"""The text itself, or what the messages of a conversation say; None for anything else.

    Only exact texts, lists and dicts are looked into, so nobody's code is run.

    >>> plain("so"), plain([{"role": "user", "content": "so"}, {"content": "be it"}]), plain(7)
    ('so', 'so\nbe it', None)
    >>> plain([{"content": [{"type": "image"}, {"type": "text", "text": "a cat"}]}])
    'a cat'
    """
    if type(text_or_messages) is str:
        return text_or_messages
    said = _collect_texts(text_or_messages, "content")
    return None if said is None else "\n".join(said)


def _collect_texts(messages: Any, key: str) -> list[str] | None:
    if type(messages) is not list:
        return None
    found: list[str] = []
    for message in messages[-_MAX_MESSAGES:]:
        if type(message) is not dict:
            return None
        said = message.get(key)
        if type(said) is str:
            found.append(said)
        elif key == "content":
            found.extend(_collect_texts(said, "text") or ())
    return found
