"""The settings: their names, types and defaults, and the validation of what is given.

The settings of detectors and sinks are the fields of their classes. Any secret `x` can be given as
`x_file`, the path of a file that holds it. Error messages never contain a value.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import partial
from itertools import chain
from math import isnan
from pathlib import Path
from secrets import token_urlsafe
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    SkipValidation,
    TypeAdapter,
    ValidationError,
    field_validator,
)

from sentinel.config import plugins
from sentinel.config.config_sources import (
    ConfigError,
    ConfigPath,
    ConfigSources,
    ConfigTree,
    read_sources,
    type_name,
    working_directory,
)
from sentinel.config.route import Route
from sentinel.config.url_policy import is_loopback, url_refusal
from sentinel.model.delivery import Sink
from sentinel.model.diagnosis import Cause
from sentinel.model.finding import Detector, Severity
from sentinel.model.nearest_name import nearest_hint, nearest_name
from sentinel.signals.catalogue import SIGNALS, canonical_name, eval_name
from sentinel.signals.key_words import nearest_signal

__all__ = [
    "ConfigError",
    "Settings",
    "build_causes",
    "build_detectors",
    "build_sinks",
    "load_agent_settings",
    "load_replay_settings",
    "load_settings",
]

log = logging.getLogger(__name__)

_MAX_SECRET_BYTES = 4096
_MAPPABLE_SIGNALS = frozenset(
    chain.from_iterable(
        (name, eval_name(name)) for name, signal in SIGNALS.items() if not signal.entity
    )
)
_SIGNAL_EXAMPLES = (
    "loss",
    "eval_loss",
    "grad_norm",
    "learning_rate",
    "reward",
    "kl_ref",
    "entropy",
)
_DRILL_SETTINGS = {
    "baselines": False,
    "cooldown_seconds": 0.0,
    "host": "127.0.0.1",
    "linger_seconds": 60.0,
    "ping_url": None,
    "port": 0,
    "resolve_seconds": 0.0,
    "samples_dir": None,
    "web_config_file": None,
}
"""What a drill must not touch: baselines, samples, the address and the check of a real run.

Its incident is resolved as soon as the records allow, since people wait for it.

