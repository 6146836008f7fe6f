"""Telling: rows of one file told as records, a START before them, and again when it begins anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.readers.lines import BegunAnewError
from sentinel.readers.log_config import Stated, stating, texts
from sentinel.readers.log_reader import Reading
from sentinel.readers.rows import LIMIT_KEYS, Rows
from sentinel.signals.framework_config import Facts

Row = Mapping[str, Any]
Found = Callable[[Reading], Iterator[Row | Stated | None]]


def telling(make: Callable[[Row], Rows], found: Found) -> Reading:
    """A reading of what `found` gives; `make` gives the `Rows` of an attempt, from its first row.

    A row that is empty is counted as skipped. What is stated before the first row decides what the
    names of rows mean, and is told behind the START.
    """

    def records(reading: Reading) -> Iterator[Record | None]:
        attempt = 0
        while True:
            try:
                for record in _records(make, found(reading), reading):
                    yield replace(record, attempt=attempt) if record and attempt else record
            except BegunAnewError:
                attempt, reading.mark = attempt + 1, 0
                continue
            return

    return Reading(records)


def _records(
    make: Callable[[Row], Rows], found: Iterator[Row | Stated | None], reading: Reading
) -> Iterator[Record | None]:
    rows: Rows | None = None
    begun = False
    known, waiting = Facts(), Facts()
    for row in found:
        if row is None:
            yield None
            continue
        if isinstance(row, Stated):
            waiting |= {n: said for n, said in row.facts.items() if known.get(n) != said}
            known |= row.facts
            continue
        rows = make(row) if rows is None and row else rows
        if rows is not None and waiting:
            rows.about.learn(texts(waiting))
        record = rows.record(row) if rows else None
        if rows is None or record is None:
            reading.skipped += 1
            continue
        if not begun and record.event is not Event.START:
            yield _start(record, rows.about.facts)
        begun = True
        if waiting and record.event is not Event.START:
            yield stating(waiting, record)
            waiting = Facts()
        yield record


def _start(record: Record, about: Mapping[str, str]) -> Record:
    limits = [record.values[key] for key in LIMIT_KEYS if key in record.values]
    return Record(
        run=record.run,
        rank=WHOLE_RUN,
        step=record.step,
        time=record.time,
        event=Event.START,
        values={"max_steps": limits[0]} if limits else {},
        facts=about,
    )
