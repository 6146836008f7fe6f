"""Authentication of all HTTP requests, as a middleware before every route."""

from __future__ import annotations

import hmac
import socket
from base64 import b64decode
from collections.abc import Collection
from ipaddress import ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEALTH_PATH = "/-/healthy"
"""The one path without authentication, for probes; its answer has no data of the run."""

_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_SECURITY_HEADERS = {
    "content-security-policy": _CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class AuthMiddleware:
    """Requires the token, or, if none is set, a `Host` header that names this machine.

    The token is accepted as `Authorization: Bearer <token>` and as the password of any user in
    Basic authentication, which browsers can prompt for. `hosts` are further names of this machine.
    The check of the host name prevents DNS rebinding: a foreign page whose name resolves to this
    machine. Such a page has no token, so with a token any host name is accepted.
    """

    def __init__(self, app: ASGIApp, token: str = "", hosts: Collection[str] = ()) -> None:
        self._app = app
        self._token = token.encode()
        # Not the fully qualified name, whose lookup may wait for a name server.
        own_names = ("localhost", socket.gethostname())
        self._hosts = frozenset(host.lower() for host in (*own_names, *hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 400 to a foreign host and 401 to a missing or wrong token; else call the app."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_SECURITY_HEADERS)
            await send(message)

        rejection = None if scope["path"] == HEALTH_PATH else self._rejection(Headers(scope=scope))
        await (rejection or self._app)(scope, receive, send_with_headers)

    def _rejection(self, headers: Headers) -> PlainTextResponse | None:
        if self._token:
            if self._has_valid_token(headers.get("authorization", "")):
                return None
            challenge = {"www-authenticate": 'Basic realm="sentinel", Bearer realm="sentinel"'}
            return PlainTextResponse("A token is required.\n", 401, challenge)
        if self._is_own_host(headers.get("host", "")):
            return None
        return PlainTextResponse("Unknown host name.\n", 400)

    def _is_own_host(self, host: str) -> bool:
        name = _without_port(host).lower()
        # DNS rebinding needs a name; an address is safe.
        return name in self._hosts or _is_address(name)

    def _has_valid_token(self, authorization: str) -> bool:
        scheme, _, rest = authorization.partition(" ")
        is_basic = scheme.lower() == "basic"
        token = _basic_password(rest) if is_basic else rest.strip().encode("latin-1")
        is_known_scheme = is_basic or scheme.lower() == "bearer"
        return hmac.compare_digest(token, self._token) and is_known_scheme


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _basic_password(encoded: str) -> bytes:
    try:
        return b64decode(encoded, validate=True).partition(b":")[2]
    except ValueError:
        return b""
