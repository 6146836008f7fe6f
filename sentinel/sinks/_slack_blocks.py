"""The Block Kit layout of a message, which both sinks of Slack share.

Names and texts of people and models are untrusted. They are escaped and cleaned, so that they
contain no mention, no link and no hidden character.

Limits: 150 characters in a header, 3,000 in a section, 10 elements in a context, 50 blocks. The
text of all blocks together is limited too, which is not documented: 11,341 characters were refused
(`msg_blocks_too_long`) and 9,597 accepted (github.com/slackapi/bolt-js/issues/2867).
Source: docs.slack.dev, "Blocks", "Text object" and "Escaping text", read in November 2026.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sentinel.model.clean_text import clean, clean_url
from sentinel.model.finding import Severity
from sentinel.model.message import Message

ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "\uff20", "`": "'"}

_SEVERITY_EMOJI = {
    Severity.CRITICAL: ":red_circle:",
    Severity.WARNING: ":large_orange_circle:",
    Severity.INFO: ":large_blue_circle:",
}
_RESOLVED_EMOJI = ":white_check_mark:"
_MAX_HEADLINE_CHARS = 125
_MAX_SUBJECT_CHARS = 400
_MAX_SENTENCE_CHARS = 300
_MAX_REMEDY_CHARS = 1500
_MAX_ALSO_CHARS = 100
_MAX_RUN_CHARS = 500
_MAX_CONTEXT_CHARS = 2000
_MAX_FACTS, _MAX_ALSO, _MAX_NOTES, _MAX_LINKS = 6, 8, 4, 4
_MAX_HISTORY_LINES = 3


def headline(message: Message) -> str:
    """The headline with an emoji for the severity: the header, and the text of the push."""
    emoji = _RESOLVED_EMOJI if message.status == "resolved" else _SEVERITY_EMOJI[message.severity]
    return f"{emoji} {message.cut_headline(_MAX_HEADLINE_CHARS, ESCAPES)}"


def blocks(message: Message, delivery_id: str) -> list[dict[str, Any]]:
    """The blocks of the message. They show `delivery_id`, by which people recognize a repeat."""
    title = headline(message)
    subject = _escape(message.subject, _MAX_SUBJECT_CHARS)
    paragraphs = [
        [] if subject in title else [subject],
        [_escape(message.since), *_list(message.facts[:_MAX_FACTS])],
        _titled("What to do", [_escape(message.remedy, _MAX_REMEDY_CHARS)]),
        _titled("Last good checkpoint", [_escape(message.checkpoint)]),
        _titled("Also in this case", _list(message.also[:_MAX_ALSO], _MAX_ALSO_CHARS)),
        [_escape(note) for note in message.notes[:_MAX_NOTES]],
    ]
    sections = ("\n".join(filter(None, lines)) for lines in paragraphs)
    return [
        {"type": "header", "text": {"type": "plain_text", "text": title}},
        *({"type": "section", "text": markdown(text)} for text in sections if text),
        {
            "type": "context",
            "elements": [markdown(text) for text in _context(message, delivery_id)],
        },
    ]


def history_lines(message: Message) -> list[str]:
    """The lines of an entry in the history of a case."""
    facts = _list(message.facts[:_MAX_HISTORY_LINES])
    notes = [_escape(note) for note in message.notes[:_MAX_HISTORY_LINES]]
    return [headline(message), _escape(message.since), *facts, *notes]


def markdown(text: str) -> dict[str, Any]:
    """A text object whose names and addresses Slack does not turn into mentions and links."""
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def _context(message: Message, delivery_id: str) -> Iterable[str]:
    yield f"{_escape(message.run, _MAX_RUN_CHARS)} · {delivery_id[:8]}"
    links = ((link.label, clean_url(link.url)) for link in message.links[:_MAX_LINKS])
    shown = [
        f"<{clean(url, None, ESCAPES)}|{_escape(label, _MAX_ALSO_CHARS)}>"
        for label, url in links
        if url
    ]
    # A link that is cut leads nowhere.
    while len(" · ".join(shown)) > _MAX_CONTEXT_CHARS:
        shown.pop()
    if shown:
        yield " · ".join(shown)


def _titled(title: str, lines: Iterable[str]) -> list[str]:
    shown = [line for line in lines if line]
    return [f"*{title}*", *shown] if shown else []


def _list(texts: Iterable[str], max_chars: int = _MAX_SENTENCE_CHARS) -> list[str]:
    return [f"• {_escape(text, max_chars)}" for text in texts]


def _escape(text: str, max_chars: int = _MAX_SENTENCE_CHARS) -> str:
    return clean(text, max_chars, ESCAPES)
