"""What people think of a notification, as the page of a run and scripts store it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sentinel.store.feedback import (
    MARKS,
    MAX_COMMENT_CHARS,
    Feedback,
    UnknownCaseError,
    find_case,
    store_feedback,
)
from sentinel.transport.paths import is_copy
from sentinel.web.responses import RequestError
from sentinel.web.suppression_api import author_of, parse_request, written_database

log = logging.getLogger(__name__)

_KEYS = {"case": str, "mark": str, "comment": str, "author": str}


class FeedbackApi:
    """Stores feedback on the cases of `run`, live or over, in its database at `path`.

    `report` gets the errors of the database. Each change is a line in the log.
    """

    def __init__(
        self,
        run: str,
        path: Path,
        report: Callable[[Exception], object] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._run, self._path, self._report, self._clock = run, path, report, clock

    def store(self, body: bytes, user: str, peer: str) -> dict[str, Any]:
        """Store the `mark` of a `case`, with a `comment`. Returns `case` and `feedback`.

        Takes the body of a request, who sent it (the authenticated user, or empty) and the address
        it came from. Raises RequestError.
        """
        request = parse_request(body, _KEYS)
        mark = request.get("mark", "")
        if mark not in MARKS:
            raise RequestError(400, f'Give "case" and "mark": {" or ".join(MARKS)}.')
        if len(request.get("comment", "")) > MAX_COMMENT_CHARS:
            raise RequestError(400, f"A comment has at most {MAX_COMMENT_CHARS} characters.")
        given = Feedback(mark, self._clock(), author_of(request, user), request.get("comment", ""))
        if is_copy(self._path.parent):
            raise RequestError(409, "The agent works in another shared memory: use its own page.")
        try:
            with written_database(
                self._path, self._report, "Feedback is not stored: %s"
            ) as connection:
                name = find_case(connection, self._run, request.get("case", ""))
                stored = store_feedback(connection, name, given)
        except UnknownCaseError as error:
            raise RequestError(404, str(error)) from None
        comment = stored.comment or "-"
        log.info("%s marked %s by %s from %s: %s", name, mark, stored.author, peer, comment)
        return {"case": name, "feedback": stored.to_dict()}
