"""E-mail: one notification as one message of plain text, in one thread per case.

The first message of a case has a `Message-ID` that follows from the case, and later ones name it in
`In-Reply-To` and `References`, so that mail programs show them as one conversation. A repeat has
the same `Message-ID`. `Auto-Submitted` keeps vacation replies away.
Source: RFC 5322 (format, 998 characters a line), RFC 3834 (automatic messages), RFC 8314 (TLS).
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from hashlib import sha256
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, SecretStr, field_validator
from pydantic.dataclasses import dataclass

from sentinel.config.url_policy import is_loopback
from sentinel.model.clean_text import clean, clean_url
from sentinel.model.delivery import AttachmentSteps, Mail, ReportFile, Response
from sentinel.model.message import Message, build_message
from sentinel.model.notification import Notification, NotificationReason
from sentinel.sinks._case_id import case_id

_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_MAX_SUBJECT_CHARS = 180
_MAX_LINE_CHARS = 2000
_MAX_ITEMS = 8
_ID_DOMAIN = "sentinel.invalid"
"""A domain that cannot be registered: the identifiers of messages are no addresses."""

_REMEDIES = {
    530: "The server requires a login: set username and password.",
    534: "The server refuses this kind of login: create an app password.",
    535: "The server refuses the login: check username and password.",
    550: "The server refuses an address: check sender and recipients, and whether it relays.",
    553: "The server refuses an address: check sender and recipients.",
    554: "The server refuses the message: check sender, and the policy of the server.",
}
"""What to do, by the reply code (RFC 5321, RFC 4954)."""


@dataclass(config=ConfigDict(extra="forbid", hide_input_in_errors=True, str_strip_whitespace=True))
class Email:
    """`host` and `port` are the SMTP server, `sender` and `recipients` the addresses.

    `security` is `starttls` (port 587), `tls` from the first byte (port 465), or `none`, for a
    server on this machine only (port 25). `username` and `password` log in, if they are given.
    With `attach_report`, the report of the run follows in a message of its own once a case is over.
    """

    host: Annotated[str, Field(min_length=1)]
    sender: str
    recipients: Annotated[list[str], Field(min_length=1)]
    port: Annotated[int | None, Field(ge=1, le=65535)] = None
    security: Literal["starttls", "tls", "none"] = "starttls"
    username: str = ""
    password: SecretStr | None = None
    attach_report: bool = False

    can_update: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.security == "none" and not is_loopback(self.host):
            raise ValueError("`security` may be `none` for a server on this machine only")
        if bool(self.username) != bool(self.password):
            raise ValueError("give both `username` and `password`, or neither")

    @field_validator("sender")
    @classmethod
    def _check_sender(cls, sender: str) -> str:
        return _check_address(sender)

    @field_validator("recipients")
    @classmethod
    def _check_recipients(cls, recipients: list[str]) -> list[str]:
        return [_check_address(each) for each in recipients]

    def render(self, notification: Notification, delivery_id: str, receipt: str | None) -> Mail:
        """The message; it replies to the first one of the case unless it is that."""
        del receipt
        message = build_message(notification, time.time())
        is_first = notification.reason is NotificationReason.OPENED
        mail = self._new_mail(notification, message, "" if is_first else delivery_id)
        mail.set_content(_text(message, delivery_id))
        return self._delivery(mail)

    def attach(
        self, notification: Notification, receipt: str | None, report: ReportFile
    ) -> AttachmentSteps:
        """A message with the report in the thread of the case."""
        del receipt
        message = build_message(notification, time.time())
        delivery_id = f"report-{sha256(report.content).hexdigest()[:32]}"
        mail = self._new_mail(notification, message, delivery_id)
        mail.set_content(f"{clean(message.headline)}\n\nThe report of the run is attached.\n")
        mail.add_attachment(
            report.content, maintype="text", subtype="html", filename=clean(report.name)
        )
        response = yield self._delivery(mail)
        return self.is_accepted(response)

    def _new_mail(
        self, notification: Notification, message: Message, delivery_id: str
    ) -> EmailMessage:
        """A message without content; it replies to the first one of the case if it has an id."""
        mail = EmailMessage(policy=SMTP)
        mail["From"] = Address("Sentinel", addr_spec=self.sender)
        mail["To"] = [Address(addr_spec=each) for each in self.recipients]
        mail["Subject"] = clean(message.cut_headline(_MAX_SUBJECT_CHARS))
        mail["Date"] = _date(notification.time)
        first = f"<{case_id(notification)}@{_ID_DOMAIN}>"
        mail["Message-ID"] = f"<{delivery_id}@{_ID_DOMAIN}>" if delivery_id else first
        if delivery_id:
            mail["In-Reply-To"] = mail["References"] = first
        mail["Auto-Submitted"] = "auto-generated"
        mail["X-Sentinel-Severity"] = message.severity.value
        return mail

    def _delivery(self, mail: EmailMessage) -> Mail:
        return Mail(
            host=self.host,
            port=self.port or _PORTS[self.security],
            sender=self.sender,
            recipients=tuple(self.recipients),
            message=bytes(mail),
            security=self.security,
            username=self.username,
            password=self.password.get_secret_value() if self.password else "",
        )

    def is_accepted(self, response: Response) -> bool:
        """The server responds 250 once it has taken responsibility for the message."""
        return not response.error and response.status == 250

    def explain(self, response: Response) -> str:
        """What to do, by the reply code of the server."""
        return _REMEDIES.get(response.status, "")

    def receipt(self, response: Response) -> None:
        """None: a message that was sent cannot be changed."""
        del response


def _text(message: Message, delivery_id: str) -> str:
    links = ((link.label, clean_url(link.url)) for link in message.links[:_MAX_ITEMS])
    paragraphs = [
        [message.headline],
        [message.since, *(f"- {fact}" for fact in message.facts[:_MAX_ITEMS])],
        ["What to do:", message.remedy] if message.remedy else [],
        ["Last good checkpoint:", message.checkpoint] if message.checkpoint else [],
        ["Also in this case:", *(f"- {each}" for each in message.also[:_MAX_ITEMS])]
        if message.also
        else [],
        list(message.notes[:_MAX_ITEMS]),
        [f"{clean(label)}: {url}" for label, url in links if url],
        [message.run, f"Delivery {delivery_id[:8]}"],
    ]
    texts = ("\n".join(clean(line, _MAX_LINE_CHARS) for line in lines) for lines in paragraphs)
    return "\n\n".join(filter(None, texts)) + "\n"


def _check_address(address: str) -> str:
    name, _, domain = address.rpartition("@")
    is_plain = address.isascii() and address.isprintable() and not set(address) & set(' ,;:<>"')
    if not (name and domain and is_plain):
        raise ValueError("must be an e-mail address such as team@example.org")
    return address


def _date(seconds: float) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, tz=UTC)
