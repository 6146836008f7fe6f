"""Output of an agent that a trainer started: first to its start log, then to its run directory.

The trainer opens the start log, in shared memory, since the home directory could block it. It reads
there why an agent failed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from sentinel.transport.paths import START_LOG_NAME, ring_dir

OUTPUT_LOG_NAME = "agent.log"
_STDOUT, _STDERR = 1, 2
MAX_START_LOG_BYTES = 64 << 10


class OutputLog:
    """Where this process writes its output; one that a user started keeps its terminal or pipe."""

    def __init__(self, run: str) -> None:
        self._start_log = -1
        with suppress(OSError, ValueError):
            path = ring_dir(run) / START_LOG_NAME
            if os.path.samestat(path.stat(), os.fstat(_STDERR)):
                self._start_log = os.dup(_STDERR)
                os.set_inheritable(self._start_log, False)
                self._start_path = path

    def redirect(self, directory: Path) -> None:
        """Write to `agent.log` in `directory` from now on; first what the start log has.

        Nothing changes if that is not possible.
        """
        if self._start_log < 0:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError):
            descriptor = os.open(directory / OUTPUT_LOG_NAME, flags, 0o600)
            try:
                if os.path.samestat(os.fstat(descriptor), os.fstat(_STDERR)):
                    return
                if os.path.samestat(os.fstat(self._start_log), os.fstat(_STDERR)):
                    os.write(descriptor, self._start_path.read_bytes()[-MAX_START_LOG_BYTES:])
                for stream in (_STDOUT, _STDERR):
                    os.dup2(descriptor, stream)
            finally:
                os.close(descriptor)

    def write_for_trainer(self, text: str) -> None:
        """Write one line to the start log, where the trainer reads."""
        if self._start_log >= 0:
            with suppress(OSError):
                os.write(self._start_log, f"{text.strip()}\n".encode(errors="replace"))
