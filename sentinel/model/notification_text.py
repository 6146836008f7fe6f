"""Text that the sinks share: the headline of a notification, and cleaning of untrusted text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

from sentinel.model.notification import Notification, NotificationReason

_PREFIXES = {
    NotificationReason.ESCALATED: "Escalated to {severity}",
    NotificationReason.RESOLVED: "Resolved at step {step}",
}
_DEFAULT_PREFIX = "{Severity}"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s")
_NO_ESCAPES: Mapping[str, str] = {}


def headline(
    notification: Notification, max_chars: int, escapes: Mapping[str, str] = _NO_ESCAPES
) -> str:
    """One line of at most `max_chars` characters: severity, what happened, and since which step.

    What happened is the cause of the case, or the first sentence of the finding if it has none.
    """
    severity = notification.incident.severity.value
    prefix = _PREFIXES.get(notification.reason, _DEFAULT_PREFIX).format(
        severity=severity, Severity=severity.capitalize(), step=notification.step
    )
    subject, suffix = _subject(notification)
    max_subject_chars = max_chars - len(prefix) - len(": ") - len(suffix)
    return f"{prefix}: {clean(subject, max_subject_chars, escapes)}{suffix}"


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


def _subject(notification: Notification) -> tuple[str, str]:
    """What the notification is about, and since when."""
    diagnosis, incident = notification.diagnosis, notification.incident
    if notification.reason is NotificationReason.RESOLVED:
        return notification.subject, ""
    if diagnosis is not None:
        since = f" since step {notification.onset_step} ({diagnosis.confidence_text})"
        return diagnosis.title, since
    sentence = _SENTENCE_END.split(incident.finding.summary.strip(), maxsplit=1)[0].rstrip(".")
    return sentence, "" if "step" in sentence else f" (since step {incident.onset_step})"


def _clean_character(character: str, escapes: Mapping[str, str]) -> str:
    category = unicodedata.category(character)
    if character.isspace() or category.startswith("Z"):
        return " "
    return "" if category.startswith("C") else escapes.get(character, character)
