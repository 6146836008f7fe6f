"""Arguments: what `sentinel.monitor` may be told, checked where it is written down.

A wrong word here is refused before training starts, with the key, what was given, and what was
meant; nothing later ever is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any

CRITICAL_ACTIONS = ("checkpoint", "stop")
"""What `on_critical` may ask for, beside a function."""
TIERS = ("page", "notify", "quiet")
AGGREGATE_MODES = ("agent", "collective")
"""How the records of ranks come together."""
MAX_SAMPLES_PER_BATCH = 64
"""Texts that may be asked for of one batch."""


class SettingsError(ValueError):
    """A setting that is not known, or not of the kind it must be."""


@dataclass(frozen=True, slots=True)
class MonitorArguments:
    """How a run is watched. See `sentinel.monitor`."""

    run: str | None = None
    save_steps: int | None = None
    max_steps: int | None = None
    config: Path | None = None
    agent: bool = True
    aggregate: str = "agent"
    strict: bool = False
    samples: int = 0
    metadata: Mapping[str, str | float] = field(default_factory=dict)
    tier: str | None = None
    on_critical: str | None = None
    """The words given, with a space between each two; "call" for the function."""
    callback: Callable[[Any], object] | None = None


def parse_arguments(settings: Mapping[str, Any]) -> MonitorArguments:
    """Arguments from keywords. Raises SettingsError naming the first that is wrong."""
    known = [each.name for each in fields(MonitorArguments) if each.name != "call"]
    for key in settings:
        if key not in known:
            # Only here, where training will not start: it is not worth its import otherwise.
            from difflib import get_close_matches  # noqa: PLC0415

            near = get_close_matches(key, known, 1) or known
            raise SettingsError(f"monitor has no setting {key!r}: did you mean {near[0]!r}?")
    on_critical, call = _on_critical(settings.get("on_critical"))
    return MonitorArguments(
        run=_optional_text("run", settings.get("run")),
        save_steps=_optional_step_count("save_steps", settings.get("save_steps")),
        max_steps=_optional_step_count("max_steps", settings.get("max_steps")),
        config=_config_path("config", settings.get("config")),
        agent=_boolean("agent", settings.get("agent", True)),
        aggregate=_one_of("aggregate", settings.get("aggregate"), AGGREGATE_MODES)
        or AGGREGATE_MODES[0],
        strict=_boolean("strict", settings.get("strict", False)),
        samples=_sample_count(settings.get("samples", 0)),
        metadata=_facts(settings.get("facts")),
        tier=_one_of("tier", settings.get("tier"), TIERS),
        on_critical=on_critical,
        callback=call,
    )


def _optional_text(key: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    raise _value_error(key, value, "a name, as text")


def _optional_step_count(key: str, value: Any) -> int | None:
    if value is None or (type(value) is int and value > 0):
        return value
    raise _value_error(key, value, "a whole number of steps, at least 1")


def _sample_count(value: Any) -> int:
    if type(value) is int and 0 <= value <= MAX_SAMPLES_PER_BATCH:
        return value
    raise _value_error(
        "samples", value, f"a whole number of texts, from 0 to {MAX_SAMPLES_PER_BATCH}"
    )


def _boolean(key: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise _value_error(key, value, "True or False")


def _one_of(key: str, value: Any, known: tuple[str, ...]) -> str | None:
    if value is None or (isinstance(value, str) and value in known):
        return value
    raise _value_error(key, value, f"one of {', '.join(map(repr, known))}")


def _on_critical(value: Any) -> tuple[str | None, Callable[[Any], object] | None]:
    """The words asked for, and the function to be called."""
    if value is None:
        return None, None
    alone = callable(value) or isinstance(value, str) or not isinstance(value, Iterable)
    each = [value] if alone else list(value)
    calls = [one for one in each if callable(one)]
    if len(calls) > 1:
        raise SettingsError("monitor(on_critical=…) takes one function, not several.")
    words = [one for one in each if not callable(one)]
    for word in words:
        if not (isinstance(word, str) and word in CRITICAL_ACTIONS):
            raise _value_error(
                "on_critical", word, f"{' or '.join(map(repr, CRITICAL_ACTIONS))}, or a function"
            )
    return " ".join([*words, *("call" for _ in calls)]), next(iter(calls), None)


def _config_path(key: str, value: Any) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, (str, PathLike)):
        raise _value_error(key, value, "the path of a sentinel.toml")
    path = Path(value)
    if not path.is_file():
        raise SettingsError(f"monitor({key}={str(value)!r}): there is no such file.")
    return path


def _facts(value: Any) -> Mapping[str, str | float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _value_error("facts", value, "a mapping of names to numbers and texts")
    return {name: fact for name, fact in map(_fact, value.items()) if fact is not None}


def _fact(item: tuple[Any, Any]) -> tuple[str, str | float | None]:
    name, fact = item
    if not isinstance(name, str):
        raise _value_error("facts", name, "texts as names")
    if isinstance(fact, bool):
        return name, str(fact).lower()
    if fact is None or isinstance(fact, (str, int, float)):
        return name, fact
    raise _value_error(f"facts[{name!r}]", fact, "a number or a text")


def _value_error(key: str, value: Any, expected: str) -> SettingsError:
    shown = repr(value)[:60] if isinstance(value, (str, int, float, bool)) else ""
    kind = f"{type(value).__name__} {shown}".strip()
    return SettingsError(f"monitor({key}=…) must be {expected}, not {kind}.")
