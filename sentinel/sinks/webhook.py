"""Webhook: one notification as JSON in the format of Alertmanager, signed per Standard Webhooks.

A receiver of Alertmanager's webhooks (version 4) reads it. With a `secret`, the signature is the
base64 of HMAC-SHA256(key, "{webhook-id}.{webhook-timestamp}.{body}"). `webhook-id` is the same on
every try, so that a receiver can drop repeats.
Source: standard-webhooks/standard-webhooks, spec/standard-webhooks.md, version 1.0.0;
prometheus.io/docs/alerting, "Configuration", `webhook_config`; read in November 2026.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import replace
from typing import ClassVar

from pydantic import ConfigDict, SecretStr, field_validator
from pydantic.dataclasses import dataclass

from sentinel.config.field_types import HeaderValue
from sentinel.config.url_policy import check_url
from sentinel.model.delivery import HttpRequest, Response
from sentinel.model.notification import Notification
from sentinel.sinks._alertmanager_body import alertmanager_body

_SIGNING_KEY_PREFIX = "whsec_"


@dataclass(config=ConfigDict(extra="forbid", hide_input_in_errors=True))
class Webhook:
    """`url` receives the POST.

    `secret` signs it and is `whsec_` followed by base64, or any text. `authorization` is sent as
    the header of that name. `allow_http` permits an unencrypted `url` on another machine.
    """

    url: SecretStr
    secret: SecretStr | None = None
    authorization: HeaderValue | None = None
    allow_http: bool = False

    can_update: ClassVar[bool] = False
    for_programs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_url("url", self.url.get_secret_value(), allow_http=self.allow_http)

    @field_validator("secret")
    @classmethod
    def _check_secret(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None:
            _signing_key(secret)
        return secret

    def render(
        self, notification: Notification, delivery_id: str, receipt: str | None
    ) -> HttpRequest:
        """The request without what depends on the time, which `sign` adds."""
        del receipt
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": delivery_id,
            "webhook-id": delivery_id,
        }
        if self.authorization:
            headers["Authorization"] = self.authorization.get_secret_value()
        return HttpRequest(
            self.url.get_secret_value(),
            alertmanager_body(notification, delivery_id),
            headers,
            allow_http=self.allow_http,
        )

    def sign(self, request: HttpRequest, sent_at: float) -> HttpRequest:
        """The request with timestamp and signature; `sent_at` in seconds since the epoch."""
        headers = {**request.headers, "webhook-timestamp": str(int(sent_at))}
        if self.secret:
            signed = f"{headers['webhook-id']}.{int(sent_at)}.".encode() + request.body
            digest = hmac.new(_signing_key(self.secret), signed, hashlib.sha256).digest()
            headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
        return replace(request, headers=headers)

    def is_accepted(self, response: Response) -> bool:
        """Any status 2xx; the body is ignored."""
        return 200 <= response.status < 300

    def receipt(self, response: Response) -> None:
        """None: receivers match by the labels."""
        del response


def _signing_key(secret: SecretStr) -> bytes:
    text = secret.get_secret_value()
    if not text.startswith(_SIGNING_KEY_PREFIX):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(_SIGNING_KEY_PREFIX), validate=True)
    except binascii.Error:
        message = f"must be base64 after {_SIGNING_KEY_PREFIX}, or not begin with it"
        raise ValueError(message) from None
