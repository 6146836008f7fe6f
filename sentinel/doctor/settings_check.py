"""Configured: whether the settings can be read, whom they reach, and whether a port is free."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.config.settings import Settings, SettingsError, load
from sentinel.doctor.check_result import Remark, mend, note, well
from sentinel.web.server import listen


def configured() -> Iterator[Remark]:
    """The settings as an agent started here and now would read them."""
    try:
        settings = load()
    except SettingsError as error:
        yield mend("settings", str(error), "correct it: no agent starts until then")
        return
    yield well("settings", "valid")
    yield _people(settings)
    yield _port(settings)


def token() -> str:
    """What an agent may ask of its readers; empty where the settings cannot be read."""
    try:
        return load().secret_token()
    except SettingsError:
        return ""


def _people(settings: Settings) -> Remark:
    if not settings.sinks:
        remedy = "set up a sink, such as SENTINEL_SINKS__SLACK__URL, or let Alertmanager tell"
        return note("sinks", "none: an alert is only on /metrics, and reaches nobody by us", remedy)
    names = ", ".join(sorted(settings.sinks))
    return well("sinks", f"{names}; `sentinel notify test` tries them")


def _port(settings: Settings) -> Remark:
    asked = f"{settings.host}:{settings.port}"
    try:
        with listen(settings.host, settings.port, settings.port_tries) as found:
            port = found.getsockname()[1]
    except OSError as error:
        remedy = 'end what listens there, or set "port" and "port_tries"'
        return mend("port", f"none is free from {asked} on ({error.strerror or error})", remedy)
    if settings.port not in {0, port}:
        remedy = "nothing: an agent that runs has the first; scrapers find each by its target file"
        return note("port", f"{asked} is taken; the next agent gets {port}", remedy)
    return well("port", f"{asked} is free")
