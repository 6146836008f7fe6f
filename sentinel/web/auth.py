"""Auth: one gate before every route, so that no route can be added without it."""

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
"""The one path that answers anybody: a probe has no token and learns nothing here."""

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
    """Lets through whoever knows the token; where none is set, whoever names a host of ours.

    The token is taken as `Authorization: Bearer <token>`, or as the password of any user by Basic,
    which is how a browser can be asked for it. `hosts` are names by which this machine is reached,
    beside its own. A name that is not ours is that of a page elsewhere which was pointed at us; it
    has no token, so where there is one, this machine may be asked by any name.
    """

    def __init__(self, app: ASGIApp, token: str = "", hosts: Collection[str] = ()) -> None:
        self._app = app
        self._token = token.encode()
        # Not the full name: asking for it can wait for a name server.
        own = ("localhost", socket.gethostname())
        self._hosts = frozenset(host.lower() for host in (*own, *hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 400 to a foreign host, 401 to a missing or wrong token, else pass it on."""
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_SECURITY_HEADERS)
            await send(message)

        refusal = None if scope["path"] == HEALTH_PATH else self._rejection(Headers(scope=scope))
        await (refusal or self._app)(scope, receive, send_guarded)

    def _rejection(self, headers: Headers) -> PlainTextResponse | None:
        if self._token:
            if self._has_valid_token(headers.get("authorization", "")):
                return None
            asked = {"www-authenticate": 'Basic realm="sentinel", Bearer realm="sentinel"'}
            return PlainTextResponse("A token is needed.\n", 401, asked)
        if self._is_own_host(headers.get("host", "")):
            return None
        return PlainTextResponse("This host name is not one of the monitor's.\n", 400)

    def _is_own_host(self, host: str) -> bool:
        name = _without_port(host).lower()
        # An address is not a name, so no name service can have been made to lie about it.
        return name in self._hosts or _is_address(name)

    def _has_valid_token(self, authorization: str) -> bool:
        kind, _, rest = authorization.partition(" ")
        given = _basic_password(rest) if kind.lower() == "basic" else rest.strip().encode("latin-1")
        known = kind.lower() in {"basic", "bearer"}
        return hmac.compare_digest(given, self._token) and known


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
