"""Settings: what can be set, what may be said there, and what is wrong with what was.

Detectors and sinks are set by the fields of their own classes. Any secret `x` may be given as
`x_file`, the path of a file that holds it. No error ever repeats a value.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    SkipValidation,
    TypeAdapter,
    ValidationError,
)

from sentinel.config import plugins
from sentinel.config.config_sources import (
    ConfigError,
    ConfigPath,
    ConfigSources,
    ConfigTree,
    read_sources,
)
from sentinel.config.url_policy import is_loopback
from sentinel.model.diagnosis import Cause
from sentinel.model.finding import Detector, Severity
from sentinel.model.request import Sink

__all__ = [
    "ConfigError",
    "Settings",
    "build_causes",
    "build_detectors",
    "build_sinks",
    "load_settings",
]

log = logging.getLogger(__name__)

_MAX_SECRET_BYTES = 4096
_HEAD_ADDRESS_PATTERN = (
    r"^([^\s:\[\]]*|\[[^\s\[\]]+\])(:\d{1,5})?$"  # host, or host:port, or [address]:port
    r"|^[\da-fA-F.]*:[\da-fA-F.]*:[\da-fA-F.:]*(%\S+)?$"  # an address with colons of its own
)


class ClusterSettings(BaseModel):
    """How agents of several nodes find each other; by default as their launcher says.

    `head` is where the agent of rank 0 is: host, or host:port. `token` is what all agents of a job
    share: who does not know it is not listened to.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True, frozen=True)

    head: str = Field("", pattern=_HEAD_ADDRESS_PATTERN)
    token: SecretStr | None = Field(None, min_length=1)

    def secret_token(self) -> str:
        """The token itself; empty without one."""
        return self.token.get_secret_value() if self.token else ""


class Settings(BaseModel):
    """Everything an agent can be told. Durations are in seconds.

    `port` is the first of `port_tries` that are tried. The agent stays `linger_seconds` after its
    run is over. `token` is asked of every reader of the page and the metrics. `per_rank_limit`
    ranks have metrics of their own, and a few more that stand out; none where it is 0. The newest
    `samples_kept` texts stay; `samples_from` is a folder in which the trainer writes such itself.
    GPUs, processors, memory and disks are looked at every `machine_seconds`; 0 for never. `tier`
    says how much the run matters to people. `detectors` holds knobs by detector; those in `disable`
    do not run. `actions` are what is asked of a run, by when. `cluster` is for many nodes.
    """

    model_config = ConfigDict(
        extra="forbid", hide_input_in_errors=True, frozen=True, arbitrary_types_allowed=True
    )

    host: str = "127.0.0.1"
    port: int = Field(13130, ge=0, le=65535)
    port_tries: int = Field(50, ge=1, le=1000)
    linger_seconds: float = Field(900.0, ge=0, allow_inf_nan=False)
    token: SecretStr | None = Field(None, min_length=1)
    per_rank_limit: int = Field(64, ge=0)
    samples_kept: int = Field(2000, ge=0, le=1_000_000)
    samples_from: Path | None = None
    machine_seconds: float = Field(5.0, ge=0, le=3600, allow_inf_nan=False)
    tier: Literal["page", "notify", "quiet"] = "page"
    sinks: dict[str, Annotated[Sink, SkipValidation]] = Field(default_factory=dict)
    detectors: dict[str, dict[str, Any]] = Field(default_factory=dict)
    disable: list[str] = Field(default_factory=list)
    actions: dict[str, list[Literal["checkpoint", "stop"]]] = Field(default_factory=dict)
    cluster: ClusterSettings = ClusterSettings(head="", token=None)

    def critical_actions(self) -> list[str]:
        """What is asked of the run when a case turns critical."""
        return [*self.actions.get("on_critical", ())]

    def secret_token(self) -> str:
        """The token itself, to be compared and never shown; empty without one."""
        return self.token.get_secret_value() if self.token else ""


