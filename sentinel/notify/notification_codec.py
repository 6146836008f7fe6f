"""Page text: a page as JSON for the outbox, and back. Nothing stored can run code when read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cache
from math import isfinite
from typing import Any

from sentinel.model.notification import Notification


class UnreadableNotificationError(ValueError):
    """A stored page that no longer means a page; its text is not repeated."""


@dataclass(frozen=True, slots=True)
class _StoredNotification:
    episode: str
    page: Notification


def encode(notification: Notification) -> str:
    """The page as JSON that SQLite can look into; `$.episode` names its incident.

    Evidence of any type is kept as a number or as text, so that an odd value costs no alert.
    """
    stored = asdict(_StoredNotification(notification.incident.name, notification))
    for incident in (stored["page"]["incident"], *stored["page"]["others"]):
        finding = incident["finding"]
        finding["evidence"] = _evidence_to_json(finding["evidence"])
    text = json.dumps(stored, ensure_ascii=False, default=_to_json_scalar)
    return text.encode("utf-8", "replace").decode()


def decode(text: str) -> Notification:
    """The page that `encode` wrote. Raises UnreadablePageError on anything else."""
    try:
        stored: _StoredNotification = _type_adapter().validate_json(text)
    except ValueError:
        raise UnreadableNotificationError("The outbox holds a page that cannot be read.") from None
    return stored.page


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
    # JSON has no NaN and no infinity, and SQLite refuses a text that has.
    return number if isfinite(number) else str(number)


@cache
def _type_adapter() -> Any:
    from pydantic import TypeAdapter  # noqa: PLC0415 -- the schema is built at first use

    return TypeAdapter(_StoredNotification)
