"""Types of settings that several tables have; a value that is not valid raises ValueError."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, SecretStr

from sentinel.config.url_policy import url_refusal


def require_permitted_url(url: str) -> str:
    """The URL. Raises ValueError if nothing may be sent to it."""
    if refusal := url_refusal(url):
        raise ValueError(refusal)
    return url


def _require_permitted_secret_url(url: SecretStr) -> SecretStr:
    require_permitted_url(url.get_secret_value())
    return url


def _require_header_value(value: SecretStr) -> SecretStr:
    if not value.get_secret_value().isprintable():
        raise ValueError("must be one line of printable text")
    return value


PermittedUrl = Annotated[str, AfterValidator(require_permitted_url)]
"""A URL to which notifications may be sent."""

SecretUrl = Annotated[SecretStr, AfterValidator(_require_permitted_secret_url)]
"""A `PermittedUrl` that is secret itself."""

HeaderValue = Annotated[SecretStr, AfterValidator(_require_header_value)]
"""The secret value of an HTTP header."""
