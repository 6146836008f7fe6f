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
from sentinel.config.config_sources import Key, Layers, SettingsError, Tree, gather
from sentinel.config.url_policy import is_loopback
from sentinel.model.diagnosis import Cause
from sentinel.model.finding import Detector, Severity
from sentinel.model.request import Sink

__all__ = ["Settings", "SettingsError", "build_causes", "build_detectors", "build_sinks", "load"]

log = logging.getLogger(__name__)

_MOST_SECRET_BYTES = 4096
_HEAD = (
    r"^([^\s:\[\]]*|\[[^\s\[\]]+\])(:\d{1,5})?$"  # host, or host:port, or [address]:port
    r"|^[\da-fA-F.]*:[\da-fA-F.]*:[\da-fA-F.:]*(%\S+)?$"  # an address with colons of its own
)


class ClusterSettings(BaseModel):
    """How agents of several nodes find each other; by default as their launcher says.

    `head` is where the agent of rank 0 is: host, or host:port. `token` is what all agents of a job
    share: who does not know it is not listened to.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True, frozen=True)

    head: str = Field("", pattern=_HEAD)
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

    def on_critical(self) -> list[str]:
        """What is asked of the run when a case turns critical."""
        return [*self.actions.get("on_critical", ())]

    def secret_token(self) -> str:
        """The token itself, to be compared and never shown; empty without one."""
        return self.token.get_secret_value() if self.token else ""


def load(
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Settings:
    """Read and check everything. Overrides that are None count as not given.

    Raises SettingsError for an unknown key, sink, detector or knob, a value of the wrong kind, a
    file that cannot be read, and an address that others can reach without a token.
    """
    environ = os.environ if environ is None else environ
    layers = gather(overrides or {}, environ, cwd or Path.cwd())
    tree = dict(layers.tree)
    _refuse_unknown((), tree, {*Settings.model_fields, "token_file"}, layers)
    _read_secrets((), tree, {"token"}, layers)
    tree["sinks"] = _each("sinks", _sink, layers)
    tree["detectors"] = _each("detectors", _knobs, layers)
    tree["cluster"] = _cluster(layers)
    tree["actions"] = layers.table(("actions",), tree.get("actions", {}))
    _refuse_unknown(("actions",), tree["actions"], ["on_critical"], layers)
    settings: Settings = _validated((), TypeAdapter(Settings), tree, layers)
    _refuse_unknown(("disable",), settings.disable, plugins.classes("detectors"), layers)
    if not is_loopback(settings.host) and not settings.token:
        message = (
            f"{layers.where(('host',))}: others can reach this address, so it needs a token. "
            'Set "token" or "token_file", or keep host 127.0.0.1.'
        )
        raise SettingsError(message)
    return settings


def _cluster(layers: Layers) -> Tree:
    path = ("cluster",)
    tree = layers.table(path, layers.tree.get("cluster", {}))
    _refuse_unknown(path, tree, {*ClusterSettings.model_fields, "token_file"}, layers)
    _read_secrets(path, tree, {"token"}, layers)
    return tree


def build_sinks(settings: Settings) -> dict[str, Sink]:
    """The sinks by the names they were given."""
    return dict(settings.sinks)


def build_detectors(settings: Settings) -> dict[str, Callable[[], Detector]]:
    """A maker for each detector that is not disabled, with its knobs as set."""
    return {
        name: partial(kind, **settings.detectors.get(name, {}))
        for name, kind in plugins.classes("detectors").items()
        if name not in settings.disable
    }


def build_causes() -> dict[str, Cause]:
    """One of each cause, by name. One of a plug-in that is none is logged and left out."""
    made: dict[str, Cause] = {}
    for name, kind in plugins.classes("causes").items():
        try:
            made[name] = _sound(kind())
        except Exception:
            log.exception("Cause %s cannot be used and is left out", name)
    return made


def _sound(cause: Cause) -> Cause:
    """The cause, if incidents can be folded by it. Raises TypeError where a page could be lost."""
    explains, loud = cause.explains, cause.severity
    if not isinstance(explains, frozenset) or not all(isinstance(each, str) for each in explains):
        raise TypeError("`explains` must be a frozenset of names of detectors")
    if not (loud is None or isinstance(loud, Severity)):
        raise TypeError("`severity` must be a Severity or None")
    return cause


def _each(room: str, check: Callable[[str, Tree, Layers], Any], layers: Layers) -> Tree:
    tables = layers.table((room,), layers.tree.get(room, {}))
    return {
        name: check(name, layers.table((room, name), raw), layers) for name, raw in tables.items()
    }


def _sink(name: str, raw: Tree, layers: Layers) -> Sink:
    """Build one sink. It is called as its class's file is, unless `kind` says otherwise."""
    path = ("sinks", name)
    kinds = plugins.classes("sinks")
    where = (*path, "kind") if "kind" in raw else ("sinks",)
    kind = str(raw.pop("kind", name))
    _refuse_unknown(where, [kind], kinds, layers)
    hints = _knob_types(kinds[kind])
    secrets = {key for key, hint in hints.items() if SecretStr in (hint, *get_args(hint))}
    known = {*hints, "kind", *(f"{key}_file" for key in secrets)}
    _refuse_unknown(path, raw, known, layers)
    _read_secrets(path, raw, secrets, layers)
    sink: Sink = _validated(path, TypeAdapter(kinds[kind]), raw, layers)
    return sink


