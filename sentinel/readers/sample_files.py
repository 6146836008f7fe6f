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

from sentinel.model.counters import Tally
from sentinel.model.record import Event, Record
from sentinel.readers.sample_rows import Sample, SampleFileError, samples

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""How often the folder is looked at; a file that did not change in between is whole."""
MOST_FILES = 10_000
"""Files of a folder that are looked at: those of the highest steps."""
PER_FILE = 32
"""Texts taken of one file."""
_NAME = re.compile(r"(?:completions_)?(\d{1,18})\.(?:parquet|jsonl)")
_INSIDE = "completions"
"""Where TRL writes below its output folder."""


@dataclass
class SampleFiles:
    """Watches one folder, and the folder `completions` in it.

    `known` are the files read by an earlier agent: path to mark. Without any, the files that are
    there already are another run's, and left alone. `clock` gives seconds since the epoch.
    """

    run: str
    folder: Path
    tally: Tally
    known: Mapping[str, str] = field(default_factory=dict)
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._read = dict(self.known)
        self._fresh: dict[str, str] = {}
        self._before: dict[str, str] = {}
        self._waiting: list[tuple[int, str, str]] = []
        self._looked = -LOOK_SECONDS
        self._first = not self.known

    def poll(self, attempt: int) -> list[Record]:
        """Texts of the next file that is whole, if any; may wait for its disk, never raises."""
        now = self.clock()
        if now - self._looked >= LOOK_SECONDS or now < self._looked:
            self._looked = now
            self._look()
        if not self._waiting:
            return []
        step, path, mark = self._waiting.pop(0)
        # Whatever comes of it: it is not tried again as it is.
        self._remember(path, mark)
        try:
            found = list(samples(Path(path), PER_FILE))
        except SampleFileError as error:
            self._complain(str(error))
        except Exception as error:
            # Its words might be those of the file.
            self._complain(f"{path} leads to {type(error).__name__}")
        else:
            return [self._record(sample, step, attempt, now) for sample in found]
        return []

    def taken(self) -> dict[str, str]:
        """Marks of the files done with since the last call, to be stored with their texts."""
        taken, self._fresh = self._fresh, {}
        return taken

    def _look(self) -> None:
        there = {path: (step, mark) for step, path, mark in self._files()}
        if self._first:
            self._first = False
            for path, (_, mark) in there.items():
                self._remember(path, mark)
        self._waiting = sorted(
            (step, path, mark)
            for path, (step, mark) in there.items()
            if self._read.get(path) != mark and self._before.get(path) == mark
        )
        self._before = {path: mark for path, (_, mark) in there.items()}

    def _files(self) -> Iterator[tuple[int, str, str]]:
        for folder in (self.folder, self.folder / _INSIDE):
            try:
                with os.scandir(folder) as entries:
                    newest = nlargest(MOST_FILES, _numbered(entries), key=itemgetter(0))
            except OSError:
                # Made by the trainer, later; or its disk is away for a while.
                continue
            for step, entry in newest:
                if mark := _mark(entry):
                    yield step, entry.path, mark

    def _remember(self, path: str, mark: str) -> None:
        self._read[path] = self._fresh[path] = mark

    def _complain(self, trouble: str) -> None:
        reason = "samples_unreadable"
        if not self.tally.counts["sentinel_dropped_records_total", reason]:
            # The first only: there may be one for each step.
            log.warning("Samples cannot be read: %s", trouble)
        self.tally.add("sentinel_dropped_records_total", reason)

    def _record(self, sample: Sample, step: int, attempt: int, now: float) -> Record:
        values, facts = sample.told
        # Trainers write it in their first rank, for all of them.
        return Record(
            run=self.run,
            rank=0,
            step=step if sample.step is None else sample.step,
            time=now,
            event=Event.SAMPLE,
            values=values,
            facts=facts,
            attempt=attempt,
        )


def _numbered(entries: Iterable[os.DirEntry[str]]) -> Iterator[tuple[int, os.DirEntry[str]]]:
    for entry in entries:
        if match := _NAME.fullmatch(entry.name):
            yield int(match[1]), entry


def _mark(entry: os.DirEntry[str]) -> str:
    """What changes when the file does; empty for what is no file, or gone, or empty."""
    try:
        if not entry.is_file():
            return ""
        found = entry.stat()
    except OSError:
        return ""
    return f"{found.st_mtime_ns}:{found.st_size}" if found.st_size else ""
