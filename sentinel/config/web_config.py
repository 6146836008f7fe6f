"""The web configuration file of Prometheus exporters: TLS, basic authentication, headers, a limit.

The same file configures Prometheus, Alertmanager and exporters (`--web.config.file`). Keys that
need what Python's TLS has not are refused. Paths in the file are relative to its directory.
Source: github.com/prometheus/exporter-toolkit, docs/web-configuration.md, read in November 2026.
"""

from __future__ import annotations

import logging
import re
import ssl
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from sentinel.config.config_sources import ConfigError, type_name
from sentinel.model.nearest_name import nearest_hint

log = logging.getLogger(__name__)

_MAX_FILE_BYTES = 1 << 20
_INSTALL_HINT = "pip install 'train-sentinel[web-config]'"
_BCRYPT_HASH = r"^\$2[aby]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}$"
_TLS_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_UNSUPPORTED = {
    "tls_server_config": {
        **dict.fromkeys(("cert", "key", "client_ca"), "name a file instead"),
        **dict.fromkeys(
            ("client_allowed_sans", "cipher_suites", "curve_preferences"), "leave it out"
        ),
    }
}
_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_SECONDS_BY_UNIT = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}


def _parse_go_duration(value: Any) -> float:
    """Seconds of a duration as Go writes it.

    >>> _parse_go_duration("1m30s"), _parse_go_duration("500ms"), _parse_go_duration(0)
    (90.0, 0.5, 0.0)
    """
    text = str(value)
    if text == "0":
        return 0.0
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(map("".join, parts)) != text:
        raise ValueError('must be a duration such as "1s" or "500ms"')
    return sum(float(number) * _SECONDS_BY_UNIT[unit] for number, unit in parts)


class _Table(BaseModel):
    # Built at the first use: few processes have such a file.
    model_config = ConfigDict(
        extra="forbid", hide_input_in_errors=True, frozen=True, defer_build=True
    )


