"""Stated: what a log, or a file of settings beside it, says of how the run was configured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.signals.framework_config import Facts, configured

BESIDE = ("training_args.json", "args.json")
"""Names under which the arguments of a run are written beside its log: as JSON, never a pickle."""

LARGEST = 2**20
"""Bytes, or characters, of a configuration."""

UNSEEN = "save_steps"
"""A setting that only a log that tells of saves is held to; of any other it stays a text."""


@dataclass(frozen=True, slots=True)
class Stated:
    """A configuration that stands between the rows of a log."""

    facts: Facts


def stated(config: Any) -> Stated | None:
    """What is known of it; None if that is nothing, or if it is no configuration."""
    facts = configured(config) if isinstance(config, Mapping) else {}
    return Stated(facts) if facts else None


def parsed(text: str | bytes) -> Stated | None:
    """The same of its JSON; None of what cannot be read."""
    if len(text) > LARGEST:
        return None
    try:
        return stated(json.loads(text))
    except (ValueError, RecursionError):
        return None


def beside(path: Path) -> Stated | None:
    """What the first file of arguments in the folder of a log says."""
    folder = path if path.is_dir() else path.parent
    for name in BESIDE:
        try:
            # A pipe of that name would be waited for.
            if (folder / name).is_file():
                with (folder / name).open("rb") as file:
                    return parsed(file.read(LARGEST + 1))
        except OSError:
            continue
    return None


def texts(facts: Facts) -> dict[str, str]:
    """Those that are texts."""
    return {name: said for name, said in facts.items() if isinstance(said, str)}


def stating(facts: Facts, where: Record, *, saves: bool = False) -> Record:
    """The record of them, at the place of another; `saves` says that the log tells of saves."""
    said = texts(facts)
    values = {name: float(x) for name, x in facts.items() if name not in said and _is_number(x)}
    if not saves and UNSEEN in values:
        said[UNSEEN] = f"{values.pop(UNSEEN):g}"
    return Record(
        run=where.run,
        rank=WHOLE_RUN,
        step=where.step,
        time=where.time,
        event=Event.FACTS,
        values=values,
        facts=said,
        attempt=where.attempt,
    )


def _is_number(value: str | float) -> bool:
    try:
        return isfinite(value)  # type: ignore[arg-type]
    except OverflowError:
        return False