A drill asks its agent, which it could not if the web configuration requires client certificates.
"""
_LOGIN_SETTINGS = ("token", "token_file", "web_config_file")
_HEAD_ADDRESS_PATTERN = (
    r"^([^\s:\[\]]*|\[[^\s\[\]]+\])(:\d{1,5})?$"  # host, or host:port, or [address]:port
    r"|^[\da-fA-F.]*:[\da-fA-F.]*:[\da-fA-F.:]*(%\S+)?$"  # an address with colons of its own
)


class ClusterSettings(BaseModel):
    """How the agents of several nodes find each other; by default from the launcher's variables.

    `head` is the address of the agent of rank 0: host, or host:port. `token` is the secret that all
    agents of a job share; messages without it are rejected. The head listens at the interface of
    the address at which the others look for it, or with `all_interfaces` at all of them.
    """

    model_config = ConfigDict(
        extra="forbid", hide_input_in_errors=True, frozen=True, defer_build=True
    )

    head: str = Field("", pattern=_HEAD_ADDRESS_PATTERN)
    token: SecretStr | None = Field(None, min_length=1)
    all_interfaces: bool = False

    def secret_token(self) -> str:
        """The token in plain text; empty if there is none."""
        return self.token.get_secret_value() if self.token else ""


class PrivacySettings(BaseModel):
    """What is stored and sent of texts of the run.

    `messages` is the first line of an exception's message, `command` the command line, both without
    what looks like a secret. `provenance` is the command line, the commit, and the versions of
    packages and of the driver.
    """

    model_config = ConfigDict(
        extra="forbid", hide_input_in_errors=True, frozen=True, defer_build=True
    )

    messages: bool = True
    command: bool = True
    provenance: bool = True


class CaptureSettings(BaseModel):
    """What the ranks note beside the values of their steps.

    `rows` are the indices of the rows of the batches of the last steps, without their content. They
    are stored with a spike, a NaN or an explosion.
    """

    model_config = ConfigDict(
        extra="forbid", hide_input_in_errors=True, frozen=True, defer_build=True
    )

    rows: bool = True


class ActionSettings(BaseModel):
    """What is done when a case becomes critical.

    `on_critical` are the commands that are sent to the trainer. In the mode `shadow` none is sent,
    and the notification states the command and its step.
    """

    model_config = ConfigDict(
        extra="forbid", hide_input_in_errors=True, frozen=True, defer_build=True
    )

    on_critical: list[Literal["checkpoint", "stop"]] = Field(default_factory=list)
    mode: Literal["act", "shadow"] = "act"


_PREFLIGHT_SETTINGS = {
    **_DRILL_SETTINGS,
    "actions": ActionSettings(),
    "linger_seconds": 0.0,
    "sinks": {},
}
"""A preflight sends nothing: its result is printed."""


class HistorySettings(BaseModel):
    """How much is stored of runs, in the unit MiB.

    The newest `full_steps` records of a run are stored in full, and older ones in ever coarser
    blocks. The database of a run takes at most `max_mb`, all runs together `max_home_mb`: above it,
    the oldest runs that ended are deleted.
    """

    model_config = ConfigDict(
        extra="forbid", hide_input_in_errors=True, frozen=True, defer_build=True
    )

    full_steps: Annotated[int, Field(ge=1000)] = 100_000
    max_mb: Annotated[float, Field(ge=8, allow_inf_nan=False)] = 1024.0
    max_home_mb: Annotated[float, Field(ge=8, allow_inf_nan=False)] = 10_240.0


class Settings(BaseModel):
    """The settings of an agent. Durations are in seconds.

    The agent listens on the first free one of `port_tries` ports from `port` on, else on any. It
    waits `first_rank_seconds` for a rank, or for `sentinel run`, which may start some, and stays
    `linger_seconds` after the run has ended. Every request to it must carry `token`, if there
    is one; `web_config_file` has the TLS settings and further users. Up to `per_rank_limit` ranks
    have metrics of their own, and a few outliers; 0 is none. The database holds the newest
    `max_samples` texts; `samples_dir` is a folder to which the trainer writes texts. GPUs,
    processors, memory and disks are polled every `node_poll_seconds`; 0 is never. `tier` limits how
    notifications of the run are sent, and `team` is who gets them. The list of runs is grouped by
    `project` and `tags`. The first notification of a case waits `hold_seconds` for a cause and for
    the estimate of its onset. An incident is resolved after `resolve_seconds` without a finding;
    one that returns within `cooldown_seconds` of that is the same incident. Above
    `max_notifications_per_hour` the further ones are summarised.
    `ping_url` is requested while the run is healthy. Links in notifications begin with
    `public_url`, by default the agent's own address, and contain `dashboard_url`, in which `{run}`
    is replaced. `detectors` holds the settings of each detector; those in `disable` do not run.
    `keys` are logged keys, each with the signal that it stands for. With `baselines` the run starts
    from the trajectories of healthy runs with the same configuration, and stores its own. `actions`
    are the commands that are sent to the trainer. `targets_group` is the group, by name or id, of a
    Prometheus of another user, which may then read `targets/`. With `otlp`, metrics are sent to an
    OpenTelemetry collector too. `cluster` is for runs on several nodes, `privacy` limits which
    texts are stored, `capture` what ranks note of their steps, and `history` how much is stored.
    `drill` is set by `sentinel chaos`: every notification is marked as a drill; `preflight` by
    `sentinel preflight`: no notification is sent.
    """

    model_config = ConfigDict(
        extra="forbid", hide_input_in_errors=True, frozen=True, arbitrary_types_allowed=True
    )

    host: str = "127.0.0.1"
    port: int = Field(13130, ge=0, le=65535)
    port_tries: int = Field(50, ge=1, le=1000)
    first_rank_seconds: float = Field(120.0, ge=0, allow_inf_nan=False)
    linger_seconds: float = Field(900.0, ge=0, allow_inf_nan=False)
    token: SecretStr | None = Field(None, min_length=1)
    web_config_file: Path | None = None
    per_rank_limit: int = Field(64, ge=0)
    max_samples: int = Field(2000, ge=0, le=1_000_000)
    samples_dir: Path | None = None
    node_poll_seconds: float = Field(5.0, ge=0, le=3600, allow_inf_nan=False)
    tier: Literal["page", "notify", "quiet"] = "page"
    team: str = ""
    project: str = ""
    tags: list[str] = Field(default_factory=list)
    hold_seconds: float = Field(2.0, ge=0, le=60, allow_inf_nan=False)
    resolve_seconds: float = Field(60.0, ge=0, allow_inf_nan=False)
    cooldown_seconds: float = Field(240.0, ge=0, allow_inf_nan=False)
    max_notifications_per_hour: int = Field(20, ge=1, le=10_000)
    ping_url: SecretStr | None = Field(None, min_length=1)
    public_url: str = ""
    dashboard_url: str = ""
    sinks: dict[str, Annotated[Sink, SkipValidation]] = Field(default_factory=dict)
    detectors: dict[str, dict[str, Any]] = Field(default_factory=dict)
    disable: list[str] = Field(default_factory=list)
    keys: dict[str, str] = Field(default_factory=dict)
    baselines: bool = True
    targets_group: str = ""
    otlp: bool = False
    actions: ActionSettings = Field(default_factory=ActionSettings)
    cluster: ClusterSettings = Field(default_factory=lambda: ClusterSettings(head="", token=None))
    privacy: PrivacySettings = Field(default_factory=PrivacySettings)
    capture: CaptureSettings = Field(default_factory=CaptureSettings)
    history: HistorySettings = Field(default_factory=HistorySettings)
    drill: bool = False
    preflight: bool = False
    _config_errors: dict[str, str] = PrivateAttr(default_factory=dict)
    _routes: dict[str, Route] = PrivateAttr(default_factory=dict)

    @property
    def config_errors(self) -> dict[str, str]:
        """Messages by full name of the invalid settings that an agent ignores."""
        return self._config_errors

    @field_validator("ping_url")
    @classmethod
    def _check_ping_url(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None and (refusal := url_refusal(url.get_secret_value())):
            raise ValueError(refusal)
        return url

    @field_validator("public_url", "dashboard_url")
    @classmethod
    def _check_link(cls, url: str) -> str:
        if url and (refusal := url_refusal(url, allow_http=True)):
            raise ValueError(refusal)
        return url

    @property
    def routes(self) -> dict[str, Route]:
        """Which notifications each sink gets, by its name."""
        return self._routes

    def secret_token(self) -> str:
        """The token in plain text; empty if there is none."""
        return self.token.get_secret_value() if self.token else ""


def load_settings(
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Settings:
    """Read and validate all settings. Overrides that are None are ignored.

    Raises ConfigError for an unknown key, sink, detector or detector setting, a value of the wrong
    type, a file that cannot be read, and a host other than this machine without a token.
    """
    environ = os.environ if environ is None else environ
    return _build_settings(read_sources(overrides or {}, environ, cwd or working_directory()))


def load_agent_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """As `load_settings`, but without what is invalid: a detector or setting gets its default.

    With an invalid web configuration or token, only this machine can connect, and only with a
    random token. With an invalid setting of `privacy`, no message of an exception is stored or
    sent, with an invalid `max_samples` no sample is stored, and with one of `capture` no row.
    `config_errors` of the result holds the messages: a typing error must not leave a training run
    unmonitored. Raises ConfigError for a file that cannot be read.
    """
    environ = os.environ if environ is None else environ
    errors: dict[str, str] = {}
    sources = read_sources({}, environ, working_directory())
    while True:
        try:
            settings = _build_settings(sources, errors)
            break
        except ConfigError as error:
            name, message = ".".join(error.path), str(error)
            if not sources.remove(error.path):
                raise
        # What follows from its removal is not what the user wrote.
        errors.setdefault(name, message)
        _lock(name, sources)
    settings.config_errors.update(errors)
    settings = settings.model_copy(update=_strict_settings(errors))
    if settings.preflight:
        return settings.model_copy(update=_PREFLIGHT_SETTINGS)
    return settings.model_copy(update=_DRILL_SETTINGS) if settings.drill else settings


def _strict_settings(invalid: Iterable[str]) -> ConfigTree:
    """The strictest value of each setting that an invalid one may have been meant for."""
    meant = {nearest_name(name.partition(".")[0], Settings.model_fields) for name in invalid}
    strict = {
        "privacy": PrivacySettings(messages=False, command=False),
        "max_samples": 0,
        "actions": ActionSettings(mode="shadow"),
        "capture": CaptureSettings(rows=False),
    }
    return {name: value for name, value in strict.items() if name in meant}


def _lock(invalid: str, sources: ConfigSources) -> None:
    """Without a login that may have been meant by an invalid setting, let no client in."""
    section, _, name = invalid.rpartition(".")
    if section not in ("", "cluster") or not nearest_name(name or "token", _LOGIN_SETTINGS):
        return
    table = sources.tree.setdefault(section, {}) if section else sources.tree
    if not table.keys() & {"token", "token_file"}:
        table["token"] = token_urlsafe(32)


def load_replay_settings(
    assignments: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
    option: str = "--set",
) -> Settings:
    """As `load_settings`, except that no file with a secret is opened and no sink is built.

    `assignments` are values of `option`, KEY=VALUE; they replace what every other source gives.
    """
    environ = os.environ if environ is None else environ
    sources = read_sources({}, environ, working_directory(), assignments, option)
    sources.read_secrets = False
    return _build_settings(sources)


def _build_settings(sources: ConfigSources, errors: dict[str, str] | None = None) -> Settings:
    """The validated settings.

    What `load_agent_settings` can do without raises if it is invalid, or goes to `errors`.
    """
    tree = dict(sources.tree)
    has_token = bool(tree.keys() & {"token", "token_file"})
    secrets = {"token", "ping_url"}
    known = {*Settings.model_fields, *(f"{key}_file" for key in secrets)}
    _reject_unknown((), tree, known, sources)
    _read_secrets((), tree, secrets, sources)
    routes: dict[str, Route] = {}
    sinks = _check_tables("sinks", partial(_build_sink, routes), sources)
    tree["sinks"] = sinks if sources.read_secrets else {}
    tree["detectors"] = _check_tables("detectors", _check_detector_settings, sources, errors)
    tree["keys"] = _check_tables("keys", _check_key, sources, errors, as_tables=False)
    tree["cluster"] = _cluster_settings(sources)
    for name, names in {
        "privacy": PrivacySettings.model_fields,
        "history": HistorySettings.model_fields,
        "actions": ActionSettings.model_fields,
    }.items():
        tree[name] = sources.as_table((name,), tree.get(name, {}))
        _reject_unknown((name,), tree[name], names, sources)
    settings: Settings = _validate((), TypeAdapter(Settings), tree, sources)
    settings.routes.update(routes)
    _reject_unknown(("disable",), settings.disable, plugins.load_classes("detectors"), sources)
    try:
        authenticates = _has_web_authentication(settings, sources) or has_token
    except ConfigError as error:
        if errors is None:
            raise
        errors["web_config_file"] = str(error)
        # No client connects without the login that was meant.
        token = settings.token or SecretStr(token_urlsafe(32))
        locked = {"host": "127.0.0.1", "web_config_file": None, "token": token}
        return settings.model_copy(update=locked)
    if not (authenticates or is_loopback(settings.host)):
        message = (
            f"{sources.describe(('host',))}: others can reach this address, so it needs a token, "
            'or a web configuration with users or client certificates. Set "token", "token_file" '
            'or "web_config_file", or keep host 127.0.0.1.'
        )
        raise ConfigError(message, ("host",))
    return settings


def _has_web_authentication(settings: Settings, sources: ConfigSources) -> bool:
    """Whether clients need a user or certificate of the web configuration, which is checked."""
    if settings.web_config_file is None or not sources.read_secrets:
        return settings.web_config_file is not None
    # Few have one.
    from sentinel.config.web_config import load_web_config  # noqa: PLC0415

    try:
        web_config = load_web_config(settings.web_config_file)
        web_config.make_tls_context()
    except ConfigError as error:
        raise ConfigError(f"{sources.describe(('web_config_file',))}: {error}") from None
    return web_config.authenticates


def _cluster_settings(sources: ConfigSources) -> ConfigTree:
    path = ("cluster",)
    tree = sources.as_table(path, sources.tree.get("cluster", {}))
    _reject_unknown(path, tree, {*ClusterSettings.model_fields, "token_file"}, sources)
    _read_secrets(path, tree, {"token"}, sources)
    return tree


def build_sinks(settings: Settings) -> dict[str, Sink]:
    """The sinks by name."""
    return dict(settings.sinks)


def build_detectors(settings: Settings) -> dict[str, Callable[[], Detector]]:
    """A factory for each detector that is not disabled, with its settings applied."""
    return {
        name: partial(kind, **settings.detectors.get(name, {}))
        for name, kind in plugins.load_classes("detectors").items()
        if name not in settings.disable
    }


def build_causes() -> dict[str, Cause]:
    """One instance of each cause, by name. An invalid one of a plug-in is logged and left out."""
    causes: dict[str, Cause] = {}
    for name, kind in plugins.load_classes("causes").items():
        try:
            causes[name] = _validate_cause(kind())
        except Exception:
            log.exception("Cause %s is invalid and is left out", name)
    return causes


def _validate_cause(cause: Cause) -> Cause:
    """The cause. Raises TypeError for attributes with which the case book would fail."""
    explains, severity = cause.explains, cause.severity
    if not isinstance(explains, frozenset) or not all(isinstance(each, str) for each in explains):
        raise TypeError("`explains` must be a frozenset of detector names")
    if not (severity is None or isinstance(severity, Severity)):
        raise TypeError("`severity` must be a Severity or None")
    return cause


def _check_tables(
    section: str,
    check: Callable[[str, Any, ConfigSources], Any],
    sources: ConfigSources,
    errors: dict[str, str] | None = None,
    *,
    as_tables: bool = True,
) -> ConfigTree:
    """What `check` returns for each table, or each value, of the section.

    An invalid one raises ConfigError; with `errors`, it is left out and its message added there.
    """
    checked: ConfigTree = {}
    try:
        tables = sources.as_table((section,), sources.tree.get(section, {}))
    except ConfigError as error:
        if errors is None:
            raise
        errors[section] = str(error)
        return checked
    for name, raw in tables.items():
        try:
            value = sources.as_table((section, name), raw) if as_tables else raw
            checked[name] = check(name, value, sources)
        except ConfigError as error:
            if errors is None:
                raise
            errors[f"{section}.{name}"] = str(error)
    return checked


def _build_sink(
    routes: dict[str, Route], name: str, raw: ConfigTree, sources: ConfigSources
) -> Sink | None:
    """The sink; None without secrets. Its class is that named `kind`, by default `name`.

    Its route is added to `routes`.
    """
    path = ("sinks", name)
    kind_path = (*path, "kind") if "kind" in raw else ("sinks",)
    kind = str(raw.pop("kind", name))
    _reject_unknown(kind_path, [kind], plugins.class_names("sinks"), sources)
    sink_class = plugins.load_class("sinks", kind)
    hints = _setting_types(sink_class)
    secrets = {key for key, hint in hints.items() if SecretStr in (hint, *get_args(hint))}
    known = {*hints, "kind", *(f"{key}_file" for key in secrets), *Route.model_fields}
    _reject_unknown(path, raw, known, sources)
    route = {key: raw.pop(key) for key in Route.model_fields if key in raw}
    routes[name] = _validate(path, TypeAdapter(Route), route, sources)
    _read_secrets(path, raw, secrets, sources)
    if not sources.read_secrets:
        for key, value in raw.items():
            _validate((*path, key), TypeAdapter(hints[key]), value, sources)
        return None
    sink: Sink = _validate(path, TypeAdapter(sink_class), raw, sources)
    return sink


def _check_detector_settings(name: str, raw: ConfigTree, sources: ConfigSources) -> ConfigTree:
    path = ("detectors", name)
    kinds = plugins.load_classes("detectors")
    _reject_unknown(("detectors",), [name], kinds, sources)
    hints = _setting_types(kinds[name])
    _reject_unknown(path, raw, hints, sources)
    values = {
        key: _validate((*path, key), TypeAdapter(hints[key]), value, sources)
        for key, value in raw.items()
    }
    for key, value in values.items():
        if isinstance(value, float) and isnan(value):
            message = f"{sources.describe((*path, key))}: the float given is wrong: it is NaN."
            raise ConfigError(message)
        # A number whose default is positive is a size, a factor or a count.
        default = getattr(kinds[name], key, None)
        if (
            isinstance(default, int | float)
            and isinstance(value, int | float)
            and value < 0 < default
        ):
            message = f"{sources.describe((*path, key))}: the number given is wrong: it is below 0."
            raise ConfigError(message)
    try:
        kinds[name](**values)
    except (TypeError, ValueError) as error:
        message = f"{sources.describe(path)}: the detector rejects {', '.join(values)}: {error}."
        raise ConfigError(message) from None
    return values


def _check_key(key: str, signal: Any, sources: ConfigSources) -> str:
    """The name of the signal that a logged key stands for."""
    description = sources.describe(("keys", key))
    if not isinstance(signal, str):
        raise ConfigError(
            f"{description}: the {type_name(signal)} given is wrong: it must be a string, "
            'the name of a signal such as "loss".'
        )
    if canonical_name(signal) in _MAPPABLE_SIGNALS:
        return canonical_name(signal)
    nearest = nearest_name(signal, _MAPPABLE_SIGNALS) or nearest_signal(signal)
    hint = nearest_hint(nearest, [nearest]) if nearest else ""
    raise ConfigError(
        f"{description}: it names no signal.{hint} Signals are listed in docs/metrics.md, "
        f"such as {', '.join(_SIGNAL_EXAMPLES)}."
    )


def _setting_types(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if field.init}


def _validate(path: ConfigPath, adapter: TypeAdapter[Any], raw: Any, sources: ConfigSources) -> Any:
    try:
        return adapter.validate_python(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    path = (*path, *map(str, first["loc"]))
    description = sources.describe(path)
    if first["type"] == "missing":
        raise ConfigError(f"{description} is not set, and there is no default.", path)
    if first["type"] in {"too_short", "string_too_short"}:
        raise ConfigError(f"{description}: it must not be empty.", path)
    valid = first["msg"].removeprefix("Value error, ")
    valid = valid[:1].lower() + valid[1:]
    kind = type_name(first["input"])
    raise ConfigError(f"{description}: the {kind} given is wrong: {valid}.", path)


def _reject_unknown(
    path: ConfigPath, keys: Iterable[str], known: Iterable[str], sources: ConfigSources
) -> None:
    valid = sorted(known)
    for key in keys:
        if key in valid:
            continue
        hint = nearest_hint(key, valid)
        message = f"{sources.describe((*path, key))} is not known.{hint} Valid: {', '.join(valid)}."
        raise ConfigError(message, (*path, key))


def _read_secrets(
    path: ConfigPath, tree: ConfigTree, secrets: Iterable[str], sources: ConfigSources
) -> None:
    for key in sorted(secrets):
        file = tree.pop(f"{key}_file", None)
        if file is None:
            continue
        description = sources.describe((*path, f"{key}_file"))
        if key in tree:
            message = f'{description}: give either it or "{key}", not both.'
            raise ConfigError(message, (*path, f"{key}_file"))
        if not sources.read_secrets and isinstance(file, (str, Path)):
            continue
        try:
            tree[key] = _read_secret_file(file, description)
        except ConfigError as error:
            raise ConfigError(str(error), (*path, f"{key}_file")) from None


def _read_secret_file(file: Any, description: str) -> str:
    if not isinstance(file, (str, Path)):
        raise ConfigError(f"{description}: the {type_name(file)} given is not the path of a file.")
    try:
        with Path(file).expanduser().open("rb") as opened:
            secret = opened.read(_MAX_SECRET_BYTES).decode().strip()
    except (OSError, ValueError) as error:
        # Without the path: it may be the secret itself, given by mistake.
        reason = (error.strerror or "error") if isinstance(error, OSError) else "not UTF-8 text"
        message = f"{description}: the file cannot be read ({reason}); check its path and mode."
        raise ConfigError(message) from None
    if not secret:
        raise ConfigError(f"{description}: the file is empty; write the secret into it.")
    return secret
