"""Checks of the settings: validity, sinks and their proxy, and a free port."""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

from sentinel.config.settings import ConfigError, Settings, load_agent_settings
from sentinel.config.url_policy import is_loopback
from sentinel.config.web_config import WebConfig, load_web_config
from sentinel.doctor.check_result import CheckResult, fail, ok, warn
from sentinel.web.server import bind_free_port

MIN_CERTIFICATE_DAYS = 14
"""A certificate that expires sooner is a warning."""


def check_settings() -> Iterator[CheckResult]:
    """Results for the settings as an agent started in this directory reads them."""
    try:
        settings = load_agent_settings()
    except ConfigError as error:
        yield fail("settings", str(error), "correct it; no agent starts with invalid settings")
        return
    for message in settings.config_errors.values():
        yield fail("settings", message, "correct it; the agent ignores it")
    if not settings.config_errors:
        yield ok("settings", "valid")
    yield _check_sinks(settings)
    yield from _check_proxy()
    yield _check_port(settings)
    yield from _check_access(settings)


def _check_sinks(settings: Settings) -> CheckResult:
    if not settings.sinks:
        remedy = "configure a sink, such as SENTINEL_SINKS__SLACK__URL, or alert by Alertmanager"
        return warn("sinks", "none: no notifications are sent; alerts are on /metrics", remedy)
    names = ", ".join(sorted(settings.sinks))
    return ok("sinks", f"{names}; test them with `sentinel notify test`")


def _check_proxy() -> Iterator[CheckResult]:
    """The proxies of the environment, which HTTP requests of sinks use; without credentials."""
    found = getproxies_environment()
    proxies = [
        f"{scheme}:// through {_address(found[scheme])}"
        for scheme in ("http", "https", "all")
        if found.get(scheme)
    ]
    if proxies:
        exceptions = f", except {found['no']}" if found.get("no") else ""
        yield ok("proxy", f"sinks reach {', '.join(proxies)}{exceptions}")


def _address(proxy: str) -> str:
    """Host and port of the URL of a proxy, which may contain a password.

    >>> _address("http://user:secret@proxy.example.org:3128"), _address("proxy:3128")
    ('proxy.example.org:3128', 'proxy:3128')
    """
    parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    return parts.netloc.rpartition("@")[2] or "an address that cannot be read"


def _check_port(settings: Settings) -> CheckResult:
    address = f"{settings.host}:{settings.port}"
    try:
        with bind_free_port(settings.host, settings.port, settings.port_tries) as listener:
            port = listener.getsockname()[1]
    except OSError as error:
        remedy = 'stop the process that uses it, or set "port" and "port_tries"'
        return fail("port", f"no free port from {address} on ({error.strerror or error})", remedy)
    if settings.port not in {0, port}:
        remedy = "no action if another agent has it: Prometheus finds each agent by its target file"
        return warn("port", f"{address} is in use; the next agent gets {port}", remedy)
    return ok("port", f"{address} is free")


def _check_access(settings: Settings) -> Iterator[CheckResult]:
    """Results for TLS, or for the lack of it where others can reach the agent."""
    path = settings.web_config_file
    web_config = None if path is None else load_web_config(path)
    if web_config is not None and web_config.tls is not None:
        yield _check_certificate(web_config)
    elif not is_loopback(settings.host):
        remedy = "set web_config_file with tls_server_config, or trust this network"
        message = f"{settings.host} is reached without TLS: logins and data can be read on the way"
        yield warn("access", message, remedy)


def _check_certificate(web_config: WebConfig) -> CheckResult:
    file = web_config.files()[1]
    expiry = web_config.certificate_expiry()
    remedy = f"renew {file}; the agent reads it again by itself"
    if not expiry:
        return fail("certificate", f"{file} has expired or is not valid yet", remedy)
    days = (expiry - time.time()) / 86400
    if days < MIN_CERTIFICATE_DAYS:
        return warn("certificate", f"{file} expires in {days:.0f} days", remedy)
    return ok("certificate", f"{file} is valid for {days:.0f} days")
