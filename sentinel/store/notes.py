"""The note that people write about a run: one text in a file beside the data of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from sentinel.model.clean_text import clean
from sentinel.model.json_safe import parse_object
from sentinel.transport.paths import home_dir, path_digest
from sentinel.transport.replaced_file import replace_file

NOTE_NAME = "note.json"
MAX_NOTE_CHARS = 1000
MAX_AUTHOR_CHARS = 80
MAX_LINES = 50
MAX_FILE_BYTES = 16_384


class Note(NamedTuple):
    """A note, who wrote it, and when, in seconds since the epoch."""

    text: str
    author: str = ""
    time: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The note as JSON: text, author and time."""
        return self._asdict()


def log_note_path(log: Path) -> Path:
    """The file of the note about a log, in the home directory: the cache forgets old logs."""
    return home_dir() / "log-notes" / f"{path_digest(log)}.json"


def read_note(path: Path) -> Note | None:
    """The note in a file; None if there is none, or it cannot be read."""
    try:
        with path.open("rb") as file:
            found = parse_object(file.read(MAX_FILE_BYTES).decode())
        note = Note(clean_note(str(found["text"])), str(found["author"]), float(found["time"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return note if note.text else None


def write_note(path: Path, text: str, author: str, now: float) -> Note | None:
    """Replace the note; an empty text deletes it, and returns None. Raises OSError."""
    text = clean_note(text)
    if not text and not path.exists():
        return None
    # A file without a text, so that its copy in the home directory has none either.
    note = Note(text, clean(author, MAX_AUTHOR_CHARS).strip(), now)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, json.dumps(note.to_dict()).encode())
    return note if text else None


def clean_note(text: str) -> str:
    r"""The text without control and hidden characters, in at most `MAX_LINES` lines.

    >>> clean_note("  good seed\r\n\x1b[2Jrerun  ")
    'good seed\n[2Jrerun'
    """
    lines = [clean(line).rstrip() for line in text.strip().splitlines()[:MAX_LINES]]
    cleaned = "\n".join(lines)
    return cleaned if len(cleaned) <= MAX_NOTE_CHARS else f"{cleaned[: MAX_NOTE_CHARS - 1]}…"
