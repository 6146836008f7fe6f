"""Stated: what a log, or a file of settings beside it, says of how the run was configured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.signals.framework_config import ConfigMetadata, parse_framework_config

CONFIG_FILE_NAMES = ("training_args.json", "args.json")
"""Names under which the arguments of a run are written beside its log: as JSON, never a pickle."""

MAX_CONFIG_BYTES = 2**20
"""Bytes, or characters, of a configuration."""

SAVE_INTERVAL_SETTING = "save_steps"
"""A setting that only a log that tells of saves is held to; of any other it stays a text."""


@dataclass(frozen=True, slots=True)
class LoggedConfig:
    """A configuration that stands between the rows of a log."""

    metadata: ConfigMetadata


def extract_config(config: Any) -> LoggedConfig | None:
    """What is known of it; None if that is nothing, or if it is no configuration."""
    facts = parse_framework_config(config) if isinstance(config, Mapping) else {}
    return LoggedConfig(facts) if facts else None


def parse_config(text: str | bytes) -> LoggedConfig | None:
    """The same of its JSON; None of what cannot be read."""
    if len(text) > MAX_CONFIG_BYTES:
        return None
    try:
        return extract_config(json.loads(text))
    except (ValueError, RecursionError):
        return None


def read_config_file(log_path: Path) -> LoggedConfig | None:
    """What the first file of arguments in the folder of a log says."""
    folder = log_path if log_path.is_dir() else log_path.parent
    for name in CONFIG_FILE_NAMES:
        try:
            # A pipe of that name would be waited for.
            if (folder / name).is_file():
                with (folder / name).open("rb") as file:
                    return parse_config(file.read(MAX_CONFIG_BYTES + 1))
        except OSError:
            continue
    return None


def text_metadata(facts: ConfigMetadata) -> dict[str, str]:
    """Those that are texts."""
    return {name: said for name, said in facts.items() if isinstance(said, str)}


def config_record(facts: ConfigMetadata, template: Record, *, logs_saves: bool = False) -> Record:
    """The record of them, at the place of another; `saves` says that the log tells of saves."""
    said = text_metadata(facts)
    values = {name: float(x) for name, x in facts.items() if name not in said and _is_number(x)}
    if not logs_saves and SAVE_INTERVAL_SETTING in values:
        said[SAVE_INTERVAL_SETTING] = f"{values.pop(SAVE_INTERVAL_SETTING):g}"
    return Record(
        run=template.run,
        rank=WHOLE_RUN,
        step=template.step,
        time=template.time,
        event=Event.METADATA,
        values=values,
        attributes=said,
        attempt=template.attempt,
    )


def _is_number(value: str | float) -> bool:
    try:
        return isfinite(value)  # type: ignore[arg-type]
    except OverflowError:
        return False
