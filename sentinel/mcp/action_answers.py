"""What coding agents may do to a run, if allowed: acknowledge, silence, save, stop.

Each action is stored with who asked for it, and is a line in the log.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from sentinel.mcp.fence import OwnText
from sentinel.mcp.run_access import AnswerError, RunAccess
from sentinel.model.clean_text import clean
from sentinel.model.json_safe import JsonObject
from sentinel.store import commands
from sentinel.store.commands import REQUEST_PREFIX, ActionRequest
from sentinel.store.database import NewerSchemaError, connect
from sentinel.store.storage_monitor import reading_storage
from sentinel.web.responses import RequestError
from sentinel.web.run_routes import RunView
from sentinel.web.suppression_api import MAX_AUTHOR_CHARS, SuppressionApi

log = logging.getLogger(__name__)

OUTCOME_SECONDS = 8.0
"""How long a request waits until the agent of the run has planned or refused it."""
_POLL_SECONDS = 0.1

Change = Callable[[bytes, str, str], JsonObject]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: the name of the client with its login, and where it is."""

    name: str
    place: str

    @classmethod
    def of_client(cls, client: str, user: str, place: str) -> Caller:
        """That of a client that names itself, and of the user whose password was right."""
        name = clean(f"mcp {client}{f' of {user}' if user else ''}", MAX_AUTHOR_CHARS).strip()
        return cls(name, clean(place, MAX_AUTHOR_CHARS))


def acknowledge(
    access: RunAccess, caller: Caller, run: str, detector: str = "", reason: str = ""
) -> JsonObject:
    """Acknowledge the firing incidents of a detector, or all: no notification until one rises."""
    view = access.view(run)
    request = {"detector": detector, "reason": reason}
    found = _change(_suppression(view).acknowledge, request, caller)
    names = [str(each["incident"]) for each in found["acknowledged"]]
    _log("acknowledge", view, caller, detector, reason)
    return {"run": view.run, "acknowledged": names, "by": caller.name}


def silence(  # noqa: PLR0913 - the columns of a silence, and who asks
    access: RunAccess,
    caller: Caller,
    run: str,
    duration: str,
    *,
    detector: str = "",
    reason: str = "",
) -> JsonObject:
    """Send no notification of a detector, or of any, for a time such as `2h`."""
    view = access.view(run)
    request = {"for": duration, "detector": detector, "reason": reason}
    found = _change(_suppression(view).silence, request, caller)["silence"]
    _log(f"silence for {duration}", view, caller, detector, reason)
    return {
        "run": view.run,
        "detector": found["detector"] or None,
        "seconds": round(found["ends_at"] - found["starts_at"]),
        "by": caller.name,
    }


def request_action(
    access: RunAccess, caller: Caller, run: str, action: str, reason: str = ""
) -> JsonObject:
    """Request `checkpoint` or `stop` of all ranks at one step; waits until that is planned."""
    view = access.view(run)
    if _suppression(view).why_not():
        raise AnswerError("No agent takes requests for this run here.")
    cause = clean(f"{action} requested by {caller.name}: {reason}", 200)
    request = ActionRequest(f"{REQUEST_PREFIX}{time.time():.3f}", frozenset({action}), cause)
    try:
        with reading_storage(), closing(connect(view.database)) as connection:
            commands.store_request(connection, request)
            _log(f"request {action}", view, caller, "", reason)
            row = _outcome(connection, request.name)
    except (NewerSchemaError, sqlite3.Error):
        raise AnswerError("The database cannot be written; try again.") from None
    return {"run": view.run, "action": OwnText(action), "by": caller.name, **row}


def _outcome(connection: sqlite3.Connection, name: str) -> JsonObject:
    ends_at = time.monotonic() + OUTCOME_SECONDS
    while time.monotonic() < ends_at:
        step, refusal = commands.outcome(connection, name)
        if refusal is not None:
            return {"status": OwnText("refused"), "because": refusal}
        if step is not None:
            return {"status": OwnText("planned"), "at_step": step}
        time.sleep(_POLL_SECONDS)
    return {"status": OwnText("waiting: the agent of the run has not planned it yet")}


def _suppression(view: RunView) -> SuppressionApi:
    if view.suppression is None:
        raise AnswerError("No agent serves this run, so nothing can be asked of it.")
    return view.suppression


def _change(change: Change, request: Mapping[str, Any], caller: Caller) -> JsonObject:
    try:
        return change(json.dumps(request).encode(), caller.name, caller.place)
    except RequestError as error:
        raise AnswerError(str(error)) from None


def _log(what: str, view: RunView, caller: Caller, detector: str, reason: str) -> None:
    texts = (what, detector or "all", view.run, caller.name, caller.place, reason or "-")
    log.info("%s (%s) of run %s by %s from %s: %s", *(clean(each, 200) for each in texts))
