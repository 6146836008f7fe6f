"""The findings of a replay of a log or run, by a process of its own that is bounded.

What a damaged or hostile log does to that process, it does not do to the server.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from sentinel.mcp.fence import fence
from sentinel.mcp.run_access import AnswerError
from sentinel.mcp.vocabulary import problem_text, severity_text
from sentinel.model.json_safe import JsonObject, parse_object
from sentinel.store.cases import urgency
from sentinel.store.imports.log_worker import MAX_MEMORY_BYTES

REPLAY_SECONDS = 50.0
"""Longest replay; many clients wait for 60 s."""
MAX_CPU_SECONDS = 60
"""Processor time of each process of a replay."""
MAX_OUTPUT_BYTES = 32 << 20
MAX_LINES = 5_000
MAX_LINE_BYTES = 1 << 20


def replay(path: str) -> JsonObject:
    """What a replay of the log, database of a run or folder `path` finds.

    Raises AnswerError if it cannot be read, or takes too long.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        status = _run(_checked(path), output, errors)
        lines = [*_lines(output)]
        if status != 0 or not lines:
            raise AnswerError(f"The replay failed: {fence(_last_line(errors), 300)}.")
    runs: dict[str, list[JsonObject]] = {}
    for line in lines:
        runs.setdefault(str(line.get("run", "")), []).append(line)
    return {"path": path, "runs": [_replayed(run, each) for run, each in runs.items()]}


def _checked(path: str) -> str:
    """The path of a file or folder. Raises AnswerError for anything else."""
    try:
        given = Path(path).expanduser()
        is_readable, exists = given.is_file() or given.is_dir(), given.exists()
    except (OSError, ValueError, RuntimeError):
        # Also of a user that does not exist.
        raise AnswerError(f"{fence(path)} is no path.") from None
    if not path or not is_readable:
        is_other = path and exists
        problem = "is neither a file nor a folder" if is_other else "is no file, folder or run"
        raise AnswerError(f"{fence(path)} {problem}.")
    return str(given.absolute())


def _run(path: str, output: IO[bytes], errors: IO[bytes]) -> int:
    """The exit status of `sentinel replay`."""
    process = subprocess.Popen(  # noqa: S603 - our own command line
        [sys.executable, "-m", "sentinel", "replay", "--json", "--", path],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        start_new_session=True,
    )
    # A process that has ended already has no limits.
    with suppress(ProcessLookupError):
        for limit, value in (
            (resource.RLIMIT_AS, MAX_MEMORY_BYTES),
            (resource.RLIMIT_FSIZE, MAX_OUTPUT_BYTES),
            # It outlives a server that is killed.
            (resource.RLIMIT_CPU, MAX_CPU_SECONDS),
        ):
            resource.prlimit(process.pid, limit, (value, value))
    try:
        return process.wait(REPLAY_SECONDS)
    except subprocess.TimeoutExpired:
        message = f"The replay takes more than {REPLAY_SECONDS:.0f} s. Run `sentinel replay`."
        raise AnswerError(message) from None
    finally:
        # A folder is replayed by several processes.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _lines(output: IO[bytes]) -> Iterator[JsonObject]:
    """The first lines of the output, each an object."""
    output.seek(0)
    for _ in range(MAX_LINES):
        line = output.readline(MAX_LINE_BYTES)
        if not line:
            return
        yield parse_object(line.decode(errors="replace"))


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(max(errors.seek(0, os.SEEK_END) - 4096, 0))
    lines = errors.read().decode(errors="replace").splitlines()
    return lines[-1].removeprefix("sentinel replay: ").rstrip(".") if lines else "it was ended"


def _replayed(run: str, lines: list[JsonObject]) -> JsonObject:
    """What was found in one run: its cases with a cause, and the incidents of no such case."""
    by_type: dict[str, list[JsonObject]] = {"incident": [], "diagnosis": [], "summary": []}
    for line in lines:
        by_type.setdefault(str(line.get("type")), []).append(line)
    explained = {each["case"] for each in by_type["diagnosis"]}
    single = [each for each in by_type["incident"] if each["case"] not in explained]
    found = sorted([*by_type["diagnosis"], *single], key=urgency)
    summary = by_type["summary"][0] if by_type["summary"] else {}
    answer = {
        "steps": summary.get("steps"),
        "incidents": len(by_type["incident"]),
        "found": [_finding(each) for each in found],
        "signals_without_detector": [str(each["key"]) for each in summary.get("unmonitored", ())],
    }
    return ({"run": run} if run else {}) | answer


def _finding(line: Mapping[str, Any]) -> JsonObject:
    name = str(line.get("cause") or line.get("detector"))
    evidence = [str(each["text"]) for each in line["evidence"]] if "cause" in line else []
    return {
        "cause" if "cause" in line else "detector": problem_text(name),
        "severity": severity_text(line["severity"]),
        "onset_step": line["onset_step"],
        "found_at_step": line["opened_step"],
        "over_at_step": line["resolved_step"],
        "evidence": evidence or str(line.get("summary", "")),
        "remedy": str(line["remedy"]),
        "last_good_step": line["last_good_step"],
    } | ({"confidence": line["confidence"]} if "confidence" in line else {})
