"""The one gate before all routes: authentication, foreign hosts and origins, and write requests."""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import time
from base64 import b64decode
from collections.abc import Callable, Collection
from hashlib import sha256
from ipaddress import ip_address
from secrets import token_bytes

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sentinel.config.web_config import RateLimit, WebConfig
from sentinel.model.clean_text import clean

log = logging.getLogger(__name__)

HEALTH_PATH, READY_PATH = "/-/healthy", "/-/ready"
"""The two paths without authentication, for probes; their answers have no data of the run."""

CALL_PATH = "/mcp"
"""Path of a protocol whose requests are all POST, most of which only read."""
CALLS_PER_MINUTE, MAX_CALLS_AT_ONCE = 240, 60

WRITE_TOKEN_HEADER = "x-sentinel-write-token"  # noqa: S105 - the name of a header
MAX_BODY_BYTES = 16_384
MAX_HEADERS = 100
MAX_HEADER_BYTES = 16_384
WRITES_PER_MINUTE = 10

_MAX_CACHED_PASSWORDS = 128
_MAX_WAITING_PASSWORDS = 8
_UNKNOWN_USER_HASH = "$2b$10$YDNyBOig20PyNbysULHQH.2tYtLvZjUM7guCWbjacvKZpjoKhihLu"
"""A hash that is checked for unknown users, so that an answer takes as long as for known ones."""

