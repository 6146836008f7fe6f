"""Rows of a log that are not those of the next training step: of an epoch, an evaluation, a writer.

They have the keys of the rows of steps, and mixed with these a series would jump.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import nan
from typing import Any

KIND_KEYS = ("split", "phase", "mode", "subset", "stage", "type", "event_type", "kind", "level")
"""Keys whose text states what a row is of, such as `"split": "val"`."""

MIN_STEP_ROWS = 4
"""Rows of steps after which a row with other keys can be recognised as a mean over an epoch."""
MAX_KEY_SETS = 256

_KINDS = (
    r"(?P<eval>eval|evaluation|val|valid|validation|dev|test|testing)"
    r"|(?P<epoch>(train[_ -]?)?epoch([_ -]?(end|summary|mean|avg|train))?)"
)
"""Compiled at the first text: few logs have one."""


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
        if isinstance(text, str) and (match := re.fullmatch(_KINDS, text, re.IGNORECASE)):
            return RowKind.EVALUATION if match["eval"] else RowKind.EPOCH
    return RowKind.STEP


Keys = tuple[str, ...]


@dataclass
class EpochMeans:
    """Recognises rows that repeat the loss, or the reward, of steps as a mean over an epoch.

    They follow rows of steps, which most rows are, and have other keys: they have no step although
    those have one, or the step that the row before has, or only they have the number of an epoch.
    `counts` are rows by their keys, and `usual` the keys of most rows.
    """

    counts: dict[Keys, int] = field(default_factory=dict)
    usual: Keys = ()
    last_keys: Keys = ()
    last_step: int | None = None

    def find_kind(
        self, keys: Keys, step: int | None, stated: RowKind, *, has_evaluation: bool
    ) -> RowKind:
        """Add a row with that signal, and find whether it is of a step or of an epoch.

        `step` is the row's own, None if it has none. A row that is `stated` to be of an epoch is
        one of a step in a log that has no others. `has_evaluation` is whether the row has held-out
        values too.
        """
        if stated is RowKind.EPOCH:
            keys = (*keys, "epoch")
        usual, counts = self.usual or keys, self.counts
        if keys == self.usual:
            # As nearly every row.
            counts[keys] += 1
            self.last_keys, self.last_step = keys, self.last_step if step is None else step
            return RowKind.STEP
        follows_steps = (
            keys != usual and self.last_keys == usual and counts.get(usual, 0) >= MIN_STEP_ROWS
        )
        # Without any step, only held-out values show that an epoch ended.
        is_shared = self.last_step is not None or has_evaluation
        is_mean = follows_steps and (
            ("epoch" in keys and "epoch" not in usual)
            or (step in (None, self.last_step) and is_shared)
        )
        count = counts.get(keys, 0) + 1
        if count > 1 or len(counts) < MAX_KEY_SETS:
            counts[keys] = count
            if count > counts.get(usual, 0) or not self.usual:
                self.usual = keys
        self.last_keys = keys
        if step is not None:
            self.last_step = step
        return RowKind.EPOCH if is_mean else RowKind.STEP


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


SECOND_WRITER = "second writer"
"""Name of the writer of the second row of each step, if rows name none."""

MIN_PAIRS = 24
"""Steps in a row whose second loss is on one side of the first: by chance, once in 8 million."""


@dataclass
class LockstepWriters:
    """Separates two trainings that log the same steps under the same keys, and name no writer.

    Each step has two rows, and the loss of the second one is always above, or always below, that of
    the first: micro-batches and ranks of one training change sides. From then on, a row is of the
    training whose last loss is closer, and each step has one row of each. `selected` is the one
    that is read, 0 or 1. `row` and `label` are the number of the newest row at its step, and the
    training that it is of; `losses` are the last ones of both. `side_count` counts the pairs on one
    side, negative if the second is below.
    """

    selected: int = 0
    is_known: bool = False
    position: tuple[frozenset[str], int] | None = None
    row: int = 0
    label: int = 0
    losses: list[float] = field(default_factory=lambda: [nan, nan])
    side_count: int = 0

    def is_other(self, keys: frozenset[str], step: int, loss: float) -> bool:
        """Add a row; whether it is of the training that is not read."""
        is_repeated = self.position == (keys, step)
        if not is_repeated and self.row != 1:
            self.side_count = 0
        self.row = self.row + 1 if is_repeated else 0
        if self.is_known:
            label = int(abs(loss - self.losses[1]) < abs(loss - self.losses[0]))
            label = 1 - self.label if is_repeated else label
        else:
            label = min(self.row, 1)
            if self.row == 1:
                self._compare(loss)
        self.position, self.label, self.losses[label] = (keys, step), label, loss
        return label != self.selected and (self.is_known or self.selected == 1)

    def _compare(self, loss: float) -> None:
        """Count a pair, of which this is the loss of the second row."""
        side = (loss > self.losses[0]) - (loss < self.losses[0])
        is_same = self.side_count * side >= 0
        self.side_count = abs(side) * (self.side_count * is_same + side)
        self.is_known = abs(self.side_count) >= MIN_PAIRS
