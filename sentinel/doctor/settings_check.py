"""Configured: whether the settings can be read, whom they reach, and whether a port is free."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.config.settings import ConfigError, Settings, load_settings
from sentinel.doctor.check_result import CheckResult, fail, ok, warn
from sentinel.web.server import bind_free_port


def check_settings() -> Iterator[CheckResult]:
    """The settings as an agent started here and now would read them."""
    try:
        settings = load_settings()
    except ConfigError as error:
        yield fail("settings", str(error), "correct it: no agent starts until then")
        return
    yield ok("settings", "valid")
    yield _check_sinks(settings)
    yield _check_port(settings)


def api_token() -> str:
    """What an agent may ask of its readers; empty where the settings cannot be read."""
    try:
        return load_settings().secret_token()
    except ConfigError:
        return ""


def _check_sinks(settings: Settings) -> CheckResult:
    if not settings.sinks:
        remedy = "set up a sink, such as SENTINEL_SINKS__SLACK__URL, or let Alertmanager tell"
        return warn("sinks", "none: an alert is only on /metrics, and reaches nobody by us", remedy)
    names = ", ".join(sorted(settings.sinks))
    return ok("sinks", f"{names}; `sentinel notify test` tries them")


def _check_port(settings: Settings) -> CheckResult:
    asked = f"{settings.host}:{settings.port}"
    try:
        with bind_free_port(settings.host, settings.port, settings.port_tries) as found:
            port = found.getsockname()[1]
    except OSError as error:
        remedy = 'end what listens there, or set "port" and "port_tries"'
        return fail("port", f"none is free from {asked} on ({error.strerror or error})", remedy)
    if settings.port not in {0, port}:
        remedy = "nothing: an agent that runs has the first; scrapers find each by its target file"
        return warn("port", f"{asked} is taken; the next agent gets {port}", remedy)
    return ok("port", f"{asked} is free")
