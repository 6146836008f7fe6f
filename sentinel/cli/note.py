"""`sentinel note`: read and write the note about a run or a log."""

from __future__ import annotations

import json as jsonlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sentinel.cli._options import JsonOption, complete_run, error_exit, resolve_run
from sentinel.cli.silence import current_user

if TYPE_CHECKING:
    from sentinel.store.notes import Note


def note(
    run: Annotated[
        str,
        typer.Argument(
            help="Run id, or path of a log.",
            autocompletion=complete_run,
            callback=resolve_run,
        ),
    ],
    text: Annotated[
        str | None, typer.Argument(help="The new note; without it, the note is printed.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the note.")] = False,
    json: JsonOption = False,
) -> None:
    """Write or print the note about a run, which the list of runs, its page and reports show.

    Exit status: 0 on success, 2 if there is no such run, or the note cannot be written.
    """
    from sentinel.cli._run_database import refuse_copy
    from sentinel.cli._terminal import escape_unprintable
    from sentinel.cli.status import format_note
    from sentinel.store.notes import read_note

    if delete and text is not None:
        raise error_exit("note", "give a text, or --delete.")
    path = _note_path(run)
    if delete or text is not None:
        refuse_copy("note", run, path.parent)
        found = _write(path, "" if delete else str(text))
    else:
        found = read_note(path)
    if json:
        print(jsonlib.dumps({"run": run, "note": found and found.to_dict()}))
    elif found is None:
        print(f"Run {run} has no note.")
    else:
        print(escape_unprintable(f"{run}: {format_note(found.to_dict())}"))


def _note_path(run: str) -> Path:
    from sentinel.cli._run_database import run_database_path
    from sentinel.store.notes import NOTE_NAME, log_note_path
    from sentinel.store.stored_runs import named_database

    path = Path(run)
    database = named_database(path)
    if database is None and (path.is_file() or path.parent.is_file() or _has_logs(path)):
        return log_note_path(path)
    return (database or run_database_path("note", run)).parent / NOTE_NAME


def _has_logs(folder: Path) -> bool:
    from sentinel.readers.log_folder import find_logs

    try:
        return folder.is_dir() and bool(find_logs(folder))
    except OSError:
        return False


def _write(path: Path, text: str) -> Note | None:
    from sentinel.store.notes import MAX_NOTE_CHARS, write_note
    from sentinel.store.run_summary import note_in_summary

    if len(text) > MAX_NOTE_CHARS:
        raise error_exit("note", f"a note has at most {MAX_NOTE_CHARS} characters.")
    try:
        written = write_note(path, text, current_user(), time.time())
        note_in_summary(path.parent, written)
    except OSError as error:
        raise error_exit("note", f"cannot write {path}: {error.strerror}") from None
    return written
