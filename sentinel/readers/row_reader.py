"""Telling: rows of one file told as records, a START before them, and again when it begins anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.readers.lines import LogRestartedError
from sentinel.readers.log_config import LoggedConfig, config_record, text_metadata
from sentinel.readers.log_reader import LogReader
from sentinel.readers.rows import MAX_STEPS_KEYS, RowConverter
from sentinel.signals.framework_config import ConfigMetadata

Row = Mapping[str, Any]
RowSource = Callable[[LogReader], Iterator[Row | LoggedConfig | None]]


def row_reader(make_converter: Callable[[Row], RowConverter], iterate_rows: RowSource) -> LogReader:
    """A reading of what `found` gives; `make` gives the `Rows` of an attempt, from its first row.

    A row that is empty is counted as skipped. What is stated before the first row decides what the
    names of rows mean, and is told behind the START.
    """

    def records(reading: LogReader) -> Iterator[Record | None]:
        attempt = 0
        while True:
            try:
                for record in _convert_rows(make_converter, iterate_rows(reading), reading):
                    yield replace(record, attempt=attempt) if record and attempt else record
            except LogRestartedError:
                attempt, reading.position = attempt + 1, 0
                continue
            return

    return LogReader(records)


def _convert_rows(
    make_converter: Callable[[Row], RowConverter],
    items: Iterator[Row | LoggedConfig | None],
    reading: LogReader,
) -> Iterator[Record | None]:
    rows: RowConverter | None = None
    begun = False
    known, waiting = ConfigMetadata(), ConfigMetadata()
    for row in items:
        if row is None:
            yield None
            continue
        if isinstance(row, LoggedConfig):
            waiting |= {n: said for n, said in row.metadata.items() if known.get(n) != said}
            known |= row.metadata
            continue
        rows = make_converter(row) if rows is None and row else rows
        if rows is not None and waiting:
            rows.metadata.update_metadata(text_metadata(waiting))
        record = rows.to_record(row) if rows else None
        if rows is None or record is None:
            reading.skipped += 1
            continue
        if not begun and record.event is not Event.START:
            yield _start_record(record, rows.metadata.metadata)
        begun = True
        if waiting and record.event is not Event.START:
            yield config_record(waiting, record)
            waiting = ConfigMetadata()
        yield record


def _start_record(record: Record, metadata: Mapping[str, str]) -> Record:
    limits = [record.values[key] for key in MAX_STEPS_KEYS if key in record.values]
    return Record(
        run=record.run,
        rank=WHOLE_RUN,
        step=record.step,
        time=record.time,
        event=Event.START,
        values={"max_steps": limits[0]} if limits else {},
        attributes=metadata,
    )
