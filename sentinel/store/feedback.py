"""What people think of the notification of a case: useful, or a false alarm."""

from __future__ import annotations

import sqlite3
from difflib import get_close_matches
from typing import Literal, NamedTuple, get_args

from sentinel.model.clean_text import clean
from sentinel.model.json_safe import JsonObject

Mark = Literal["false", "useful"]
MARKS: tuple[Mark, ...] = get_args(Mark)
MARK_TEXTS = {"false": "a false alarm", "useful": "useful"}
MAX_COMMENT_CHARS, MAX_AUTHOR_CHARS = 500, 80
MAX_SUGGESTIONS = 3
_CUTOFF = 0.4


class UnknownCaseError(LookupError):
    """There is no case of that name; the message names those that are similar."""


class Feedback(NamedTuple):
    """A mark, one of `MARKS`, who set it, when (seconds since the epoch), and a comment."""

    mark: str
    time: float
    author: str = ""
    comment: str = ""

    def to_dict(self) -> JsonObject:
        """The feedback as JSON: mark, time, author and comment."""
        return self._asdict()


def find_case(connection: sqlite3.Connection, run: str, case: str) -> str:
    """The name of the case; its start, the run, may be left out. Raises UnknownCaseError."""
    rows = connection.execute("select name from case_history order by opened_time desc")
    names = [str(name) for (name,) in rows]
    for name in (case, f"{run}/{case}"):
        if name in names:
            return name
    if not names:
        raise UnknownCaseError(f"Run {run} has no case.")
    shown = clean(repr(case.removeprefix(f"{run}/")), 60)
    short = [name.removeprefix(f"{run}/") for name in names]
    near = get_close_matches(case.removeprefix(f"{run}/"), short, MAX_SUGGESTIONS, _CUTOFF)
    hint = " or ".join(map(repr, near or short[:MAX_SUGGESTIONS]))
    raise UnknownCaseError(f"Run {run} has no case {shown}. Did you mean {hint}?")


def store_feedback(connection: sqlite3.Connection, case: str, feedback: Feedback) -> Feedback:
    """Store the feedback on a case, in place of an earlier one; return what is stored."""
    stored = Feedback(
        feedback.mark,
        feedback.time,
        clean(feedback.author, MAX_AUTHOR_CHARS).strip(),
        clean(feedback.comment, MAX_COMMENT_CHARS).strip(),
    )
    connection.execute(
        "insert or replace into feedback(case_name, mark, time, author, comment)"
        " values(?, ?, ?, ?, ?)",
        (case, stored.mark, stored.time, stored.author, stored.comment),
    )
    return stored


def load_feedback(connection: sqlite3.Connection) -> dict[str, Feedback]:
    """The feedback by the name of its case."""
    rows = connection.execute("select case_name, mark, time, author, comment from feedback")
    return {str(name): Feedback(*values) for name, *values in rows}


def feedback_text(feedback: JsonObject) -> str:
    """The feedback as a sentence.

    >>> feedback_text({"mark": "false", "author": "ana", "comment": "a test run", "time": 0.0})
    'Marked as a false alarm by ana: a test run.'
    """
    author = f" by {feedback['author']}" if feedback["author"] else ""
    comment = f": {feedback['comment']}" if feedback["comment"] else ""
    return f"Marked as {MARK_TEXTS.get(feedback['mark'], feedback['mark'])}{author}{comment}."