_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_SECURITY_HEADERS = {
    "content-security-policy": _CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
_CACHE_CONTROL = ("cache-control", "no-store")
"""Of every response that does not have its own."""


def no_web_config() -> WebConfig | None:
    """None, for a server without a web configuration."""
    return None


class AuthMiddleware:
    """Requires a token or password, or, if there is none, a `Host` header that names this machine.

    `token` is accepted as `Authorization: Bearer <token>` and as the password of any user in Basic
    authentication, which browsers can prompt for; so are the users of `web_config`. With neither,
    `Host` has to name this machine: `hosts` are further names of it. That prevents DNS rebinding, a
    foreign page whose name resolves to this machine. Such a page has no token or password, and its
    name is not in the certificate of a server that requires client certificates, so with those any
    host name is accepted. `own_token` is accepted as a bearer token too, but does not make others
    need one.

    A request that can change something, of any method but GET and HEAD, needs more:

    - from a browser, the page of this server: `Origin` has to be the address of the request or one
      of `origins`, and `Sec-Fetch-Site` has to be `same-origin`;
    - `Content-Type: application/json`, and a body of at most `MAX_BODY_BYTES`;
    - the token as `Bearer`, which no browser sends by itself, or the header `WRITE_TOKEN_HEADER`
      with `write_token`, which only pages of this server can read;
    - at most `WRITES_PER_MINUTE`.

    A request to `CALL_PATH` needs no token beyond the authentication, since no page sends it, and
    there may be `CALLS_PER_MINUTE`; what it changes is limited by who answers it.

    `scope["state"]["user"]` is the user whose password was right; empty if there is none.
    """

    def __init__(  # noqa: PLR0913 - one for each thing that is accepted
        self,
        app: ASGIApp,
        token: str = "",
        hosts: Collection[str] = (),
        *,
        own_token: str = "",
        write_token: str = "",
        origins: Collection[str] = (),
        web_config: Callable[[], WebConfig | None] = no_web_config,
    ) -> None:
        self._app = app
        self._token, self._own_token = token.encode(), own_token.encode()
        # Not the fully qualified name, whose lookup may wait for a name server.
        own_names = ("localhost", socket.gethostname())
        self._hosts = frozenset(host.lower() for host in (*own_names, *hosts))
        self._origins = frozenset(origins)
        self._web_config = web_config
        self._passwords = _PasswordChecks()
        self._rate_limit, self._requests = RateLimit(), TokenBucket(0.0, 0)
        self._writes = TokenBucket(60.0 / WRITES_PER_MINUTE, WRITES_PER_MINUTE)
        self._calls = TokenBucket(60.0 / CALLS_PER_MINUTE, MAX_CALLS_AT_ONCE)
        self._refusal_log = TokenBucket(60.0, 10)
        self._write_token = write_token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that is refused; else call the app."""
        if scope["type"] != "http":
            return
        config = self._web_config()
        extra_headers = _SECURITY_HEADERS if config is None else _SECURITY_HEADERS | config.headers

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault(*_CACHE_CONTROL)
                headers.update(extra_headers)
            await send(message)

        try:
            answer = await self._refusal(scope, config)
            if answer is None and scope["method"] not in {"GET", "HEAD"}:
                answer, receive = await self._write_refusal(scope, receive)
        except ClientDisconnect:
            return
        await (answer or self._app)(scope, receive, send_with_headers)

    async def _refusal(self, scope: Scope, config: WebConfig | None) -> PlainTextResponse | None:
        """The answer to a request that may not even read; None if it may."""
        raw = scope["headers"]
        size = sum(len(name) + len(value) for name, value in raw)
        if len(raw) > MAX_HEADERS or size > MAX_HEADER_BYTES:
            return PlainTextResponse("The request has too many headers.\n", 431)
        scope.setdefault("state", {}).update(user="", is_bearer=False)
        if scope["path"] in {HEALTH_PATH, READY_PATH}:
            return None
        if config is not None and (wait := self._request_wait(config.rate_limit)):
            return _too_many_requests(wait)
        return await self._authentication_refusal(scope, config)

    async def _authentication_refusal(
        self, scope: Scope, config: WebConfig | None
    ) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        kind, _, credentials = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(credentials.strip().encode("latin-1")):
            scope["state"]["is_bearer"] = True
            return None
        users = {} if config is None else config.users
        if self._token or users:
            return await self._basic_refusal(scope, kind, credentials, users)
        is_certified = config is not None and config.requires_client_certificate
        if is_certified or self._is_own_host(headers.get("host", "")):
            return None
        return PlainTextResponse("Unknown host name.\n", 400)

    async def _basic_refusal(
        self, scope: Scope, kind: str, credentials: str, users: dict[str, str]
    ) -> PlainTextResponse | None:
        user, password = _decode_basic(credentials) if kind.lower() == "basic" else (b"", b"")
        if self._token and hmac.compare_digest(password, self._token):
            return None
        if users and password:
            name = user.decode(errors="replace")
            is_right = await self._passwords.check(name, password, users)
            if is_right is None:
                return _too_many_requests(1.0)
            if is_right:
                scope["state"]["user"] = name
                return None
        schemes = [f'{kind} realm="sentinel"' for kind in ("Basic", "Bearer")]
        challenge = {"www-authenticate": ", ".join(schemes if self._token else schemes[:1])}
        text = "A token is required.\n" if self._token else "A user and password are required.\n"
        return PlainTextResponse(text, 401, challenge)

    def _request_wait(self, limit: RateLimit) -> float:
        if limit != self._rate_limit:
            self._rate_limit, self._requests = limit, TokenBucket(limit.interval, limit.burst)
        return self._requests.take() if limit.interval else 0.0

    async def _write_refusal(
        self, scope: Scope, receive: Receive
    ) -> tuple[PlainTextResponse | None, Receive]:
        """The answer to a request that may not write; None if it may. Its body can be received."""
        headers = Headers(scope=scope)
        reason, status = "", 403
        if not self._is_own_page(scope, headers):
            reason = "Requests from other pages are refused."
        elif headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            reason, status = "The content type must be application/json.", 415
        elif not self._may_write(scope, headers):
            reason = f"The header {WRITE_TOKEN_HEADER} must have the token of /api/write-token."
        elif wait := (self._calls if scope["path"] == CALL_PATH else self._writes).take():
            self._log_refusal(scope, "too many requests")
            return _too_many_requests(wait), receive
        if reason:
            self._log_refusal(scope, reason)
            return PlainTextResponse(f"{reason}\n", status), receive
        body = bytearray()
        async for chunk in Request(scope, receive).stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                return PlainTextResponse("The body is too long.\n", 413), receive

        is_received = False

        async def receive_body() -> Message:
            nonlocal is_received
            if is_received:
                return await receive()
            is_received = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        return None, receive_body

    def _is_own_page(self, scope: Scope, headers: Headers) -> bool:
        """Whether the request is from a page of this server, or from no browser."""
        own = {f"{scope['scheme']}://{headers.get('host', '')}", *self._origins}
        return all(origin in own for origin in headers.getlist("origin")) and all(
            site == "same-origin" for site in headers.getlist("sec-fetch-site")
        )

    def _may_write(self, scope: Scope, headers: Headers) -> bool:
        """Whether the request is no forged one of a page of this server."""
        is_call = scope["path"] == CALL_PATH
        return is_call or scope["state"].get("is_bearer") or self._has_write_token(headers)

    def _has_write_token(self, headers: Headers) -> bool:
        given = headers.get(WRITE_TOKEN_HEADER, "").encode("latin-1")
        return bool(self._write_token) and hmac.compare_digest(given, self._write_token)

    def _log_refusal(self, scope: Scope, reason: str) -> None:
        if not self._refusal_log.take():
            what = clean(f"{scope['method']} {scope['path']}", 100)
            log.warning("Refused %s of %s: %s", what, peer_of(scope), reason)

    def _is_own_host(self, host: str) -> bool:
        name = _without_port(host).lower()
        # DNS rebinding needs a name; an address is safe.
        return name in self._hosts or _is_address(name)

    def _is_token(self, given: bytes) -> bool:
        tokens = filter(None, (self._token, self._own_token))
        # All are compared, so that the time depends on none.
        return sum(hmac.compare_digest(given, token) for token in tokens) > 0


class TokenBucket:
    """Limits a rate: `burst` at once, and then one per `interval` seconds."""

    def __init__(
        self, interval: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval, self._burst, self._clock = interval, burst, clock
        self._tokens, self._updated = float(burst), clock()

    def take(self) -> float:
        """0 if one more is within the limit, which counts it; else the seconds until it is."""
        now = self._clock()
        if self._interval:
            gained = (now - self._updated) / self._interval
            self._tokens = min(float(self._burst), self._tokens + gained)
        self._updated = now
        if self._tokens >= 1.0:
            self._tokens -= 1.0
            return 0.0
        return max((1.0 - self._tokens) * self._interval, 1e-3)


class _PasswordChecks:
    """Compares passwords with bcrypt hashes, one at a time: a hash takes a core for 0.1 s.

    The results are cached, as a scrape has the same password every time. The caches hold digests
    with a key of this process, not the passwords.
    """

    def __init__(self) -> None:
        self._key = token_bytes(32)
        # Apart, so that wrong passwords displace no right one.
        self._right, self._wrong = dict[bytes, None](), dict[bytes, None]()
        self._lock, self._waiting = asyncio.Lock(), 0

    async def check(self, user: str, password: bytes, users: dict[str, str]) -> bool | None:
        """Whether the password is that of the user; None if too many others are being checked."""
        hashed = users.get(user, _UNKNOWN_USER_HASH).encode()
        parts = [user.encode(), hashed, password]
        text = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        key = hmac.digest(self._key, text, sha256)
        if key not in self._right and key not in self._wrong:
            if self._waiting >= _MAX_WAITING_PASSWORDS:
                return None
            self._waiting += 1
            try:
                async with self._lock:
                    is_right = await asyncio.to_thread(_is_password, password, hashed)
            finally:
                self._waiting -= 1
            cache = self._right if is_right and user in users else self._wrong
            cache[key] = None
            if len(cache) > _MAX_CACHED_PASSWORDS:
                del cache[next(iter(cache))]
        return key in self._right


def _is_password(password: bytes, hashed: bytes) -> bool:
    import bcrypt  # noqa: PLC0415 - an optional dependency

    # Longer passwords are cut by the algorithm; newer versions of the library refuse them.
    return bcrypt.checkpw(password[:72], hashed)


def peer_of(scope: Scope) -> str:
    """Address of the client of a request."""
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


def _too_many_requests(wait: float) -> PlainTextResponse:
    seconds = str(max(1, round(wait + 0.5)))
    return PlainTextResponse("Too many requests.\n", 429, {"retry-after": seconds})


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


def _decode_basic(encoded: str) -> tuple[bytes, bytes]:
    try:
        user, _, password = b64decode(encoded, validate=True).partition(b":")
    except ValueError:
        return b"", b""
    return user, password
