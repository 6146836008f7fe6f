"""Rows of a log that are not the values of one training step: means over an epoch, evaluations.

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
        is_mean = follows_steps and (
            ("epoch" in keys and "epoch" not in usual)
            or (has_evaluation if step is None is self.last_step else step in (None, self.last_step))
        )
        if keys in self.counts or len(self.counts) < MAX_KEY_SETS:
            self.counts[keys] += 1
        self.last_keys = keys
        if step is not None:
            self.last_step = step
        return is_mean
