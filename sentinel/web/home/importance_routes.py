"""The importance of settings over HTTP: worked out by a process, and asked for again until done."""

from __future__ import annotations

import json
import logging
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from sentinel.insight.importance.worker import start_worker
from sentinel.model.json_safe import JsonObject, parse_object
from sentinel.web.responses import RequestError, json_response

log = logging.getLogger(__name__)

MAX_RUNS = 5000
MAX_KEPT = 8
"""Answers that stay in memory."""
KEPT_SECONDS = 120.0
"""After that the runs are read again: they go on."""
UNWATCHED_SECONDS = 30.0
"""Seconds without a request after which the process ends."""
_MAX_TEXT_CHARS = 200


@dataclass(eq=False)
class _Job:
    """One process and what it has answered so far."""

    process: subprocess.Popen[str]
    answer: JsonObject = field(default_factory=lambda: {"state": "running", "progress": 0.0})
    asked_at: float = 0.0
    ended_at: float | None = None


class ImportanceJobs:
    """The processes by what was asked of them; one runs at a time, since each is heavy."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, Lock()
        self._jobs: dict[str, _Job] = {}
        self._is_closed = False

    def answer(self, request: JsonObject) -> JsonObject:
        """How far the answer to a request is; its process is started if there is none.

        `state` is waiting, running (with progress and text), done (with result) or failed (with
        error).
        """
        key, now = json.dumps(request, sort_keys=True), self._clock()
        with self._lock:
            self._drop(now)
            job = self._jobs.get(key)
            if job is None and not self._is_closed:
                if any(each.ended_at is None for each in self._jobs.values()):
                    return {"state": "waiting"}
                job = self._jobs[key] = _Job(start_worker())
                Thread(
                    target=self._follow, args=(job, key), name="sentinel-importance", daemon=True
                ).start()
            if job is None:
                return {"state": "failed", "error": "The server is stopping."}
            job.asked_at = now
            return job.answer

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            self._is_closed = True
            for job in self._jobs.values():
                _end(job)

    def _drop(self, now: float) -> None:
        """Forget old answers, and end processes whose answer is not requested any more."""
        for key, job in [*self._jobs.items()]:
            is_old = job.ended_at is not None and now - job.ended_at > KEPT_SECONDS
            if is_old or (job.ended_at is None and now - job.asked_at > UNWATCHED_SECONDS):
                _end(job)
                del self._jobs[key]
        ended = [key for key, job in self._jobs.items() if job.ended_at is not None]
        for key in ended[: max(0, len(ended) - MAX_KEPT)]:
            del self._jobs[key]

    def _follow(self, job: _Job, request: str) -> None:
        """Read what the process writes, in a thread, until it ends."""
        assert job.process.stdin is not None
        assert job.process.stdout is not None
        try:
            with job.process:
                with suppress(BrokenPipeError):
                    job.process.stdin.write(request)
                    job.process.stdin.close()
                for line in job.process.stdout:
                    job.answer = _state(parse_object(line))
        except (OSError, ValueError) as error:
            log.warning("The importance of settings is not worked out: %s", error)
        finally:
            if job.answer["state"] == "running":
                text = "The process ended without an answer: it took too long or too much memory."
                job.answer = {"state": "failed", "error": text}
            job.ended_at = self._clock()


def _state(message: JsonObject) -> JsonObject:
    if "result" in message:
        return {"state": "done", "result": message["result"]}
    if "error" in message:
        return {"state": "failed", "error": str(message["error"])}
    return {"state": "running"} | message


def _end(job: _Job) -> None:
    with suppress(OSError):
        job.process.kill()


async def answer_importance(
    request: Request,
    jobs: ImportanceJobs,
    find_paths: Callable[[list[str], str], Mapping[str, Path]],
    read: Callable[[Callable[[], Any]], Awaitable[Any]],
) -> Response:
    """The importance of settings for the runs of the query: `run` several times, or `filter`.

    `find_paths` returns the path of each run by its name; `read` calls a function in a thread.
    """
    asked = _parse_query(request)
    names, words = request.query_params.getlist("run"), asked.pop("filter")
    try:
        return json_response(
            request, await read(partial(_answer, jobs, asked, partial(find_paths, names, words)))
        )
    except OSError as error:
        raise RequestError(503, f"The runs cannot be read: {error}.") from None


def _answer(
    jobs: ImportanceJobs, asked: JsonObject, find_paths: Callable[[], Mapping[str, Path]]
) -> JsonObject:
    paths = find_paths()
    if not 1 <= len(paths) <= MAX_RUNS:
        raise RequestError(400, f"Choose 1 to {MAX_RUNS} runs, not {len(paths)}.")
    return jobs.answer(asked | {"runs": {name: str(path) for name, path in paths.items()}})


def _parse_query(request: Request) -> JsonObject:
    # It imports the readers of all logs.
    from sentinel.insight.importance.run_collection import STATISTICS  # noqa: PLC0415

    given = request.query_params
    choices = {
        "statistic": (*STATISTICS,),
        "failed": ("drop", "worst"),
        "better": ("", "lower", "higher"),
    }
    chosen: JsonObject = {}
    for name, values in choices.items():
        chosen[name] = given.get(name, values[0])
        if chosen[name] not in values:
            raise RequestError(400, f"{name} must be one of {', '.join(filter(None, values))}.")
    return chosen | {
        "outcome": given.get("outcome", "")[:_MAX_TEXT_CHARS],
        "exclude": [each[:_MAX_TEXT_CHARS] for each in given.getlist("exclude")],
        "filter": given.get("filter", "")[:_MAX_TEXT_CHARS],
    }
