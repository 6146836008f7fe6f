"""Requests that acknowledge or silence, stored as `sentinel ack` and `sentinel silence` do."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sentinel.config.plugins import unknown_detector_text
from sentinel.model.clean_text import clean
from sentinel.model.evidence_text import capitalized
from sentinel.model.nearest_name import nearest_hint
from sentinel.store import silences
from sentinel.store.database import NewerSchemaError, connect
from sentinel.store.storage_monitor import reading_storage
from sentinel.web.responses import RequestError

log = logging.getLogger(__name__)

MAX_AUTHOR_CHARS = 80
DEFAULT_AUTHOR = "web page"

_BOTH = {"detector": str, "author": str, "reason": str}
_ACKNOWLEDGE_KEYS = {**_BOTH, "incident": str, "revoke": bool}
_SILENCE_KEYS = {**_BOTH, "for": str, "end": bool}


def always_notifies() -> str:
    """An empty text: this agent sends the notifications of the run."""
    return ""


class SuppressionApi:
    """Stores acknowledgements and silences of `run` in its database at `path`.

    `why_not` is a sentence if another agent sends the notifications of the run; empty otherwise.
    `report` gets the errors of the database.
    Every method takes the body of a request, who sent it (the authenticated user, or empty) and the
    address it came from. Each change is a line in the log. Raises RequestError.
    """

    def __init__(
        self,
        run: str,
        path: Path,
        why_not: Callable[[], str] = always_notifies,
        report: Callable[[Exception], object] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._run, self._path, self._clock = run, path, clock
        self.why_not, self._report = why_not, report

    def acknowledge(self, body: bytes, user: str, peer: str) -> dict[str, Any]:
        """Acknowledge the firing incidents of `detector`, or the `incident`, or all; or `revoke`.

        Returns `acknowledged`, the acknowledgements, or the number `revoked`.
        """
        request = parse_request(body, _ACKNOWLEDGE_KEYS)
        detector, incident = request.get("detector", ""), request.get("incident", "")
        author, reason = author_of(request, user), clean(request.get("reason", ""))
        what = incident or detector or "all"
        with self._connection() as connection:
            if request.get("revoke"):
                if incident:
                    raise RequestError(400, "revoke takes a detector, or none for all.")
                count = silences.withdraw_acks(connection, detector)
                self._log(f"acknowledgement of {what} revoked ({count})", author, peer, reason)
                return {"revoked": count}
            names = silences.acknowledge(
                connection, detector, self._clock(), author, reason, incident=incident
            )
            acks = silences.load_acks(connection)
        if not names:
            of = f" {clean(incident, 100)}" if incident else f" of {detector}" if detector else ""
            raise RequestError(409, f"Run {self._run} has no firing incident{of}.")
        self._log(f"acknowledged {', '.join(names)}", author, peer, reason)
        return {"acknowledged": [silences.ack_to_dict(acks[name]) for name in names]}

    def silence(self, body: bytes, user: str, peer: str) -> dict[str, Any]:
        """Silence `detector`, or all, `for` a time, or `end` the active silences.

        Returns the `silence`, or the number that `ended`.
        """
        request = parse_request(body, _SILENCE_KEYS)
        detector, duration = request.get("detector", ""), request.get("for", "")
        author, reason = author_of(request, user), clean(request.get("reason", ""))
        if bool(duration) == bool(request.get("end")):
            raise RequestError(400, 'Give either "for", such as "2h", or "end": true.')
        try:
            seconds = silences.parse_duration(duration) if duration else 0.0
        except ValueError as error:
            raise RequestError(400, f"for: {error}") from None
        now, what = self._clock(), detector or "all detectors"
        with self._connection() as connection:
            if not duration:
                count = silences.expire_silences(connection, detector, now)
                self._log(f"silences of {what} ended ({count})", author, peer, reason)
                return {"ended": count}
            silence = silences.Silence(detector, now, now + seconds, author, reason)
            added = silences.silence_to_dict(silences.add_silence(connection, silence))
        until = silences.format_utc_time(now + seconds)
        self._log(f"silenced {what} until {until}", author, peer, reason)
        return {"silence": added}

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        if reason := self.why_not():
            raise RequestError(409, reason)
        with written_database(
            self._path, self._report, "A request of the web page is not stored: %s"
        ) as connection:
            yield connection

    def _log(self, what: str, author: str, peer: str, reason: str) -> None:
        # One line each: author and reason are cleaned, and names are those of the database.
        log.info("Run %s: %s by %s from %s: %s", self._run, what, author, peer, reason or "-")


@contextmanager
def written_database(
    path: Path, report: Callable[[Exception], object], logged: str
) -> Iterator[sqlite3.Connection]:
    """A connection to the database at `path`, for the changes of one request.

    Gives `report` an error of the database, logs the line `logged` with it and raises RequestError.
    """
    try:
        with reading_storage(), closing(connect(path)) as connection:
            yield connection
    except (NewerSchemaError, sqlite3.Error) as error:
        report(error)
        log.error(logged, error)  # noqa: TRY400
        raise RequestError(503, "The database cannot be written; try again.") from None


def parse_request(body: bytes, keys: Mapping[str, type]) -> dict[str, Any]:
    """The request as a table of known keys. Raises RequestError."""
    try:
        request = json.loads(body)
        # Half of a surrogate pair is valid JSON, but no text that can be stored.
        json.dumps(request, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise RequestError(400, "The body is not valid JSON.") from None
    if not isinstance(request, dict):
        raise RequestError(400, "The body must be a JSON object.")
    for key, value in request.items():
        if key not in keys:
            hint, valid = nearest_hint(key, keys), ", ".join(sorted(keys))
            raise RequestError(400, f"{clean(repr(key), 60)} is not known.{hint} Valid: {valid}.")
        if not isinstance(value, keys[key]):
            kind = "true or false" if keys[key] is bool else "a string"
            raise RequestError(400, f'"{key}" must be {kind}.')
    if (detector := request.get("detector")) and (text := unknown_detector_text(detector)):
        raise RequestError(400, clean(capitalized(text)))
    return request


def author_of(request: Mapping[str, Any], user: str) -> str:
    """Who is stored: the user that authenticated, else whom the request names."""
    return clean(user or request.get("author", ""), MAX_AUTHOR_CHARS).strip() or DEFAULT_AUTHOR
