"""Telling: rows of one file told as records, a START before them, and again when it begins anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from sentinel.record import WHOLE_RUN, Event, Record
from sentinel.sources.lines import BegunAnewError
from sentinel.sources.reading import Reading
from sentinel.sources.rows import LIMIT_KEYS, Rows

Row = Mapping[str, Any]
Found = Callable[[Reading], Iterator[Row | None]]


def telling(make: Callable[[Row], Rows], found: Found) -> Reading:
    """A reading of what `found` gives; `make` gives the `Rows` of an attempt, from its first row.

    A row that is empty is counted as skipped.
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
    make: Callable[[Row], Rows], found: Iterator[Row | None], reading: Reading
) -> Iterator[Record | None]:
    rows: Rows | None = None
    begun = False
    for row in found:
        if row is None:
            yield None
            continue
        rows = make(row) if rows is None and row else rows
        record = rows.record(row) if rows else None
        if rows is None or record is None:
            reading.skipped += 1
            continue
        if not begun and record.event is not Event.START:
            yield _start(record, rows.about.facts)
        begun = True
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
