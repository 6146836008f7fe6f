"""JSON encoding of notifications for the database. Decoding stored text never executes code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cache
from typing import Any

from sentinel.model.json_safe import json_safe
from sentinel.model.notification import Notification


class UnreadableNotificationError(ValueError):
    """A stored text is no notification; the message does not quote it."""


@dataclass(frozen=True, slots=True)
class _StoredNotification:
    """A notification as it is stored."""

    incident_name: str
    notification: Notification


def encode(notification: Notification) -> str:
    """The notification as JSON; SQLite reads the name of its incident at `$.incident_name`.

    Evidence of any type becomes a number or a text, so that encoding never fails.
    """
    stored = asdict(_StoredNotification(notification.incident.name, notification))
    fields = stored["notification"]
    for incident in (fields["incident"], *fields["others"]):
        finding = incident["finding"]
        finding["evidence"] = _evidence_to_json(finding["evidence"])
    text = json.dumps(stored, ensure_ascii=False, default=_to_json_scalar)
    return text.encode("utf-8", "replace").decode()


def decode(text: str) -> Notification:
    """The notification that `encode` wrote. Raises UnreadableNotificationError."""
    try:
        stored: _StoredNotification = _type_adapter().validate_json(text)
    except ValueError:
        raise UnreadableNotificationError("A stored notification cannot be decoded.") from None
    return stored.notification


def _evidence_to_json(evidence: Mapping[str, Any]) -> dict[str, float | str]:
    return {str(name): _to_json_scalar(value) for name, value in evidence.items()}


def _to_json_scalar(value: Any) -> float | str:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return str(value)
    # JSON has neither NaN nor infinity, and SQLite rejects text that contains them.
    safe: float | str = json_safe(number)
    return safe


@cache
def _type_adapter() -> Any:
    from pydantic import TypeAdapter  # noqa: PLC0415 -- the schema is built at first use

    return TypeAdapter(_StoredNotification)
