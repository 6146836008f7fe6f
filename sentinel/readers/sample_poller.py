"""Sample watch: files of samples read beside the agent's loop, since a file server may hang."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from threading import Event, Thread

from sentinel.model.record import Record
from sentinel.readers.sample_files import SampleFiles

MAX_FILES_AHEAD = 4
"""Files that are read before the loop has taken the texts of those before them."""
IDLE_SECONDS = 0.2
STOP_TIMEOUT_SECONDS = 2.0
"""How long a look that is under way at the end is waited for."""


@dataclass
class SamplePoller:
    """Polls `files` in a thread of its own, from the first `poll` on.

    While the files' disk hangs there are no texts, and everything else goes on.
    """

    files: SampleFiles
    _results: SimpleQueue[tuple[list[Record], dict[str, str]]] = field(default_factory=SimpleQueue)
    _unstored_fingerprints: dict[str, str] = field(default_factory=dict)
    _stopping: Event = field(default_factory=Event)
    _thread: Thread | None = None

    def poll(self, attempt: int) -> list[Record]:
        """Texts of the next file that was read, as of that attempt; never waits, never raises."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="sentinel-samples", daemon=True)
            self._thread.start()
        try:
            records, marks = self._results.get_nowait()
        except Empty:
            return []
        self._unstored_fingerprints |= marks
        return [replace(record, attempt=attempt) for record in records]

    def pop_fingerprints(self) -> dict[str, str]:
        """Marks of the files done with since the last call, to be stored with their texts."""
        taken, self._unstored_fingerprints = self._unstored_fingerprints, {}
        return taken

    def stop(self) -> None:
        """No further look; one that hangs is left behind."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._results.qsize() >= MAX_FILES_AHEAD or not self._read_next_file():
                self._stopping.wait(IDLE_SECONDS)

    def _read_next_file(self) -> bool:
        """Read the next file; whether there was any."""
        # Of which attempt they are is said where they are taken.
        records, marks = self.files.poll(0), self.files.pop_fingerprints()
        if records or marks:
            self._results.put((records, marks))
        return bool(records or marks)
