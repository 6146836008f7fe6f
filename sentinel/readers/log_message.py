"""The line of text in a JSON object that a structured logger wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MESSAGE_KEYS = ("message", "msg")
"""Keys of the text."""


def message_text(values: Mapping[str, Any]) -> str | None:
    """The line of text in a dict that a structured logger wrote; None if it holds metrics."""
    message = next((values[key] for key in MESSAGE_KEYS if isinstance(values.get(key), str)), None)
    is_wrapped = isinstance(message, str) and not message.lstrip().startswith("{")
    return message if is_wrapped and not any(map(_is_metric, values.values())) else None


def _is_metric(value: object) -> bool:
    return isinstance(value, float | Mapping) and not isinstance(value, bool)
