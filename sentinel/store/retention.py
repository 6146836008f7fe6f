"""Bounds the history of a run: it is thinned by age, and the file is capped.

The newest records are kept in full. Older ones become blocks of mean, minimum, maximum and last,
which are merged to coarser blocks as they age. Records around incidents, and those of starts,
checkpoints, evaluations and ends, stay as they are. Above the cap, fewer records are kept in full,
and then the oldest are deleted, whatever they are.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from sentinel.model.record import Event
from sentinel.store.database import transaction
from sentinel.store.journal import MAX_JOURNAL_BYTES
from sentinel.store.series.blocks import Block, block_of_record, merge_blocks, pack_block
from sentinel.store.storage_monitor import reading_storage

if TYPE_CHECKING:
    from sentinel.store.history import History

log = logging.getLogger(__name__)

SLICE_SECONDS = 0.05
"""Longest time for which one slice holds the agent's loop."""
IDLE_SECONDS = 1.0
"""Interval of the look for new work, once there is none."""
ROWS_PER_WINDOW = 32
"""Rows that are thinned together; each event, attempt and training in them becomes one block."""
BLOCKS_PER_MERGE = 8
"""Blocks that become one of the next level."""
MAX_BLOCKS_PER_LEVEL = 20_000
"""Blocks of one level above which the oldest are merged."""
DETAIL_STEPS = 100
"""Steps before and after the onset, the opening and the resolution of an incident that are kept."""
MIN_FULL_STEPS = 5000
"""Records that are kept in full above the cap too: baselines of detectors are shorter."""
DELETED_AT_ONCE = 64
MAX_FREE_PAGES = MAX_JOURNAL_BYTES // 4096
"""Free pages in the file below which it is not made smaller: the journal needs pages again."""
MAX_FREE_SHARE = 0.2
PAGES_PER_VACUUM = 128

THINNED_EVENTS = (Event.STEP, Event.HEARTBEAT)

_INCIDENT_STEPS_SQL = """
select onset_step, opened_step, resolved_step,
    iif(json_valid(body), json_extract(body, '$.onset.earliest'), null) from incident
"""
# Earlier versions wrote NaN and infinity, which SQLite takes for no JSON.
_NEXT_WINDOW_SQL = "select min(id) from step where id >= ?"
_TRAININGS_SQL = """
select id from step where event <> 'step' and event = 'new_training' order by id
"""
_INSERT_BLOCK_SQL = """
insert into block(level, attempt, event, count, first_id, first_step, step, first_time, time,
    layout, vals) values(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_OLDEST_BLOCKS_SQL = "select id from block where level = ? order by id limit ?"
_OLDEST_KEPT_SQL = """
select id from step where id < ? and event not in ('start', 'stop') and id not in (
    select max(id) from step where event <> 'step' group by event)
