"""Checks of the settings: validity, sinks and a free port."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.config.settings import ConfigError, Settings, load_agent_settings
from sentinel.doctor.check_result import CheckResult, fail, ok, warn
from sentinel.web.server import bind_free_port


def check_settings() -> Iterator[CheckResult]:
    """Results for the settings as an agent started in this directory reads them."""
    try:
        settings = load_agent_settings()
    except ConfigError as error:
        yield fail("settings", str(error), "correct it; no agent starts with invalid settings")
        return
    for message in settings.config_errors.values():
        yield fail("settings", message, "correct it; the agent ignores this table")
    if not settings.config_errors:
        yield ok("settings", "valid")
    yield _check_sinks(settings)
    yield _check_port(settings)


def _check_sinks(settings: Settings) -> CheckResult:
    if not settings.sinks:
        remedy = "configure a sink, such as SENTINEL_SINKS__SLACK__URL, or alert by Alertmanager"
        return warn("sinks", "none: no notifications are sent; alerts are on /metrics", remedy)
    names = ", ".join(sorted(settings.sinks))
    return ok("sinks", f"{names}; test them with `sentinel notify test`")


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
