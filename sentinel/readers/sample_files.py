"""Samples: texts that a trainer writes to files by itself, one file a step, as they appear.

A file is read once it has stopped growing, and again if it is written anew, as after a resume. Of
each a few rows are taken.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from operator import itemgetter
from pathlib import Path

from sentinel.model.counters import Counters
from sentinel.model.record import Event, Record
from sentinel.readers.sample_rows import SampleFileError, TextSample, read_samples

log = logging.getLogger(__name__)

SCAN_INTERVAL_SECONDS = 5.0
"""How often the folder is looked at; a file that did not change in between is whole."""
MAX_FILES = 10_000
"""Files of a folder that are looked at: those of the highest steps."""
SAMPLES_PER_FILE = 32
"""Texts taken of one file."""
_SAMPLE_FILE_NAME = re.compile(r"(?:completions_)?(\d{1,18})\.(?:parquet|jsonl)")
_TRL_SUBFOLDER = "completions"
"""Where TRL writes below its output folder."""


@dataclass
class SampleFiles:
    """Watches one folder, and the folder `completions` in it.

    `known` are the files read by an earlier agent: path to mark. Without any, the files that are
    there already are another run's, and left alone. `clock` gives seconds since the epoch.
    """

    run: str
    folder: Path
    counters: Counters
    stored_fingerprints: Mapping[str, str] = field(default_factory=dict)
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._read_fingerprints = dict(self.stored_fingerprints)
        self._unstored_fingerprints: dict[str, str] = {}
        self._previous_scan: dict[str, str] = {}
        self._pending_files: list[tuple[int, str, str]] = []
        self._last_scan_at = -SCAN_INTERVAL_SECONDS
        self._is_first_scan = not self.stored_fingerprints

    def poll(self, attempt: int) -> list[Record]:
        """Texts of the next file that is whole, if any; may wait for its disk, never raises."""
        now = self.clock()
        if now - self._last_scan_at >= SCAN_INTERVAL_SECONDS or now < self._last_scan_at:
            self._last_scan_at = now
            self._scan()
        if not self._pending_files:
            return []
        step, path, mark = self._pending_files.pop(0)
        # Whatever comes of it: it is not tried again as it is.
        self._mark_as_read(path, mark)
        try:
            found = list(read_samples(Path(path), SAMPLES_PER_FILE))
        except SampleFileError as error:
            self._report_unreadable(str(error))
        except Exception as error:
            # Its words might be those of the file.
            self._report_unreadable(f"{path} leads to {type(error).__name__}")
        else:
            return [self._to_record(sample, step, attempt, now) for sample in found]
        return []

    def pop_fingerprints(self) -> dict[str, str]:
        """Marks of the files done with since the last call, to be stored with their texts."""
        taken, self._unstored_fingerprints = self._unstored_fingerprints, {}
        return taken

    def _scan(self) -> None:
        there = {path: (step, mark) for step, path, mark in self._list_files()}
        if self._is_first_scan:
            self._is_first_scan = False
            for path, (_, mark) in there.items():
                self._mark_as_read(path, mark)
        self._pending_files = sorted(
            (step, path, mark)
            for path, (step, mark) in there.items()
            if self._read_fingerprints.get(path) != mark and self._previous_scan.get(path) == mark
        )
        self._previous_scan = {path: mark for path, (_, mark) in there.items()}

    def _list_files(self) -> Iterator[tuple[int, str, str]]:
        for folder in (self.folder, self.folder / _TRL_SUBFOLDER):
            try:
                with os.scandir(folder) as entries:
                    newest = nlargest(MAX_FILES, _entries_by_step(entries), key=itemgetter(0))
            except OSError:
                # Made by the trainer, later; or its disk is away for a while.
                continue
            for step, entry in newest:
                if mark := _fingerprint(entry):
                    yield step, entry.path, mark

    def _mark_as_read(self, path: str, fingerprint: str) -> None:
        self._read_fingerprints[path] = self._unstored_fingerprints[path] = fingerprint

    def _report_unreadable(self, trouble: str) -> None:
        reason = "samples_unreadable"
        if not self.counters.values["sentinel_dropped_records_total", reason]:
            # The first only: there may be one for each step.
            log.warning("Samples cannot be read: %s", trouble)
        self.counters.add("sentinel_dropped_records_total", reason)

    def _to_record(self, sample: TextSample, step: int, attempt: int, now: float) -> Record:
        values, facts = sample.content
        # Trainers write it in their first rank, for all of them.
        return Record(
            run=self.run,
            rank=0,
            step=step if sample.step is None else sample.step,
            time=now,
            event=Event.SAMPLE,
            values=values,
            attributes=facts,
            attempt=attempt,
        )


def _entries_by_step(entries: Iterable[os.DirEntry[str]]) -> Iterator[tuple[int, os.DirEntry[str]]]:
    for entry in entries:
        if match := _SAMPLE_FILE_NAME.fullmatch(entry.name):
            yield int(match[1]), entry


def _fingerprint(entry: os.DirEntry[str]) -> str:
    """What changes when the file does; empty for what is no file, or gone, or empty."""
    try:
        if not entry.is_file():
            return ""
        found = entry.stat()
    except OSError:
        return ""
    return f"{found.st_mtime_ns}:{found.st_size}" if found.st_size else ""
