"""The identifier by which a receiver recognizes the notifications of one case."""

from __future__ import annotations

from hashlib import sha256

from sentinel.model.notification import Notification


def case_id(notification: Notification) -> str:
    """32 hex digits, the same from the opening of the case to its resolution."""
    return sha256(notification.incident.name.encode("utf-8", "replace")).hexdigest()[:32]
