"""Configuration of a run, from its log or from a file of arguments next to the log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.signals.framework_config import ConfigMetadata, parse_framework_config

CONFIG_FILE_NAMES = ("training_args.json", "args.json")
"""File names of a run's arguments next to its log. JSON only: a pickle is never read."""

MAX_CONFIG_BYTES = 2**20
"""A larger configuration is ignored."""

SAVE_INTERVAL_SETTING = "save_steps"
"""A number only where the log reports saves, which can then be missing; else kept as text."""


@dataclass(frozen=True, slots=True)
class LoggedConfig:
    """A configuration found between the rows of a log.

    `metadata` are its known settings, `settings` is all of it as it was stored.
    """

    metadata: ConfigMetadata
    settings: Mapping[str, Any] = field(default_factory=dict)


def extract_config(config: Any) -> LoggedConfig | None:
    """The settings of a configuration; None if there are none."""
    if not isinstance(config, Mapping) or not config:
        return None
    return LoggedConfig(parse_framework_config(config), dict(config))


def parse_config(text: str | bytes) -> LoggedConfig | None:
    """The settings of a configuration as JSON; None if it cannot be parsed."""
    if len(text) > MAX_CONFIG_BYTES:
        return None
    try:
        return extract_config(json.loads(text))
    except (ValueError, RecursionError):
        return None


def read_config_file(log_path: Path) -> LoggedConfig | None:
    """The first readable file of arguments in the directory of a log."""
    folder = log_path if log_path.is_dir() else log_path.parent
    for name in CONFIG_FILE_NAMES:
        try:
            # Opening a named pipe would block.
            if (folder / name).is_file():
                with (folder / name).open("rb") as file:
                    return parse_config(file.read(MAX_CONFIG_BYTES + 1))
        except OSError:
            continue
    return None


def text_metadata(metadata: ConfigMetadata) -> dict[str, str]:
    """The settings that are texts."""
    return {name: value for name, value in metadata.items() if isinstance(value, str)}


def config_record(
    metadata: ConfigMetadata, template: Record, *, logs_saves: bool = False
) -> Record:
    """The METADATA record of these settings, at the step and time of `template`.

    `logs_saves` is whether the log reports saves.
    """
    texts = text_metadata(metadata)
    values = {name: float(x) for name, x in metadata.items() if name not in texts and _is_number(x)}
    if not logs_saves and SAVE_INTERVAL_SETTING in values:
        texts[SAVE_INTERVAL_SETTING] = f"{values.pop(SAVE_INTERVAL_SETTING):g}"
    return Record(
        run=template.run,
        rank=WHOLE_RUN,
        step=template.step,
        time=template.time,
        event=Event.METADATA,
        values=values,
        attributes=texts,
        attempt=template.attempt,
    )


def _is_number(value: str | float) -> bool:
    try:
        return isfinite(value)  # type: ignore[arg-type]
    except OverflowError:
        return False