def load_settings(
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Settings:
    """Read and check everything. Overrides that are None count as not given.

    Raises SettingsError for an unknown key, sink, detector or knob, a value of the wrong kind, a
    file that cannot be read, and an address that others can reach without a token.
    """
    environ = os.environ if environ is None else environ
    layers = read_sources(overrides or {}, environ, cwd or Path.cwd())
    tree = dict(layers.tree)
    _reject_unknown((), tree, {*Settings.model_fields, "token_file"}, layers)
    _read_secrets((), tree, {"token"}, layers)
    tree["sinks"] = _check_tables("sinks", _build_sink, layers)
    tree["detectors"] = _check_tables("detectors", _check_detector_settings, layers)
    tree["cluster"] = _cluster_settings(layers)
    tree["actions"] = layers.as_table(("actions",), tree.get("actions", {}))
    _reject_unknown(("actions",), tree["actions"], ["on_critical"], layers)
    settings: Settings = _validate((), TypeAdapter(Settings), tree, layers)
    _reject_unknown(("disable",), settings.disable, plugins.load_classes("detectors"), layers)
    if not is_loopback(settings.host) and not settings.token:
        message = (
            f"{layers.describe(('host',))}: others can reach this address, so it needs a token. "
            'Set "token" or "token_file", or keep host 127.0.0.1.'
        )
        raise ConfigError(message)
    return settings


def _cluster_settings(layers: ConfigSources) -> ConfigTree:
    path = ("cluster",)
    tree = layers.as_table(path, layers.tree.get("cluster", {}))
    _reject_unknown(path, tree, {*ClusterSettings.model_fields, "token_file"}, layers)
    _read_secrets(path, tree, {"token"}, layers)
    return tree


def build_sinks(settings: Settings) -> dict[str, Sink]:
    """The sinks by the names they were given."""
    return dict(settings.sinks)


def build_detectors(settings: Settings) -> dict[str, Callable[[], Detector]]:
    """A maker for each detector that is not disabled, with its knobs as set."""
    return {
        name: partial(kind, **settings.detectors.get(name, {}))
        for name, kind in plugins.load_classes("detectors").items()
        if name not in settings.disable
    }


def build_causes() -> dict[str, Cause]:
    """One of each cause, by name. One of a plug-in that is none is logged and left out."""
    made: dict[str, Cause] = {}
    for name, kind in plugins.load_classes("causes").items():
        try:
            made[name] = _validate_cause(kind())
        except Exception:
            log.exception("Cause %s cannot be used and is left out", name)
    return made


def _validate_cause(cause: Cause) -> Cause:
    """The cause, if incidents can be folded by it. Raises TypeError where a page could be lost."""
    explains, loud = cause.explains, cause.severity
    if not isinstance(explains, frozenset) or not all(isinstance(each, str) for each in explains):
        raise TypeError("`explains` must be a frozenset of names of detectors")
    if not (loud is None or isinstance(loud, Severity)):
        raise TypeError("`severity` must be a Severity or None")
    return cause


def _check_tables(
    section: str, check: Callable[[str, ConfigTree, ConfigSources], Any], layers: ConfigSources
) -> ConfigTree:
    tables = layers.as_table((section,), layers.tree.get(section, {}))
    return {
        name: check(name, layers.as_table((section, name), raw), layers)
        for name, raw in tables.items()
    }


def _build_sink(name: str, raw: ConfigTree, layers: ConfigSources) -> Sink:
    """Build one sink. It is called as its class's file is, unless `kind` says otherwise."""
    path = ("sinks", name)
    kinds = plugins.load_classes("sinks")
    where = (*path, "kind") if "kind" in raw else ("sinks",)
    kind = str(raw.pop("kind", name))
    _reject_unknown(where, [kind], kinds, layers)
    hints = _setting_types(kinds[kind])
    secrets = {key for key, hint in hints.items() if SecretStr in (hint, *get_args(hint))}
    known = {*hints, "kind", *(f"{key}_file" for key in secrets)}
    _reject_unknown(path, raw, known, layers)
    _read_secrets(path, raw, secrets, layers)
    sink: Sink = _validate(path, TypeAdapter(kinds[kind]), raw, layers)
    return sink


def _check_detector_settings(name: str, raw: ConfigTree, layers: ConfigSources) -> ConfigTree:
    path = ("detectors", name)
    kinds = plugins.load_classes("detectors")
    _reject_unknown(("detectors",), [name], kinds, layers)
    hints = _setting_types(kinds[name])
    _reject_unknown(path, raw, hints, layers)
    knobs = {
        key: _validate((*path, key), TypeAdapter(hints[key]), value, layers)
        for key, value in raw.items()
    }
    try:
        kinds[name](**knobs)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{layers.describe(path)}: {error}") from None
    return knobs


def _setting_types(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if field.init}


def _validate(path: ConfigPath, adapter: TypeAdapter[Any], raw: Any, layers: ConfigSources) -> Any:
    try:
        return adapter.validate_python(raw)
    except ValidationError as wrong:
        first = wrong.errors(include_url=False, include_context=False)[0]
    where = layers.describe((*path, *map(str, first["loc"])))
    if first["type"] == "missing":
        raise ConfigError(f"{where} is not set, and there is no default.")
    valid = first["msg"].removeprefix("Value error, ")
    raise ConfigError(f"{where}: the {type(first['input']).__name__} given is wrong: {valid}.")


def _reject_unknown(
    path: ConfigPath, given: Iterable[str], known: Iterable[str], layers: ConfigSources
) -> None:
    valid = sorted(known)
    for key in given:
        if key in valid:
            continue
        near = get_close_matches(key, valid, n=1)
        hint = f'Did you mean "{near[0]}"? ' if near else ""
        message = f"{layers.describe((*path, key))} is not known. {hint}Valid: {', '.join(valid)}."
        raise ConfigError(message)


def _read_secrets(
    path: ConfigPath, tree: ConfigTree, secrets: Iterable[str], layers: ConfigSources
) -> None:
    for key in sorted(secrets):
        file = tree.pop(f"{key}_file", None)
        if file is None:
            continue
        where = layers.describe((*path, f"{key}_file"))
        if key in tree:
            raise ConfigError(f'{where}: give either it or "{key}", not both.')
        tree[key] = _read_secret_file(file, where)


def _read_secret_file(file: Any, where: str) -> str:
    if not isinstance(file, (str, Path)):
        raise ConfigError(f"{where}: the {type(file).__name__} given is not the path of a file.")
    try:
        with Path(file).expanduser().open("rb") as opened:
            secret = opened.read(_MAX_SECRET_BYTES).decode().strip()
    except (OSError, ValueError) as error:
        kind = type(error).__name__
        raise ConfigError(f"{where}: the file cannot be read ({kind}); check it.") from None
    if not secret:
        raise ConfigError(f"{where}: the file is empty; write the secret into it.")
    return secret