order by id limit ?
"""


@dataclass
class HistoryRetention:
    """Thins and caps the history in slices; see `run_slice`.

    `full_steps` records are kept in full; the file may take `max_bytes`. `monotonic` is a clock in
    seconds.
    """

    history: History
    full_steps: int
    max_bytes: float
    monotonic: Callable[[], float] = time.monotonic
    max_blocks_per_level: int = MAX_BLOCKS_PER_LEVEL
    min_full_steps: int = MIN_FULL_STEPS
    _idle_until: float = 0.0
    _next_id: int = -1
    _blocks_by_level: dict[int, int] = field(default_factory=dict)
    _is_cap_reported: bool = False

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection of the history, which no other thread uses."""
        return self.history.connection

    def run_slice(self, max_seconds: float = SLICE_SECONDS) -> bool:
        """Work for at most `max_seconds`; whether there is more to do.

        Raises sqlite3.Error like any other write; what was begun is undone then.
        """
        now = self.monotonic()
        if now < self._idle_until:
            return False
        if self._next_id < 0:
            self._load()
        while (work := self._next_work()) is not None:
            try:
                with transaction(self.connection, mode="immediate"):
                    work()
            except sqlite3.Error:
                self._next_id = -1  # read again what is stored
                raise
            if self.monotonic() - now >= max_seconds:
                return True
        self._idle_until = self.monotonic() + IDLE_SECONDS
        return False

    def finish(self, max_seconds: float) -> None:
        """At the end of a run, thin what is due and return free pages to the disk.

        Stops after about `max_seconds`; the next agent of the run continues.
        """
        deadline = self.monotonic() + max_seconds
        self._idle_until = 0.0
        while self.run_slice() and self.monotonic() < deadline:
            pass
        free = self._free_pages()
        while free and self.monotonic() < deadline:
            self._vacuum()
            before, free = free, self._free_pages()
            if free == before:
                return  # a file of an earlier version that was not rewritten

    def _load(self) -> None:
        row = self.connection.execute("select next_id from thinning").fetchone()
        query = "select level, count(*) from block group by level"
        counts = self.connection.execute(query).fetchall()
        with reading_storage():
            self._next_id = 0 if row is None else int(row[0])
            self._blocks_by_level = {int(level): count for level, count in counts}

    def _next_work(self) -> Callable[[], None] | None:
        """The next short piece of work; None if there is none."""
        is_over = self._used_bytes() > self.max_bytes
        full_steps = min(self.full_steps, self.min_full_steps) if is_over else self.full_steps
        if self._newest_id() - full_steps >= self._next_id + ROWS_PER_WINDOW:
            return self._thin_window
        for level, count in self._blocks_by_level.items():
            if count > self.max_blocks_per_level:
                return lambda: self._merge_oldest(level)
        if is_over and (oldest := self._oldest()) is not None:
            return oldest
        if is_over and not self._is_cap_reported:
            self._is_cap_reported = True
            log.warning("The database is above its cap, and nothing old is left to delete")
        free = self._free_pages()
        if free > MAX_FREE_PAGES and free > MAX_FREE_SHARE * self._pragma("page_count"):
            return self._vacuum
        return None

    def _newest_id(self) -> int:
        (newest,) = self.connection.execute("select max(id) from step").fetchone()
        return newest or 0

    def _thin_window(self) -> None:
        """Replace the oldest rows that are in full by one block per event, attempt and training."""
        (first,) = self.connection.execute(_NEXT_WINDOW_SQL, [self._next_id]).fetchone()
        end = first + ROWS_PER_WINDOW
        rows = [*self.history.rows(first, end)]
        kept = self._detail_steps()
        thinned = [
            (number, record)
            for number, record in rows
            if record.event in THINNED_EVENTS
            and not any(low <= record.step <= high for low, high in kept)
        ]
        layouts = self._layouts("step", [number for number, _ in thinned])
        blocks = [block_of_record(number, record) for number, record in thinned]
        self._insert_blocks(1, _merge_alike(blocks, self._training_ids()))
        self._delete("step", [number for number, _ in thinned])
        self.history.layouts.delete_unused(layouts)
        self.connection.execute("insert or replace into thinning values(1, ?)", [end])
        self._next_id = end

    def _detail_steps(self) -> list[tuple[int, int]]:
        """Ranges of steps, both ends included, that are kept in full."""
        ranges = []
        for row in self.connection.execute(_INCIDENT_STEPS_SQL):
            ranges += [(s - DETAIL_STEPS, s + DETAIL_STEPS) for s in row if s is not None]
        return ranges

    def _merge_oldest(self, level: int) -> None:
        query = (level, BLOCKS_PER_MERGE)
        numbers = [number for (number,) in self.connection.execute(_OLDEST_BLOCKS_SQL, query)]
        blocks = [*self.history.blocks(numbers)]
        layouts = self._layouts("block", numbers)
        self._insert_blocks(level + 1, _merge_alike(blocks, self._training_ids()))
        self._delete_blocks(level, numbers)
        self.history.layouts.delete_unused(layouts)

    def _oldest(self) -> Callable[[], None] | None:
        """What deletes the oldest part of the history, or else texts of the model and media."""
        block = self.connection.execute("select min(first_id) from block").fetchone()[0]
        rows = self.connection.execute(
            _OLDEST_KEPT_SQL, (self._next_id, DELETED_AT_ONCE)
        ).fetchall()
        if rows and (block is None or rows[0][0] < block):
            return lambda: self._delete_rows([number for (number,) in rows])
        if block is not None:
            level = max(each for each, count in self._blocks_by_level.items() if count)
            return lambda: self._delete_oldest_blocks(level)
        for table in ("sample", "media"):
            query = f"select 1 from {table} limit 1"  # noqa: S608
            if self.connection.execute(query).fetchone() is not None:
                return partial(self._delete_oldest_of, table)
        return None

    def _training_ids(self) -> list[int]:
        return [number for (number,) in self.connection.execute(_TRAININGS_SQL)]

    def _delete_rows(self, numbers: Sequence[int]) -> None:
        layouts = self._layouts("step", numbers)
        self._delete("step", numbers)
        self.history.layouts.delete_unused(layouts)

    def _delete_oldest_blocks(self, level: int) -> None:
        query = (level, DELETED_AT_ONCE)
        numbers = [number for (number,) in self.connection.execute(_OLDEST_BLOCKS_SQL, query)]
        layouts = self._layouts("block", numbers)
        self._delete_blocks(level, numbers)
        self.history.layouts.delete_unused(layouts)

    def _delete_oldest_of(self, table: str) -> None:
        self.connection.execute(
            f"delete from {table} where id in (select id from {table} order by id limit ?)",  # noqa: S608
            [DELETED_AT_ONCE],
        )

    def _insert_blocks(self, level: int, blocks: Sequence[Block]) -> None:
        for block in blocks:
            layout, blob = pack_block(block)
            header = (block.attempt, block.event.value, block.count, block.first_id)
            span = (block.first_step, block.step, block.first_time, block.time)
            number = self.history.layouts.add(layout)
            self.connection.execute(_INSERT_BLOCK_SQL, (level, *header, *span, number, blob))
        self._blocks_by_level[level] = self._blocks_by_level.get(level, 0) + len(blocks)

    def _delete_blocks(self, level: int, numbers: Sequence[int]) -> None:
        self._delete("block", numbers)
        self._blocks_by_level[level] -= len(numbers)

    def _layouts(self, table: str, numbers: Sequence[int]) -> list[int]:
        query = f"select distinct layout from {table} where id in ({_marks(numbers)})"  # noqa: S608
        return [layout for (layout,) in self.connection.execute(query, numbers)]

    def _delete(self, table: str, numbers: Sequence[int]) -> None:
        query = f"delete from {table} where id in ({_marks(numbers)})"  # noqa: S608
        self.connection.execute(query, numbers)

    def _vacuum(self) -> None:
        self.connection.execute(f"pragma incremental_vacuum({PAGES_PER_VACUUM})").fetchall()

    def _used_bytes(self) -> int:
        return (self._pragma("page_count") - self._free_pages()) * self._pragma("page_size")

    def _free_pages(self) -> int:
        return self._pragma("freelist_count")

    def _pragma(self, name: str) -> int:
        (value,) = self.connection.execute(f"pragma {name}").fetchone()
        return int(value)


def _merge_alike(blocks: Iterable[Block], trainings: Sequence[int]) -> list[Block]:
    """The blocks of each event, attempt and training merged into one, oldest first.

    `trainings` are the ids of the rows that begin another training.
    """

    def kind(block: Block) -> tuple[str, int, int]:
        return block.event.value, block.attempt, bisect(trainings, block.first_id)

    groups = groupby(sorted(blocks, key=kind), key=kind)
    merged = [merge_blocks([*alike]) for _, alike in groups]
    return sorted(merged, key=lambda block: block.first_id)


def _marks(numbers: Sequence[int]) -> str:
    return ",".join("?" * len(numbers))
