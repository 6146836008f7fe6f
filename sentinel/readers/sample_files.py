"""Reads the sample files of a trainer, which writes one per step, as they appear.

A file is read once it has stopped growing, and again if it is rewritten, as after a resume. A few
rows of each are used. SamplePoller reads in its own thread, since a file server may hang.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import nlargest
from operator import itemgetter
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event as ThreadEvent
from threading import Thread

from sentinel.model.counters import Counters
from sentinel.model.record import Event, Record
from sentinel.readers.sample_rows import SampleFileError, TextSample, read_samples

log = logging.getLogger(__name__)

SCAN_INTERVAL_SECONDS = 5.0
"""Time between scans; a file that did not change between two of them is complete."""
MAX_FILES = 10_000
"""Limit for each directory; the files of the highest steps are used."""
SAMPLES_PER_FILE = 32
"""Most rows used of one file."""
_SAMPLE_FILE_NAME = re.compile(r"(?:completions_)?(\d{1,18})\.(?:parquet|jsonl)")
_TRL_SUBFOLDER = "completions"
"""Where TRL writes below its output directory."""
MAX_FILES_AHEAD = 4
"""Results that SamplePoller reads ahead of the agent's loop."""
IDLE_SECONDS = 0.2
STOP_TIMEOUT_SECONDS = 2.0
"""How long `stop` waits for a read in progress."""


