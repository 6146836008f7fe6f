"""The identifier by which a receiver recognizes the notifications of one case."""

from __future__ import annotations

from hashlib import sha256

from sentinel.model.notification import Notification


def case_id(notification: Notification) -> str:
    """32 hex digits, the same from the opening of the case to its resolution."""
    return incident_id(notification.incident.name)


def incident_id(name: str) -> str:
    """The same, by the name of the incident that leads the case."""
    return sha256(name.encode("utf-8", "replace")).hexdigest()[:32]
