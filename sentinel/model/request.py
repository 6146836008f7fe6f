"""Unsent HTTP requests, and the protocol of the sinks that render notifications as such."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from sentinel.model.notification import Notification


@dataclass(frozen=True, slots=True)
class Request:
    """An unsent HTTP POST. Its repr is empty, since URL, body and headers may hold secrets."""

    url: str = field(repr=False)
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class Sink(Protocol):
    """Renders notifications as HTTP requests. Delivery, retry and rate limit are not its concern.

    Implementations are dataclasses whose fields are their settings; those holding secrets are
    typed `SecretStr`.
    """

    def render(self, notification: Notification, delivery_id: str) -> Request:
        """The request for a notification. `delivery_id` is the same on every attempt."""
        ...

    def is_accepted(self, status: int, body: str) -> bool:
        """Whether the receiver accepted it, by HTTP status and the first 64 KiB of the response."""
        ...


@runtime_checkable
class SignedSink(Protocol):
    """A sink whose requests are signed together with the time at which they are sent."""

    def sign(self, request: Request, sent_at: float) -> Request:
        """The request with its signature; `sent_at` is in seconds since the epoch."""
        ...
