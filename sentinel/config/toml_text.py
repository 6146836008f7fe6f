"""Settings as text in the format of sentinel.toml."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(tree: Mapping[str, Any]) -> str:
    """Nested tables of booleans, numbers, texts and lists of these, as TOML.

    >>> print(toml_text({"detectors": {"kl_blowup": {"ratio": 4.0}}, "disable": ["loss_spike"]}))
    disable = ["loss_spike"]
    <BLANKLINE>
    [detectors.kl_blowup]
    ratio = 4.0
    """
    return "\n\n".join(_tables(tree, ()))


def _tables(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    values = {key: each for key, each in table.items() if not isinstance(each, Mapping)}
    heading = [f"[{'.'.join(map(_key, path))}]"] if path else []
    if values:
        yield "\n".join([*heading, *(f"{_key(key)} = {_value(values[key])}" for key in values)])
    for key, each in table.items():
        if isinstance(each, Mapping):
            yield from _tables(each, (*path, key))


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        # TOML has the escapes of JSON, but for characters beyond the first 65,536.
        return json.dumps(value, ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else repr(value)
