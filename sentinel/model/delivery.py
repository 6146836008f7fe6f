"""Deliveries: what a sink renders for a transport to send, and the outcome of sending it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from enum import Enum
from hashlib import sha256
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from sentinel.model.notification import Notification


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """An unsent HTTP request. Its repr is empty, since URL, body and headers may hold secrets.

    `allow_http` permits an unencrypted request to another machine. `follow_up` is sent once after
    the receiver accepted this request; its outcome is ignored. `ca_file` has the certificates that
    the receiver's is checked against instead of those of the system, and `client_files` are the
    own certificate and, unless it is in the same file, its key.
    """

    url: str = field(repr=False)
    body: bytes = field(default=b"", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    method: Literal["GET", "POST", "PUT", "PATCH"] = "POST"
    allow_http: bool = False
    follow_up: HttpRequest | None = None
    ca_file: str = ""
    client_files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mail:
    """An unsent e-mail: an RFC 5322 `message` for the `recipients`, sent through an SMTP server.

    `security` is `tls` from the first byte (port 465), `starttls`, or `none`, which is permitted on
    this machine only. The repr is empty, since the message and the login are private.
    """

    host: str = field(repr=False)
    port: int = field(repr=False)
    sender: str = field(repr=False)
    recipients: tuple[str, ...] = field(repr=False)
    message: bytes = field(repr=False)
    security: Literal["tls", "starttls", "none"] = "starttls"
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ProcessInput:
    """A program with its `arguments`, run without a shell, and what it reads on standard input.

    `timeout` in seconds ends the program and the processes that it started.
    """

    arguments: tuple[str, ...] = field(repr=False)
    stdin: bytes = field(default=b"", repr=False)
    timeout: float = 30.0


@dataclass(frozen=True, slots=True)
class AppriseCall:
    """A message for one service of the library apprise; `url` names the service and its secrets."""

    url: str = field(repr=False)
    title: str = field(repr=False)
    body: str = field(repr=False)
    kind: Literal["info", "success", "warning", "failure"] = "warning"
    allow_http: bool = False


Delivery = HttpRequest | Mail | ProcessInput | AppriseCall


@dataclass(frozen=True, slots=True)
class Response:
    """The outcome of a delivery. Without a response, `error` is the name of an error class.

    `status` is the HTTP status, the reply code of SMTP, or the exit status of a program, as
    `protocol` names it. `body` is the first 64 KiB of the response or of standard output.
    `retry_after` is the delay in seconds that the receiver requests. `is_sent` is False if no
    connection to the receiver was opened.
    """

    status: int = 0
    body: str = field(default="", repr=False)
    retry_after: float | None = None
    error: str = ""
    protocol: Literal["HTTP", "SMTP", "exit status"] = "HTTP"
    is_sent: bool = True

    def __str__(self) -> str:
        return self.error or f"{self.protocol} {self.status}"


class Rejection(Enum):
    """Why a receiver did not accept a delivery."""

    TEMPORARY = "temporary"
    """It is tried again later."""
    TOO_LONG = "too_long"
    """It is shortened and tried again, once."""
    UNKNOWN_RECEIPT = "unknown_receipt"
    """The earlier message is gone: it is rendered again without a receipt."""
    PERMANENT = "permanent"
    """It is given up, and the next sink gets the notification."""


class Sink(Protocol):
    """Renders notifications as deliveries. Storage, retry and rate limit are not its concern.

    Implementations are dataclasses whose fields are their settings; those holding secrets are
    typed `SecretStr`.
    """

    can_update: ClassVar[bool]
    """Whether a delivered message can be changed.

    Only such a sink gets notifications that a case was updated.
    """

    def render(self, notification: Notification, delivery_id: str, receipt: str | None) -> Delivery:
        """The delivery of a notification. `delivery_id` is the same on every try.

        `receipt` is that of the newest message of the same case; None if there is none.
        """
        ...

    def is_accepted(self, response: Response) -> bool:
        """Whether the receiver accepted the delivery."""
        ...

    def receipt(self, response: Response) -> str | None:
        """What identifies the accepted message in a later update; None if nothing does."""
        ...


def closes_alerts(sink: Sink) -> bool:
    """Whether its receiver keeps an alert open until a notification ends it.

    These are receivers whose messages can change, and programs: a class attribute `for_programs`.
    """
    return sink.can_update or getattr(sink, "for_programs", False)


def is_record(sink: Sink) -> bool:
    """Whether its receiver records incidents and sends no notification, such as a tracker.

    A class attribute `is_record`. Nothing that another sink rejected is passed on to it, and
    nothing that it rejected to another sink.
    """
    return bool(getattr(sink, "is_record", False))


_NOT_ADDRESS = frozenset({
    "password", "secret", "authorization", "app_token", "attach_report", "allow_http", "timeout",
    "tags",
})  # fmt: skip
"""Settings of sinks that do not decide which receiver gets a notification."""


def sink_address(sink: Sink) -> str:
    """16 hex digits that are equal for sinks with the same receiver; no secret can be read there.

    Passwords, which could be guessed, are no part of it.
    """
    address = [type(sink).__qualname__]
    settings: tuple[Field[Any], ...] = fields(sink) if is_dataclass(sink) else ()
    for each in settings:
        if each.name not in _NOT_ADDRESS:
            value = getattr(sink, each.name)
            is_secret = hasattr(value, "get_secret_value")
            address.append(f"{each.name}={value.get_secret_value() if is_secret else value}")
    return sha256("\n".join(address).encode()).hexdigest()[:16]


@runtime_checkable
class SignedSink(Protocol):
    """A sink whose requests are signed together with the time at which they are sent."""

    def sign(self, request: HttpRequest, sent_at: float) -> HttpRequest:
        """The request with its signature; `sent_at` is in seconds since the epoch."""
        ...


@runtime_checkable
class RejectingSink(Protocol):
    """A sink whose receiver states in its own way why it does not accept a delivery."""

    def rejection(self, response: Response) -> Rejection | None:
        """Why the delivery was not accepted; None for what the status or the error means."""
        ...


@runtime_checkable
class ExplainingSink(Protocol):
    """A sink that knows what a refusal of its receiver means."""

    def explain(self, response: Response) -> str:
        """What to do about a delivery that was not accepted, one sentence; empty if not known."""
        ...


@runtime_checkable
class RefreshedSink(Protocol):
    """A sink whose receiver ends an alert that is not sent again."""

    refresh_seconds: ClassVar[float]
    """Interval at which the newest delivery of a firing case is rendered and sent again."""


@dataclass(frozen=True, slots=True)
class ReportFile:
    """The report of a run as one HTML file."""

    name: str
    content: bytes = field(repr=False)


AttachmentSteps = Generator[Delivery, Response, bool]
"""Yields deliveries, gets the response to each, and returns whether the file arrived."""


@runtime_checkable
class AttachingSink(Protocol):
    """A sink whose receiver takes files: it gets the report of the run once a case is over.

    `attach_report` is a setting: whether it does.
    """

    attach_report: bool

    def attach(
        self, notification: Notification, receipt: str | None, report: ReportFile
    ) -> AttachmentSteps:
        """The deliveries that send the report after the notification, which was accepted.

        `receipt` is that of the newest message of the case; None if there is none.
        """
        ...