class TlsServerConfig(_Table):
    """Certificate of the server, and whether clients must have one."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    client_auth_type: Literal[
        "NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"
    ] = "NoClientCert"
    min_version: Literal["TLS12", "TLS13"] = "TLS12"
    max_version: Literal["TLS12", "TLS13"] = "TLS13"
    prefer_server_cipher_suites: bool = True


class ResponseHeaders(_Table):
    """Headers of all responses; an empty one is as without the file."""

    content_security_policy: str = Field(default="", alias="Content-Security-Policy")
    frame_options: Literal["", "deny", "sameorigin"] = Field(default="", alias="X-Frame-Options")
    content_type_options: Literal["", "nosniff"] = Field(default="", alias="X-Content-Type-Options")
    xss_protection: str = Field(default="", alias="X-XSS-Protection")
    strict_transport_security: str = Field(default="", alias="Strict-Transport-Security")


class HttpServerConfig(_Table):
    """`http2` permits HTTP/2 where a server has it; this one has HTTP/1.1 only."""

    http2: bool = True
    headers: ResponseHeaders = Field(default_factory=ResponseHeaders)


class RateLimit(_Table):
    """One request per `interval` seconds after a burst of `burst`; no limit if `interval` is 0."""

    interval: Annotated[float, BeforeValidator(_parse_go_duration)] = 0.0
    burst: int = Field(default=0, ge=0)


class _Content(_Table):
    tls_server_config: TlsServerConfig | None = None
    http_server_config: HttpServerConfig = Field(default_factory=HttpServerConfig)
    basic_auth_users: dict[str, Annotated[str, Field(pattern=_BCRYPT_HASH)]] = Field(
        default_factory=dict, repr=False
    )
    rate_limit: RateLimit = Field(default_factory=RateLimit)


@dataclass(frozen=True)
class WebConfig:
    """The content of a web configuration file."""

    path: Path
    content: _Content

    @property
    def tls(self) -> TlsServerConfig | None:
        """The TLS settings; None for plain HTTP."""
        return self.content.tls_server_config

    @property
    def users(self) -> dict[str, str]:
        """The bcrypt hash of the password of each user."""
        return self.content.basic_auth_users

    @property
    def rate_limit(self) -> RateLimit:
        """The limit of requests from all clients together."""
        return self.content.rate_limit

    @property
    def headers(self) -> dict[str, str]:
        """The headers to set, by their lower-case name."""
        headers = self.content.http_server_config.headers
        named = headers.model_dump(by_alias=True)
        return {name.lower(): value for name, value in named.items() if value}

    @property
    def requires_client_certificate(self) -> bool:
        """Whether only clients with a certificate can connect."""
        return self.tls is not None and self.tls.client_auth_type == "RequireAndVerifyClientCert"

    @property
    def authenticates(self) -> bool:
        """Whether every client has to prove who it is."""
        return bool(self.users) or self.requires_client_certificate

    def make_tls_context(self) -> ssl.SSLContext | None:
        """The TLS context of new connections; None for plain HTTP.

        Raises ConfigError if a certificate or key cannot be used.
        """
        if (tls := self.tls) is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _TLS_VERSIONS[tls.min_version]
        context.maximum_version = _TLS_VERSIONS[tls.max_version]
        if tls.prefer_server_cipher_suites:
            context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
        # Otherwise the terminal is asked for the password of an encrypted key.
        self._load(
            "cert_file and key_file",
            lambda: context.load_cert_chain(tls.cert_file, tls.key_file, password=lambda: ""),
        )
        ca_file = tls.client_ca_file
        if ca_file is not None:
            self._load("client_ca_file", lambda: context.load_verify_locations(ca_file))
            optional = tls.client_auth_type == "VerifyClientCertIfGiven"
            context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
        return context

    def certificate_expiry(self) -> float:
        """When the certificate expires, in seconds since the epoch; infinity without TLS.

        0 if it has expired, is not valid yet or is of no use for a server. Python reads the dates
        only of the certificate of a trusted peer: of one in a handshake within memory.
        """
        context = self.make_tls_context()
        if context is None or self.tls is None:
            return inf
        context.verify_mode = ssl.CERT_NONE
        client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client_context.check_hostname = False
        client_context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        client_context.load_verify_locations(self.tls.cert_file)
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = client_context.wrap_bio(to_client, to_server)
        server = context.wrap_bio(to_server, to_client, server_side=True)
        # TLS 1.2 takes two messages of each side, and TLS 1.3 fewer.
        for side in (client, server, client, server, client):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return 0.0
        return ssl.cert_time_to_seconds(str((client.getpeercert() or {})["notAfter"]))

    def _load(self, keys: str, load: Any) -> None:
        try:
            load()
        except (OSError, ValueError) as error:
            # OpenSSL's name of the error, or the system's; never a part of the file.
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "error"
            message = f"tls_server_config: {keys} cannot be used ({reason})."
            raise _error(self.path, message) from None

    def files(self) -> list[Path]:
        """The file and all that it names."""
        tls = self.tls
        named = () if tls is None else (tls.cert_file, tls.key_file, tls.client_ca_file)
        return [self.path, *filter(None, named)]


def load_web_config(path: Path) -> WebConfig:
    """Read and validate the file. Raises ConfigError, which never contains a value of it."""
    path = path.expanduser().absolute()
    tree = _read_yaml(path)
    _reject_unsupported(path, tree)
    try:
        content = _Content.model_validate(tree)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise _error(path, _describe(first)) from None
    if content.basic_auth_users:
        _require_bcrypt(path)
    if tls := content.tls_server_config:
        if (tls.client_ca_file is None) != (tls.client_auth_type == "NoClientCert"):
            message = "tls_server_config: client_ca_file and client_auth_type need each other."
            raise _error(path, message)
        if tls.min_version > tls.max_version:
            raise _error(path, "tls_server_config: min_version is above max_version.")
        keys = ("cert_file", "key_file", "client_ca_file")
        named = {key: getattr(tls, key) for key in keys if getattr(tls, key) is not None}
        absolute = tls.model_copy(update={key: path.parent / name for key, name in named.items()})
        content = content.model_copy(update={"tls_server_config": absolute})
    return WebConfig(path, content)


class WebConfigFile:
    """A web configuration file that is read again when it, or a file that it names, changes.

    An invalid new version is logged, and the last valid one stays. So does it if TLS is switched on
    or off, which needs a new agent, or if no client would have to authenticate any more although
    `must_authenticate`. Raises ConfigError if the first version is invalid.
    """

    def __init__(self, path: Path, *, must_authenticate: bool) -> None:
        self._must_authenticate = must_authenticate
        self.current = load_web_config(path)
        self._watched = self.current.files()
        self._stamps = _stamps(self._watched)
        self.tls_context = self.current.make_tls_context()

    def reload(self) -> None:
        """Read the file again if it has changed."""
        if _stamps(self._watched) == self._stamps:
            return
        # Stamps before reading: a later change is a new one.
        self._stamps = _stamps(self._watched)
        try:
            new = load_web_config(self.current.path)
            # What a faulty version names may be mended without a change of the file itself.
            self._watched = new.files()
            self._stamps = _stamps(self._watched)
            context = new.make_tls_context()
            if (context is None) != (self.tls_context is None):
                raise _error(new.path, "TLS is switched on or off by a new agent only.")
            if self._must_authenticate and not new.authenticates:
                raise _error(new.path, "it has neither users nor client certificates.")
        except ConfigError as error:
            log.error("The last valid web configuration stays: %s", error)  # noqa: TRY400
            return
        self.current, self.tls_context = new, context
        log.info("The web configuration %s is read again", new.path)


def _stamps(paths: list[Path]) -> list[tuple[int, ...] | None]:
    stamps: list[tuple[int, ...] | None] = []
    for path in paths:
        try:
            stat = path.stat()
        except OSError:
            stamps.append(None)
        else:
            stamps.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return stamps


def _read_yaml(path: Path) -> Any:
    try:
        import yaml  # noqa: PLC0415 - an optional dependency
    except ImportError:
        raise _error(path, f"it needs {_INSTALL_HINT}.") from None
    try:
        with path.open("rb") as opened:
            return yaml.safe_load(opened.read(_MAX_FILE_BYTES)) or {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        position = f" at line {mark.line + 1}" if mark else ""
        raise _error(path, f"not valid YAML{position}.") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise _error(path, "not valid YAML.") from None
    except OSError as error:
        raise _error(path, f"it cannot be read ({error.strerror or 'error'}).") from None


def _require_bcrypt(path: Path) -> None:
    try:
        import bcrypt  # noqa: F401, PLC0415 - an optional dependency
    except ImportError:
        raise _error(path, f"basic_auth_users needs {_INSTALL_HINT}.") from None


def _reject_unsupported(path: Path, tree: Any) -> None:
    for section, reasons in _UNSUPPORTED.items():
        table = tree.get(section) if isinstance(tree, dict) else None
        for key in table if isinstance(table, dict) else ():
            if key in reasons:
                raise _error(path, f"{section}.{key} is not supported: {reasons[key]}.")


def _describe(error: Any) -> str:
    """A sentence about one error of pydantic, without the value."""
    location = [str(part) for part in error["loc"] if part != "[key]"]
    if location[:1] == ["basic_auth_users"] and len(location) > 1:
        # The name of a user is in the place of a key.
        return "basic_auth_users: each user needs the bcrypt hash of a password."
    name = ".".join(location) or "the content"
    if error["type"] == "missing":
        return f"{name} is missing."
    if error["type"] == "extra_forbidden":
        valid = _valid_keys(location[:-1])
        hint = nearest_hint(location[-1], valid)
        return f"{name} is not known.{hint} Valid: {', '.join(valid)}."
    message = error["msg"].removeprefix("Value error, ")
    return f"{name}: the {type_name(error['input'])} given is wrong: {_lower_first(message)}."


def _valid_keys(location: list[str]) -> list[str]:
    models: dict[tuple[str, ...], type[BaseModel]] = {
        (): _Content,
        ("tls_server_config",): TlsServerConfig,
        ("http_server_config",): HttpServerConfig,
        ("http_server_config", "headers"): ResponseHeaders,
        ("rate_limit",): RateLimit,
    }
    fields = models[tuple(location)].model_fields
    return [field.alias or name for name, field in fields.items()]


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _error(path: Path, message: str) -> ConfigError:
    return ConfigError(f"Web configuration {path}: {message}")
