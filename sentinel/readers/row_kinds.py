"""Rows of a log that are not those of the next training step: of an epoch, an evaluation, a writer.

They have the keys of the rows of steps, and mixed with these a series would jump.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

KIND_KEYS = ("split", "phase", "mode", "subset", "stage", "type", "event_type", "kind", "level")
"""Keys whose text states what a row is of, such as `"split": "val"`."""

MIN_STEP_ROWS = 4
"""Rows of steps after which a row with other keys can be recognised as a mean over an epoch."""
MAX_KEY_SETS = 256

_KIND_PATTERN = re.compile(
    r"(?P<eval>eval|evaluation|val|valid|validation|dev|test|testing)"
    r"|(?P<epoch>(train[_ -]?)?epoch([_ -]?(end|summary|mean|avg|train))?)",
    re.IGNORECASE,
)


class RowKind(Enum):
    """What a row states by the text under one of KIND_KEYS."""

    STEP = "step"
    EVALUATION = "evaluation"
    EPOCH = "epoch"


def stated_kind(row: Mapping[str, Any]) -> RowKind:
    """The kind that a text of the row names; STEP if none does.

    >>> [stated_kind({"split": text}).value for text in ("train", "val", "epoch_end")]
    ['step', 'evaluation', 'epoch']
    """
    for key in KIND_KEYS:
        text = row.get(key)
        if isinstance(text, str) and (match := _KIND_PATTERN.fullmatch(text)):
            return RowKind.EVALUATION if match["eval"] else RowKind.EPOCH
    return RowKind.STEP


Keys = tuple[str, ...]


@dataclass
class EpochMeans:
    """Recognises rows that repeat the loss or reward of steps as a mean over an epoch.

    They follow rows of steps, which most rows are, and have other keys: they have no step although
    those have one, or the step that the row before has, or only they have the number of an epoch.
    `counts` are rows by their keys.
    """

    counts: Counter[Keys] = field(default_factory=Counter)
    last_keys: Keys = ()
    last_step: int | None = None

    def is_mean(self, keys: Keys, step: int | None, *, has_evaluation: bool) -> bool:
        """Add a row with a loss or reward; `has_evaluation` is whether it has held-out values too.

        `step` is the row's own, None if it has none.
        """
        usual = max(self.counts, key=self.counts.__getitem__, default=keys)
        follows_steps = (
            keys != usual and self.last_keys == usual and self.counts[usual] >= MIN_STEP_ROWS
        )
        # Without any step, only held-out values show that an epoch ended.
        is_shared = self.last_step is not None or has_evaluation
        is_mean = follows_steps and (
            ("epoch" in keys and "epoch" not in usual)
            or (step in (None, self.last_step) and is_shared)
        )
        if keys in self.counts or len(self.counts) < MAX_KEY_SETS:
            self.counts[keys] += 1
        self.last_keys = keys
        if step is not None:
            self.last_step = step
        return is_mean


RANK_KEYS = ("rank", "global_rank", "local_rank", "process_index")
"""Keys of the number of a process of one training."""
WRITER_KEYS = (
    "run_id", "run_name", "run", "exp_name", "experiment", "trial_id", "trial", "seed", "host",
    "pid", *RANK_KEYS,
)  # fmt: skip
"""Keys whose value names the process or the training that wrote a row."""

MAX_WRITERS = 64
"""Writers of one log; with more names than that, such as a seed of each step, there is but one."""


@dataclass
class Writers:
    """Separates the rows of several processes that write to one log in turns.

    The rows of `selected` are read, or of the first writer if that is empty. `names` are the
    writers in the order of their first rows, `last` is that of the newest row. A name that another
    one replaces for good is another training in the log, and both are read; `is_interleaved` is
    whether a name recurred.
    """

    selected: str = ""
    names: list[str] = field(default_factory=list)
    last: str = ""
    is_interleaved: bool = False

    def is_other(self, row: Mapping[str, Any]) -> bool:
        """Add a row; whether a writer wrote it that is not read."""
        name = writer_name(row)
        if not name or len(self.names) > MAX_WRITERS:
            return False
        if name not in self.names:
            self.names.append(name)
        elif name != self.last and len(self.names) <= MAX_WRITERS:
            self.is_interleaved = True
        self.last = name
        if self.selected:
            return name != self.selected
        return self.is_interleaved and name != self.names[0]

    @property
    def separate_trainings(self) -> list[str]:
        """The writers other than the one that is read, if each is a training; ranks are none."""
        are_read = self.selected or not self.is_interleaved
        names = [] if are_read or len(self.names) > MAX_WRITERS else self.names[1:]
        return [name for name in names if name.partition("=")[0] not in RANK_KEYS]


def writer_name(row: Mapping[str, Any]) -> str:
    """The writer that a row names, such as "seed=3"; empty if it names none."""
    for key in WRITER_KEYS:
        value = row.get(key)
        if isinstance(value, str | int | float):
            return f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
    return ""
