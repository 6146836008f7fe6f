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

WORDS = ("checkpoint", "stop")
"""What `on_critical` may ask for, beside a function."""
TIERS = ("page", "notify", "quiet")
AGGREGATES = ("agent", "collective")
"""How the records of ranks come together."""
MOST_SAMPLES = 64
"""Texts that may be asked for of one batch."""


class SettingsError(ValueError):
    """A setting that is not known, or not of the kind it must be."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """How a run is watched. See `sentinel.monitor`."""

    run: str | None = None
    save_steps: int | None = None
    max_steps: int | None = None
    config: Path | None = None
    agent: bool = True
    aggregate: str = "agent"
    strict: bool = False
    samples: int = 0
    facts: Mapping[str, str | float] = field(default_factory=dict)
    tier: str | None = None
    on_critical: str | None = None
    """The words given, with a space between each two; "call" for the function."""
    call: Callable[[Any], object] | None = None


def checked(given: Mapping[str, Any]) -> Arguments:
    """Arguments from keywords. Raises SettingsError naming the first that is wrong."""
    known = [each.name for each in fields(Arguments) if each.name != "call"]
    for key in given:
        if key not in known:
            # Only here, where training will not start: it is not worth its import otherwise.
            from difflib import get_close_matches  # noqa: PLC0415

            near = get_close_matches(key, known, 1) or known
            raise SettingsError(f"monitor has no setting {key!r}: did you mean {near[0]!r}?")
    on_critical, call = _on_critical(given.get("on_critical"))
    return Arguments(
        run=_text("run", given.get("run")),
        save_steps=_count("save_steps", given.get("save_steps")),
        max_steps=_count("max_steps", given.get("max_steps")),
        config=_file("config", given.get("config")),
        agent=_switch("agent", given.get("agent", True)),
        aggregate=_one_of("aggregate", given.get("aggregate"), AGGREGATES) or AGGREGATES[0],
        strict=_switch("strict", given.get("strict", False)),
        samples=_samples(given.get("samples", 0)),
        facts=_facts(given.get("facts")),
        tier=_one_of("tier", given.get("tier"), TIERS),
        on_critical=on_critical,
        call=call,
    )


def _text(key: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    raise _wrong(key, value, "a name, as text")


def _count(key: str, value: Any) -> int | None:
    if value is None or (type(value) is int and value > 0):
        return value
    raise _wrong(key, value, "a whole number of steps, at least 1")


def _samples(value: Any) -> int:
    if type(value) is int and 0 <= value <= MOST_SAMPLES:
        return value
    raise _wrong("samples", value, f"a whole number of texts, from 0 to {MOST_SAMPLES}")


def _switch(key: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise _wrong(key, value, "True or False")


def _one_of(key: str, value: Any, known: tuple[str, ...]) -> str | None:
    if value is None or (isinstance(value, str) and value in known):
        return value
    raise _wrong(key, value, f"one of {', '.join(map(repr, known))}")


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
        if not (isinstance(word, str) and word in WORDS):
            raise _wrong("on_critical", word, f"{' or '.join(map(repr, WORDS))}, or a function")
    return " ".join([*words, *("call" for _ in calls)]), next(iter(calls), None)


def _file(key: str, value: Any) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, (str, PathLike)):
        raise _wrong(key, value, "the path of a sentinel.toml")
    path = Path(value)
    if not path.is_file():
        raise SettingsError(f"monitor({key}={str(value)!r}): there is no such file.")
    return path


def _facts(value: Any) -> Mapping[str, str | float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _wrong("facts", value, "a mapping of names to numbers and texts")
    return {name: fact for name, fact in map(_fact, value.items()) if fact is not None}


def _fact(item: tuple[Any, Any]) -> tuple[str, str | float | None]:
    name, fact = item
    if not isinstance(name, str):
        raise _wrong("facts", name, "texts as names")
    if isinstance(fact, bool):
        return name, str(fact).lower()
    if fact is None or isinstance(fact, (str, int, float)):
        return name, fact
    raise _wrong(f"facts[{name!r}]", fact, "a number or a text")


def _wrong(key: str, value: Any, expected: str) -> SettingsError:
    shown = repr(value)[:60] if isinstance(value, (str, int, float, bool)) else ""
    kind = f"{type(value).__name__} {shown}".strip()
    return SettingsError(f"monitor({key}=…) must be {expected}, not {kind}.")
