"""The message as plain lines, for receivers that may interpret text in ways of their own."""

from __future__ import annotations

from sentinel.model.clean_text import clean, clean_url
from sentinel.model.message import Message

_ESCAPES = {"@": "\uff20", "<": "\u2039", ">": "\u203a", "[": "(", "]": ")", "`": "'"}
"""Characters of mentions and links, each with one that looks similar."""

_MAX_HEADLINE_CHARS = 200
_MAX_NAME_CHARS = 50
_MAX_LINE_CHARS = 300
_MAX_REMEDY_CHARS = 800
_MAX_ITEMS = 4


def plain_headline(message: Message, max_chars: int = _MAX_HEADLINE_CHARS) -> str:
    """One line: what happened, and in which run."""
    return message.cut_headline(max_chars, _ESCAPES)


def plain_name(text: str, max_chars: int = _MAX_NAME_CHARS) -> str:
    """A name in one line."""
    return clean(text, max_chars, _ESCAPES)


def plain_text(message: Message, delivery_id: str) -> str:
    """Date, facts, remedy, checkpoint, links and the run, in at most some 4,500 characters."""
    links = ((link.label, clean_url(link.url)) for link in message.links[:_MAX_ITEMS])
    lines = [
        _escape(message.since),
        *(f"- {_escape(fact)}" for fact in message.facts[:_MAX_ITEMS]),
        f"What to do: {_escape(message.remedy, _MAX_REMEDY_CHARS)}" if message.remedy else "",
        f"Last good checkpoint: {_escape(message.checkpoint)}" if message.checkpoint else "",
        *(f"Also: {_escape(each)}" for each in message.also[:_MAX_ITEMS]),
        *(_escape(note) for note in message.notes[:_MAX_ITEMS]),
        *(f"{_escape(label)}: {url}" for label, url in links if url),
        f"{_escape(message.run)} ({delivery_id[:8]})",
    ]
    return "\n".join(filter(None, lines))


def _escape(text: str, max_chars: int = _MAX_LINE_CHARS) -> str:
    return clean(text, max_chars, _ESCAPES)
