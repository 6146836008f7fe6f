"""The note about a run, as its page, the list of runs and scripts read and write it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sentinel.model.clean_text import clean
from sentinel.store.notes import MAX_NOTE_CHARS, read_note, write_note
from sentinel.store.run_summary import note_in_summary
from sentinel.transport.paths import is_copy
from sentinel.web.responses import RequestError
from sentinel.web.suppression_api import author_of, parse_request

log = logging.getLogger(__name__)

_KEYS = {"text": str, "author": str}
_MAX_LOGGED_CHARS = 200


class NoteApi:
    """The note of `run`, in the file at `path`. Each change is a line in the log."""

    def __init__(self, run: str, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._run, self._path, self._clock = run, path, clock

    def read(self) -> dict[str, Any] | None:
        """The note, see `Note`; None without one."""
        note = read_note(self._path)
        return None if note is None else note.to_dict()

    def write(self, body: bytes, user: str, peer: str) -> dict[str, Any]:
        """Replace the note by `text`; an empty one deletes it. Returns the new `note`, or None.

        Takes the body of a request, who sent it (the authenticated user, or empty) and the address
        it came from. Raises RequestError.
        """
        request = parse_request(body, _KEYS)
        if "text" not in request:
            raise RequestError(400, 'Give "text"; an empty one deletes the note.')
        if len(request["text"]) > MAX_NOTE_CHARS:
            raise RequestError(400, f"A note has at most {MAX_NOTE_CHARS} characters.")
        author = author_of(request, user)
        try:
            if is_copy(self._path.parent):
                raise RequestError(
                    409, "The agent works in another shared memory. Write the note on its own page."
                )
            note = write_note(self._path, request["text"], author, self._clock())
            note_in_summary(self._path.parent, note)
        except OSError as error:
            log.error("A note is not stored: %s", error)  # noqa: TRY400
            reason = error.strerror or "the directory cannot be written"
            raise RequestError(503, f"The note cannot be stored: {reason}.") from None
        text = "deleted" if note is None else clean(note.text, _MAX_LOGGED_CHARS)
        log.info("Run %s: note by %s from %s: %s", self._run, author, peer, text)
        return {"note": None if note is None else note.to_dict()}