def _knobs(name: str, raw: Tree, layers: Layers) -> Tree:
    path = ("detectors", name)
    kinds = plugins.classes("detectors")
    _refuse_unknown(("detectors",), [name], kinds, layers)
    hints = _knob_types(kinds[name])
    _refuse_unknown(path, raw, hints, layers)
    knobs = {
        key: _validated((*path, key), TypeAdapter(hints[key]), value, layers)
        for key, value in raw.items()
    }
    try:
        kinds[name](**knobs)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{layers.where(path)}: {error}") from None
    return knobs


def _knob_types(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if field.init}


def _validated(path: Key, adapter: TypeAdapter[Any], raw: Any, layers: Layers) -> Any:
    try:
        return adapter.validate_python(raw)
    except ValidationError as wrong:
        first = wrong.errors(include_url=False, include_context=False)[0]
    where = layers.where((*path, *map(str, first["loc"])))
    if first["type"] == "missing":
        raise SettingsError(f"{where} is not set, and there is no default.")
    valid = first["msg"].removeprefix("Value error, ")
    raise SettingsError(f"{where}: the {type(first['input']).__name__} given is wrong: {valid}.")


def _refuse_unknown(path: Key, given: Iterable[str], known: Iterable[str], layers: Layers) -> None:
    valid = sorted(known)
    for key in given:
        if key in valid:
            continue
        near = get_close_matches(key, valid, n=1)
        hint = f'Did you mean "{near[0]}"? ' if near else ""
        message = f"{layers.where((*path, key))} is not known. {hint}Valid: {', '.join(valid)}."
        raise SettingsError(message)


def _read_secrets(path: Key, tree: Tree, secrets: Iterable[str], layers: Layers) -> None:
    for key in sorted(secrets):
        file = tree.pop(f"{key}_file", None)
        if file is None:
            continue
        where = layers.where((*path, f"{key}_file"))
        if key in tree:
            raise SettingsError(f'{where}: give either it or "{key}", not both.')
        tree[key] = _secret_in(file, where)


def _secret_in(file: Any, where: str) -> str:
    if not isinstance(file, (str, Path)):
        raise SettingsError(f"{where}: the {type(file).__name__} given is not the path of a file.")
    try:
        with Path(file).expanduser().open("rb") as opened:
            secret = opened.read(_MOST_SECRET_BYTES).decode().strip()
    except (OSError, ValueError) as error:
        kind = type(error).__name__
        raise SettingsError(f"{where}: the file cannot be read ({kind}); check it.") from None
    if not secret:
        raise SettingsError(f"{where}: the file is empty; write the secret into it.")
    return secret