@dataclass
class SampleFiles:
    """Reads the new files of a directory and of its subdirectory `completions`.

    `stored_fingerprints` are those of the files that an earlier agent read, by path. Without any,
    the files that exist at the start belong to an earlier run and are skipped. `clock` returns
    seconds since the epoch.
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
        """Records of the next complete file, if any; may block on the disk, never raises."""
        now = self.clock()
        if now - self._last_scan_at >= SCAN_INTERVAL_SECONDS or now < self._last_scan_at:
            self._last_scan_at = now
            self._scan()
        if not self._pending_files:
            return []
        step, path, fingerprint = self._pending_files.pop(0)
        # Marked before reading: an unreadable file is not tried again unless it changes.
        self._mark_as_read(path, fingerprint)
        try:
            samples = list(read_samples(Path(path), SAMPLES_PER_FILE))
        except SampleFileError as error:
            self._report_unreadable(str(error))
        except Exception as error:
            # Only the type: the message may quote the file's texts.
            self._report_unreadable(f"{path} raises {type(error).__name__}")
        else:
            return [self.to_record(sample, step, attempt, now) for sample in samples]
        return []

    def pop_fingerprints(self) -> dict[str, str]:
        """Fingerprints of the files read since the last call, to be stored with their records."""
        fingerprints, self._unstored_fingerprints = self._unstored_fingerprints, {}
        return fingerprints

    def _scan(self) -> None:
        files = {path: (step, fingerprint) for step, path, fingerprint in self.list_files()}
        if self._is_first_scan:
            self._is_first_scan = False
            for path, (_, fingerprint) in files.items():
                self._mark_as_read(path, fingerprint)
        self._pending_files = sorted(
            (step, path, fingerprint)
            for path, (step, fingerprint) in files.items()
            if self._read_fingerprints.get(path) != fingerprint
            and self._previous_scan.get(path) == fingerprint
        )
        self._previous_scan = {path: fingerprint for path, (_, fingerprint) in files.items()}

    def list_files(self) -> Iterator[tuple[int, str, str]]:
        """Step, path and fingerprint of each file."""
        for folder in (self.folder, self.folder / _TRL_SUBFOLDER):
            try:
                with os.scandir(folder) as entries:
                    newest = nlargest(MAX_FILES, _entries_by_step(entries), key=itemgetter(0))
            except OSError:
                # The trainer creates it later, or its disk is not available for now.
                continue
            for step, entry in newest:
                if fingerprint := _fingerprint(entry):
                    yield step, entry.path, fingerprint

    def _mark_as_read(self, path: str, fingerprint: str) -> None:
        self._read_fingerprints[path] = self._unstored_fingerprints[path] = fingerprint

    def _report_unreadable(self, problem: str) -> None:
        reason = "samples_unreadable"
        if not self.counters.values["sentinel_dropped_records_total", reason]:
            # Only the first is logged: there may be one for each step.
            log.warning("Samples cannot be read: %s", problem)
        self.counters.add("sentinel_dropped_records_total", reason)

    def to_record(self, sample: TextSample, step: int, attempt: int, now: float) -> Record:
        """The record of a sample of the file of that step."""
        values, texts = sample.content
        # Rank 0 writes the file for all ranks.
        return Record(
            run=self.run,
            rank=0,
            step=step if sample.step is None else sample.step,
            time=now,
            event=Event.SAMPLE,
            values=values,
            attributes=texts,
            attempt=attempt,
        )


@dataclass
class SamplePoller:
    """Polls `files` in its own thread, which the first `poll` starts.

    While the disk hangs there are no samples, and the agent continues.
    """

    files: SampleFiles
    _results: SimpleQueue[tuple[list[Record], dict[str, str]]] = field(default_factory=SimpleQueue)
    _unstored_fingerprints: dict[str, str] = field(default_factory=dict)
    _stopping: ThreadEvent = field(default_factory=ThreadEvent)
    _thread: Thread | None = None

    def poll(self, attempt: int) -> list[Record]:
        """Records of the next file, with that attempt; never waits, never raises."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="sentinel-samples", daemon=True)
            self._thread.start()
        try:
            records, fingerprints = self._results.get_nowait()
        except Empty:
            return []
        self._unstored_fingerprints |= fingerprints
        return [replace(record, attempt=attempt) for record in records]

    def pop_fingerprints(self) -> dict[str, str]:
        """Fingerprints of the files read since the last call, to be stored with their records."""
        fingerprints, self._unstored_fingerprints = self._unstored_fingerprints, {}
        return fingerprints

    def stop(self) -> None:
        """Stop the thread; one that hangs is abandoned after STOP_TIMEOUT_SECONDS."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._results.qsize() >= MAX_FILES_AHEAD or not self._read_next_file():
                self._stopping.wait(IDLE_SECONDS)

    def _read_next_file(self) -> bool:
        """Read the next file; whether there was one."""
        # `poll` sets the attempt, which may change until the records are used.
        records, fingerprints = self.files.poll(0), self.files.pop_fingerprints()
        if records or fingerprints:
            self._results.put((records, fingerprints))
        return bool(records or fingerprints)


def has_sample_files(folder: Path) -> bool:
    """Whether a directory has the subdirectory to which TRL writes samples."""
    return (folder / _TRL_SUBFOLDER).is_dir()


def read_newest_samples(
    run: str, folder: Path, max_samples: int, known: set[str]
) -> Iterator[Record]:
    """Samples of the newest files of a directory, oldest first; those of `known` are left out.

    What was read is added to `known`. A file that cannot be read is left out. Never raises.
    """
    files = SampleFiles(run, folder, Counters())
    listed = sorted(files.list_files())[-max(1, max_samples // SAMPLES_PER_FILE) :]
    for step, path, fingerprint in listed:
        if (mark := f"{path} {fingerprint}") in known:
            continue
        known.add(mark)
        written = int(fingerprint.partition(":")[0]) / 1e9
        try:
            samples = list(read_samples(Path(path), SAMPLES_PER_FILE))
        except Exception:
            log.debug("The samples in %s cannot be read", path)
            continue
        yield from (files.to_record(sample, step, 0, written) for sample in samples)


def _entries_by_step(entries: Iterable[os.DirEntry[str]]) -> Iterator[tuple[int, os.DirEntry[str]]]:
    for entry in entries:
        if match := _SAMPLE_FILE_NAME.fullmatch(entry.name):
            yield int(match[1]), entry


def _fingerprint(entry: os.DirEntry[str]) -> str:
    """Modification time and size; "" if the entry is not a file, is gone, or is empty."""
    try:
        if not entry.is_file():
            return ""
        status = entry.stat()
    except OSError:
        return ""
    return f"{status.st_mtime_ns}:{status.st_size}" if status.st_size else ""
