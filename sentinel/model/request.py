"""Post: one page worded as one HTTP request, still unsent; and Sink, who words it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from sentinel.model.notification import Notification


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP POST. Address and headers may hold secrets, so no printing of it shows them."""

    url: str = field(repr=False)
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class Sink(Protocol):
    """Turns a page into a request. Retry, deadline, rate and logging are the courier's alone.

    Implementations are dataclasses whose fields are their settings; those holding secrets are
    typed `SecretStr`.
    """

    def render(self, notification: Notification, delivery_id: str) -> Request:
        """Word the page. `identity` is the same on every try, for the receiver to see repeats."""
        ...

    def is_accepted(self, status: int, body: str) -> bool:
        """Whether the receiver took the page, by its HTTP status and the first 64 KiB it said."""
        ...


@runtime_checkable
class SignedSink(Protocol):
    """A sink whose requests say when they were sent, as signatures do. Pure, like `word`."""

    def sign(self, request: Request, sent_at: float) -> Request:
        """The same request as of `now`, in seconds since the epoch."""
        ...
