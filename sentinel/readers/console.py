"""Console output: text with the metrics of a step in a line, a progress bar or a table.

Lines are dicts, as transformers prints them, or pairs of a key and a number. A timestamp, a level,
a name, a rank, colours and the graphic of a bar are removed. A kind of line counts if it recurs
with the same keys, and if it holds a step, or an epoch and a batch, or follows a line or bar with
one. Lines of a table are read by its header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, isfinite
from pathlib import Path
from typing import Any

from sentinel.readers.cells import header_names
from sentinel.readers.console_line import (
    ConsoleLine,
    numeric_keys,
    parse_console_line,
)
from sentinel.readers.console_table import ConsoleTable
from sentinel.readers.lines import read_lines
from sentinel.readers.log_file import log_stem, uncompressed_name
from sentinel.readers.log_message import MESSAGE_KEYS
from sentinel.readers.log_reader import LogReader, Row, file_reader
from sentinel.readers.rows import MAX_ROW_GAP_SECONDS, STEP_KEYS, parse_number

FORMAT_NAME = "Console output"

IS_FALLBACK = True
"""This reader is tried after all others: a line of any other format may look like one of text."""

MAX_PROBED_BYTES = 2**21
"""How far into a file its first rows may be; warnings and the printed model come before them."""
MIN_ROWS = 2
"""Rows of one kind at different steps that show that a text is a log."""
MAX_KINDS = 1024
MAX_TABLE_ROWS = 256

LOG_SUFFIXES = frozenset({".log", ".out", ".err", ".stdout", ".stderr"})
"""Suffixes of files that are followed although they hold no line of metrics yet."""

_JSON_START = re.compile(r"\{\s*[\"}]|\[\s*[\[{\"\]]")
_MESSAGE = re.compile(rf'"(?:{"|".join(MESSAGE_KEYS)})"\s*:\s*"')
_HELD_OUT_PREFIX = "val/"
_TRAINING_END_KEY = "train_runtime"
"""Key of the last line that transformers prints in a training."""
_STEP_KEY_SET = frozenset(STEP_KEYS)

Kind = frozenset[str]


def can_read(path: Path, head: bytes) -> bool:
    """Whether the text has rows of one kind at different steps, in its first `MAX_PROBED_BYTES`."""
    if path.is_dir() or not is_text(head):
        return False
    try:
        size = path.stat().st_size
    except OSError:
        return False
    return _has_rows(path, head, min(size, MAX_PROBED_BYTES))


# The files of a folder are looked at again and again while it is served.
@lru_cache(maxsize=1024)
def _has_rows(path: Path, head: bytes, size: int) -> bool:  # noqa: ARG001 - part of the cache key
    parser, reader, steps = ConsoleParser(), LogReader(iter), dict[Kind, set[Any]]()
    probed_bytes = 0
    try:
        for line in read_lines(path, reader, splits_returns=True):
            probed_bytes += len(line or b"")
            for row, _ in parser.add(line or b"", reader.position):
                kind = frozenset(row)
                steps.setdefault(kind, set()).add(row.get("step", len(steps.get(kind, ()))))
                if len(steps[kind]) >= MIN_ROWS:
                    return True
            if probed_bytes > MAX_PROBED_BYTES:
                break
    except (OSError, ValueError):
        return False
    last = [(frozenset(row), row.get("step")) for row, _ in parser.flush()]
    return any(step not in steps.get(kind, {step}) for kind, step in last)


def may_become_log(path: Path, head: bytes) -> bool:
    """Whether a file that grows may hold rows later: it is a text, and of no other format."""
    return (
        uncompressed_name(path).suffix.lower() in LOG_SUFFIXES
        and (b"\n" in head or b"\r" in head)
        and is_text(head)
    )


def is_text(head: bytes) -> bool:
    """Whether it is a text that is not empty, JSON, or a table whose header names a step."""
    if b"\0" in head:
        return False
    start = head.decode("utf-8-sig", "replace").lstrip()
    if not start or (_JSON_START.match(start) and not _MESSAGE.search(start.partition("\n")[0])):
        return False
    return header_names(start.partition("\n")[0]) is None


def read(path: Path) -> LogReader:
    """Records of the file. Raises OSError, while iterating, if it cannot be opened."""
    return file_reader(path, log_stem(path), lambda reader: _follow_rows(path, reader))


def _follow_rows(path: Path, reader: LogReader) -> Iterator[Row | None]:
    """The rows of the file; that of a bar when the bar moves on, or is not written to any more.

    A row has the position of the line that begins it, so that it is the same in each reading.
    """
    parser = ConsoleParser()
    own = LogReader(iter, is_live=reader.is_live, clock=reader.clock)
    last_growth_at = reader.clock()
    for line in read_lines(path, own, splits_returns=True):
        reader.line_number, reader.line = own.line_number, own.line
        if line is None:
            is_idle = reader.clock() - last_growth_at >= MAX_ROW_GAP_SECONDS
            for row, position in parser.flush() if is_idle else ():
                reader.position = max(reader.position, position)
                yield row
            reader.pending_count = max(0, parser.pending_position - reader.position)
            yield None
            continue
        last_growth_at = reader.clock()
        for row, position in parser.add(line, own.position):
            reader.position = max(reader.position, position)
            yield row
        if parser.problem:
            reader.note_unread(line, parser.problem, is_skipped=parser.is_damaged)
    reader.skipped += own.skipped
    reader.unread_counts.update(own.unread_counts)
    reader.unread_lines += own.unread_lines
    reader.notice = own.notice
    for row, position in parser.flush():
        reader.position = max(reader.position, position)
        yield row


@dataclass
class _Held:
    """A row that is not returned yet, with the position where its first line ends."""

    key: Any
    row: dict[str, Any]
    position: int


@dataclass
class _EpochRows:
    """The rows of one kind that name only their epoch; `in_epoch` counts those of the last one."""

    epoch: float
    in_epoch: int = 0
    total: int = 0
    are_steps: bool = False


@dataclass
class _WrittenDicts:
    """The step of the last dict of a kind; `count` are those since the bar moved to `bar`."""

    bar: int
    step: int
    count: int = 0
    interval: int = 1


@dataclass
class ConsoleParser:
    """Makes rows of the lines of one log, in order, in bounded memory.

    `problem` is why the last line gave no row; `is_damaged` whether it should have given one.
    """

    problem: str = ""
    is_damaged: bool = False
    ranks: dict[Kind, int] = field(default_factory=dict)
    epoch: float | None = None
    last_step: int | None = None
    last_total: float = inf
    is_evaluating: bool = False
    has_batches: bool = False
    epoch_rows: dict[Kind, _EpochRows] = field(default_factory=dict)
    leading: dict[Kind, int] = field(default_factory=dict)
    first_epoch: float | None = None
    bar: tuple[int, int] | None = None
    is_bar_used: bool = True
    is_between_trainings: bool = False
    """Whether a training has ended, and no dict was written below the bar of another one."""
    dict_steps: dict[Kind, _WrittenDicts] = field(default_factory=dict)
    restarts: int = 0
    last_counter: tuple[int, int] = (0, 0)
    batches: int | None = None
    kinds: dict[Kind, int] = field(default_factory=dict)
    held: _Held | None = None
    first_rows: dict[Kind, Row] = field(default_factory=dict)
    returned_step: Any = None
    last_kind: Kind = frozenset()
    returned_bar: Any = None
    columns: ConsoleTable = field(default_factory=ConsoleTable)
    table: dict[str, str] = field(default_factory=dict)
    table_group: str = ""

    @property
    def pending_position(self) -> int:
        """The position of the row that is held back; 0 if there is none."""
        return self.held.position if self.held else 0

    def add(self, line: bytes, position: int) -> list[tuple[Row, int]]:
        """The rows that are complete with this line, which ends at `position`."""
        self.problem, self.is_damaged = "", False
        text = line.decode("utf-8", "replace")
        parsed = parse_console_line(text)
        if parsed.cell != ("", ""):
            pairs = self.columns.to_pairs(parsed.text)
            parsed = parsed if pairs is None else parse_console_line(pairs)
        if parsed.cell is not None:
            return self._add_cell(*parsed.cell, position)
        rows = self._close_table(position) if self.table else []
        if parsed.problem:
            self.problem, self.is_damaged = parsed.problem, True
            return rows
        if (rank := self._rank_of_kind(parsed)) != parsed.rank:
            self.problem = f"it is of rank {parsed.rank}; the lines of rank {rank} are read"
            return rows
        if parsed.before is not None:
            self._note_position(parsed.before)
        row = self._to_row(parsed)
        if _TRAINING_END_KEY in parsed.values:
            # The next training may have fewer steps, and other tasks have bars before it begins.
            self.is_between_trainings, self.is_bar_used = True, True
            self.dict_steps.clear()
        if row is None:
            return rows
        if parsed.bar is None:
            rows += self.flush()
            return rows + self._accept(row, position, parsed)
        return rows + self._add_bar(row, position, parsed)

    def flush(self) -> list[tuple[Row, int]]:
        """The row that is held back, if any."""
        held, self.held = self.held, None
        if held is None:
            return []
        self.returned_bar = held.key
        return [(held.row, held.position)]

    def _rank_of_kind(self, line: ConsoleLine) -> int | None:
        """The first rank that wrote a line with these keys; only its lines are read."""
        if line.rank is None:
            return None
        kind = frozenset(line.values)
        if kind in self.ranks or len(self.ranks) < MAX_KINDS:
            return self.ranks.setdefault(kind, line.rank)
        return line.rank

    def _add_bar(
        self, row: dict[str, Any], position: int, line: ConsoleLine
    ) -> list[tuple[Row, int]]:
        """Hold the state of a bar back until the bar moves on."""
        key = (line.bar, line.counter, row.get("step"))
        if key == self.returned_bar:
            return []
        if self.held is not None and self.held.key == key:
            self.held.row.update(row)
            return []
        rows = self.flush()
        for accepted, at in self._accept(row, position, line):
            if accepted is row:
                self.held = _Held(key, row, at)
            else:
                rows.append((accepted, at))
        return rows

    def _accept(
        self, row: dict[str, Any], position: int, line: ConsoleLine
    ) -> list[tuple[Row, int]]:
        """The row, if its kind counts: dicts at once, others when their keys recur.

        The first row of a kind is returned with the second one, unless a later step was returned.
        Rows without a step have to follow each other.
        """
        kind, step = frozenset(row), row.get("step")
        count, last_kind = self.kinds.get(kind, 0), self.last_kind
        self.last_kind = kind
        first = self.first_rows.pop(kind, None)
        if count or len(self.kinds) < MAX_KINDS:
            self.kinds[kind] = count + 1
            if not count and not line.is_dict:
                self.first_rows[kind] = row
        if not line.is_dict and (count == 0 or (step is None and kind != last_kind)):
            self.problem = "no other line has the same keys"
            return []
        if not line.held_out and (line.step is not None or line.counter is not None):
            self.has_batches = True
        rows: list[tuple[Row, int]] = []
        if count == 1 and first is not None and self._is_next(first.get("step"), step):
            rows.append((first, position))
        self.returned_step = step
        return [*rows, (row, position)]

    def _is_next(self, first: Any, step: Any) -> bool:
        """Whether a row that was held back still comes before the next one of its kind."""
        steps = [parse_number(each) for each in (self.returned_step, first, step)]
        last, held, following = (-inf if each is None else each for each in steps)
        return last <= held < following

    def _to_row(self, line: ConsoleLine) -> dict[str, Any] | None:
        """The metrics of the line with their step; None if it has none, or none that is known."""
        keys = [*numeric_keys(line.values)]
        if not keys:
            self._note_position(line)
            self.problem = "" if line.bar is not None else "it has no number with a key"
            return None
        if line.is_unfinished:
            self.problem = "it is the state of a bar that is not complete"
            return None
        row = dict(line.values)
        self._note_evaluation(line)
        is_held_out = line.held_out and not line.is_dict
        step = self._step(line)
        if step is None and line.leading and any(value % 1 for value in row.values()):
            step = self._leading_step(line)
            row.pop(line.leading)
        elif step is not None and not is_held_out:
            self.last_step = step
        if is_held_out:
            row = {f"{_HELD_OUT_PREFIX}{key}": value for key, value in row.items()}
        if step is None and not line.is_dict and not any(map(_names_loss, row)):
            self.problem = "neither it nor a line before it has a step"
            return None
        if step is not None and "step" not in row:
            row = {"step": step, **row}
        is_own_step = line.step is not None or (line.counter is not None and not is_held_out)
        is_own_step |= not self.has_batches
        if line.epoch is not None and is_own_step and not line.is_dict and isfinite(line.epoch):
            row["epoch"] = line.epoch
        return row

    def _note_evaluation(self, line: ConsoleLine) -> None:
        """Lines without a position belong to the evaluation that the position above them names."""
        if line.step is not None or line.epoch is not None or line.counter is not None:
            self.is_evaluating = line.held_out
        else:
            line.held_out |= self.is_evaluating

    def _note_position(self, line: ConsoleLine) -> None:
        """Remember where a line without metrics is: the metrics may follow in lines of their own.

        Of the bars without a description, the one with the most steps is that of the training.
        """
        if line.bar is not None:
            is_largest = line.counter and line.counter[1] >= (self.bar or (0, 0))[1]
            if not line.bar and line.counter and (is_largest or self.is_between_trainings):
                self.is_bar_used |= self.bar is not None and line.counter[1] > self.bar[1]
                self.bar = line.counter
            return
        self._note_evaluation(line)
        if line.epoch is not None:
            self.epoch = line.epoch
        position = line.epoch if line.step is None and not self.has_batches else line.step
        if line.total is not None:
            # A number of steps in a line of its own counts them if it grows.
            position = line.total if line.total > self.last_total else None
            self.last_total = line.total
        if position is not None and isfinite(position):
            self.last_step = int(position)

    def _step(self, line: ConsoleLine) -> int | None:
        """The step of the line, which may be the one of a line before it; None if none is known.

        An epoch is a step only in a log that counts nothing finer.
        """
        if line.step is not None:
            return int(line.step) if isfinite(line.step) else None
        if line.is_dict and line.counter is None and line.epoch is None:
            return self._bar_step(frozenset(line.values))
        # A counter of evaluated batches is no step of the training.
        is_evaluation = line.held_out and self.last_step is not None
        if line.counter is not None and not is_evaluation and not self._is_other_counter(line):
            return self._count_batches(line, *line.counter)
        if is_evaluation or line.epoch is None or line.counter or not isfinite(line.epoch):
            return self.last_step
        return self._epoch_step(frozenset(line.values), line.epoch)

    def _epoch_step(self, kind: Kind, epoch: float) -> int:
        """The step of a row that names only its epoch.

        It is the number of the row if an epoch has several of that kind, and nothing else counts.
        """
        rows = self.epoch_rows.get(kind)
        if rows is None:
            rows = _EpochRows(epoch)
            if len(self.epoch_rows) < MAX_KINDS:
                self.epoch_rows[kind] = rows
        rows.in_epoch = rows.in_epoch + 1 if epoch == rows.epoch else 1
        rows.epoch, rows.total = epoch, rows.total + 1
        if rows.in_epoch > MIN_ROWS and not self.has_batches:
            rows.are_steps = self.has_batches = True
        if rows.are_steps:
            return rows.total
        return self.last_step if self.has_batches and self.last_step is not None else int(epoch)

    def _is_other_counter(self, line: ConsoleLine) -> bool:
        """Whether it does not count the batches of an epoch, where other lines do so."""
        if line.counter is None or line.bar is not None:
            return False
        if line.epoch is not None:
            self.batches = line.counter[1]
        return line.epoch is None and self.batches not in (None, line.counter[1])

    def _count_batches(self, line: ConsoleLine, batch: int, batches: int) -> int:
        epoch = self.epoch if line.epoch is None else line.epoch
        if epoch is None:
            last_batch, last_batches = self.last_counter
            self.restarts += batch < last_batch and batches == last_batches
        else:
            if self.first_epoch is None:
                self.first_epoch = epoch
            self.restarts = int(epoch - self.first_epoch)
        self.last_counter = batch, batches
        return self.restarts * batches + batch

    def _leading_step(self, line: ConsoleLine) -> int | None:
        """The number that the line begins with, if it grows from line to line of that kind."""
        kind, step = frozenset(line.values), int(line.values[line.leading])
        last = self.leading.get(kind)
        if last is not None or len(self.leading) < MAX_KINDS:
            self.leading[kind] = step
        return step if last is None or last < step else None

    def _bar_step(self, kind: Kind) -> int | None:
        """The counter of the bar above a dict with that kind of keys; None if it is no step.

        A bar is written at once, and dicts may be buffered: they then follow the complete bar.
        """
        if self.bar is None or not self.is_bar_used:
            return None
        bar, written = self.bar[0], self.dict_steps.get(kind)
        if written is None:
            if not self.dict_steps and self.bar[0] == self.bar[1]:
                self.is_bar_used = self.is_between_trainings
                return None
            self.is_between_trainings = False
            written = _WrittenDicts(bar, bar)
            if len(self.dict_steps) < MAX_KINDS:
                self.dict_steps[kind] = written
        elif bar > written.step:
            written.interval = bar - written.bar if written.count == 1 else 1
            written.bar, written.step, written.count = bar, bar, 0
        elif bar < written.bar:
            # The bar of another training, in the same output.
            written = self.dict_steps[kind] = _WrittenDicts(bar, bar)
        else:
            # Several dicts were written at once.
            written.step += written.interval
        written.count += 1
        return written.step

    def _add_cell(self, key: str, value: str, position: int) -> list[tuple[Row, int]]:
        if not key:
            return self._close_table(position) if self.table else []
        if key.endswith("/") and not value:
            self.table_group = key
        elif parse_number(value.replace(",", "")) is not None and len(self.table) < MAX_TABLE_ROWS:
            name = key if "/" in key else f"{self.table_group}{key}"
            self.table[name] = value.replace(",", "")
        return []

    def _close_table(self, position: int) -> list[tuple[Row, int]]:
        table, self.table, self.table_group = self.table, {}, ""
        row: dict[str, Any] = dict(table)
        if not _STEP_KEY_SET.intersection(row):
            steps = {key.lower().split("/")[-1]: key for key in reversed(row)}
            step = next((steps[name] for name in _TABLE_STEPS if name in steps), None)
            if step is None:
                self.problem = "the table has no step"
                return []
            row = {"step": row[step], **row}
        return [*self.flush(), *self._accept(row, position, ConsoleLine(is_dict=True))]


def _names_loss(key: str) -> bool:
    return key.lower().endswith("loss")


_TABLE_STEPS = (
    "total_timesteps",
    "timesteps",
    "steps",
    "totalenvinteracts",
    "iterations",
    "learning iteration",
    "epoch",
    "episodes",
    "episode",
)
