"""The arguments of `sentinel.monitor`, validated before training starts.

An error names the argument, its value, and what is expected. Later errors never reach the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any

CRITICAL_ACTIONS = ("checkpoint", "stop")
"""Values of `on_critical`, beside a function."""
TIERS = ("page", "notify", "quiet")
AGGREGATE_MODES = ("agent", "collective")
"""How the records of several ranks are combined."""
INSIGHTS = ("gradient_flow",)
"""What `insight` measures of the model, beside the training loop."""
MAX_SAMPLES_PER_BATCH = 64


class SettingsError(ValueError):
    """An argument of `monitor` is unknown or has an invalid value."""


@dataclass(frozen=True, slots=True)
class MonitorArguments:
    """The validated arguments of `sentinel.monitor`."""

    run: str | None = None
    save_steps: int | None = None
    max_steps: int | None = None
    config: Path | None = None
    agent: bool = True
    aggregate: str = "agent"
    strict: bool = False
    checks: bool = True
    samples: int = 0
    insight: tuple[str, ...] = ()
    metadata: Mapping[str, str | float] = field(default_factory=dict)
    tier: str | None = None
    on_critical: str | None = None
    """The actions, separated by spaces; "call" stands for the function."""
    callback: Callable[[Any], object] | None = None


def parse_arguments(settings: Mapping[str, Any]) -> MonitorArguments:
    """Validate keyword arguments. Raises SettingsError for the first invalid one."""
    known = [each.name for each in fields(MonitorArguments) if each.name != "callback"]
    for key in settings:
        if key not in known:
            # Training does not start in this case; otherwise the import would cost time.
            from difflib import get_close_matches  # noqa: PLC0415

            closest = get_close_matches(key, known, 1) or known
            raise SettingsError(f"monitor has no argument {key!r}: did you mean {closest[0]!r}?")
    on_critical, callback = _on_critical(settings.get("on_critical"))
    return MonitorArguments(
        run=_optional_text("run", settings.get("run")),
        save_steps=_optional_step_count("save_steps", settings.get("save_steps")),
        max_steps=_optional_step_count("max_steps", settings.get("max_steps")),
        config=_config_path("config", settings.get("config")),
        agent=_boolean("agent", settings.get("agent", True)),
        aggregate=_one_of("aggregate", settings.get("aggregate"), AGGREGATE_MODES)
        or AGGREGATE_MODES[0],
        strict=_boolean("strict", settings.get("strict", False)),
        checks=_boolean("checks", settings.get("checks", True)),
        samples=_sample_count(settings.get("samples", 0)),
        insight=_insight(settings.get("insight")),
        metadata=_metadata(settings.get("metadata")),
        tier=_one_of("tier", settings.get("tier"), TIERS),
        on_critical=on_critical,
        callback=callback,
    )


def _optional_text(key: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    raise _value_error(key, value, "a name, as text")


def _optional_step_count(key: str, value: Any) -> int | None:
    if value is None or (type(value) is int and value > 0):
        return value
    raise _value_error(key, value, "an integer number of steps, at least 1")


def _sample_count(value: Any) -> int:
    if type(value) is int and 0 <= value <= MAX_SAMPLES_PER_BATCH:
        return value
    raise _value_error(
        "samples", value, f"an integer number of texts, from 0 to {MAX_SAMPLES_PER_BATCH}"
    )


def _insight(value: Any) -> tuple[str, ...]:
    """The names of what is measured, from one name or several."""
    if value is None:
        return ()
    is_single = isinstance(value, str) or not isinstance(value, Iterable)
    names = [value] if is_single else list(value)
    for name in names:
        _one_of("insight", name, INSIGHTS)
        if name is None:
            raise _value_error("insight", name, f"one of {', '.join(map(repr, INSIGHTS))}")
    return tuple(dict.fromkeys(names))


def _boolean(key: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise _value_error(key, value, "True or False")


def _one_of(key: str, value: Any, known: tuple[str, ...]) -> str | None:
    if value is None or (isinstance(value, str) and value in known):
        return value
    raise _value_error(key, value, f"one of {', '.join(map(repr, known))}")


def _on_critical(value: Any) -> tuple[str | None, Callable[[Any], object] | None]:
    """The actions, separated by spaces, and the function to call."""
    if value is None:
        return None, None
    is_single = callable(value) or isinstance(value, str) or not isinstance(value, Iterable)
    entries = [value] if is_single else list(value)
    callbacks = [entry for entry in entries if callable(entry)]
    if len(callbacks) > 1:
        raise SettingsError("monitor(on_critical=…) accepts one function, not several.")
    actions = [entry for entry in entries if not callable(entry)]
    for action in actions:
        if not (isinstance(action, str) and action in CRITICAL_ACTIONS):
            raise _value_error(
                "on_critical", action, f"{' or '.join(map(repr, CRITICAL_ACTIONS))}, or a function"
            )
    return " ".join([*actions, *("call" for _ in callbacks)]), next(iter(callbacks), None)


def _config_path(key: str, value: Any) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, (str, PathLike)):
        raise _value_error(key, value, "the path of a sentinel.toml")
    path = Path(value)
    if not path.is_file():
        raise SettingsError(f"monitor({key}={str(value)!r}): no such file.")
    return path


def _metadata(value: Any) -> Mapping[str, str | float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _value_error("metadata", value, "a mapping of names to numbers and texts")
    items = map(_metadata_item, value.items())
    return {name: entry for name, entry in items if entry is not None}


def _metadata_item(item: tuple[Any, Any]) -> tuple[str, str | float | None]:
    name, entry = item
    if not isinstance(name, str):
        raise _value_error("metadata", name, "a mapping with texts as names")
    if isinstance(entry, bool):
        return name, str(entry).lower()
    if entry is None or isinstance(entry, (str, int, float)):
        return name, entry
    raise _value_error(f"metadata[{name!r}]", entry, "a number or a text")


def _value_error(key: str, value: Any, expected: str) -> SettingsError:
    shown = repr(value)[:60] if isinstance(value, (str, int, float, bool)) else ""
    kind = f"{type(value).__name__} {shown}".strip()
    return SettingsError(f"monitor({key}=…) must be {expected}, not {kind}.")
