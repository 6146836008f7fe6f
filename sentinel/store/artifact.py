"""Results of insight as files of a run, which its page, its report and comparisons show.

A result is `<run directory>/insight/<id>.json`: `{"version", "id", "kind", "name", "title", "step",
"time", "data"}`, with all but `data` on the first line, so that a list of results reads only that.
Files are written and read through the descriptor of their folder, and no link is followed. What is
on the disk may be damaged, or written by anybody: reading raises `ArtifactError` only.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from sentinel.model.clean_text import clean
from sentinel.model.json_safe import finite_values
from sentinel.transport import paths
from sentinel.transport.paths import INSIGHT_NAME

log = logging.getLogger(__name__)

VERSION = 1
MAX_BYTES = 4 << 20
"""Size of one result as JSON."""
MAX_ARTIFACTS = 64
"""Results of a run; the oldest of the kind that has most are deleted."""
MAX_RUN_BYTES = 64 << 20
"""Size of all results of a run."""
TITLES = {
    "loss_surface": "Loss surface",
    "gradient_flow": "Gradient flow",
    "trajectory": "Trajectory of the weights",
    "importance": "Importance of settings",
    "sharpness": "Sharpness",
}
"""Titles of the kinds of results."""

_HEADER_KEYS = ("version", "id", "kind", "name", "title", "step", "time")
_MAX_HEADER_BYTES = 16_384
_MAX_FILE_BYTES = MAX_BYTES + _MAX_HEADER_BYTES
_MAX_ENTRIES = 4096
"""Entries of the folder that are looked at: it may hold anything."""
_MAX_NAME_CHARS, _MAX_TITLE_CHARS, _MAX_SLUG_CHARS = 200, 300, 60
_MAX_STEP = 2**53
_MAX_TIME = 1e11
_SHORT_DIGITS = 6
_HIDDEN_KEYS = frozenset({"projection"})
_KIND = re.compile(r"[a-z][a-z0-9_]{0,39}")
_ID = re.compile(r"[a-z][A-Za-z0-9._-]{0,159}")
_LEFTOVER = re.compile(r"\.[0-9a-f]{16}\.new")
_SUFFIX = ".json"
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class ArtifactError(Exception):
    """A stored result that is not there, or cannot be read; the message is for people."""


def current_run_directory() -> Path | None:
    """The directory of the run that is monitored in this process; None outside a run.

    It is in shared memory while an agent works there, which copies it to the home directory: a
    disk may not respond.
    """
    # The agent copies results too, and has no session.
    from sentinel.client.session import current_session  # noqa: PLC0415

    session = current_session()
    if session is None:
        return None
    run = session.identity.run
    try:
        shared = paths.shared_run_dir(run)
        # Only an agent that works in shared memory locks that directory.
        is_in_shared = paths.is_agent_running(paths.shared_state_path(run))
        is_in_shared |= paths.current_run_dir(run).parent == shared
        if is_in_shared or paths.is_home_remote():
            return paths.shared_state_dir(run)
        return paths.run_dir(run)
    except OSError as error:
        log.warning("Results of insight are not stored: %s", paths.describe_error(error))
        return None


def save_artifact(
    run_directory: Path | str, result: Any, *, name: str | None = None, title: str = ""
) -> Path | None:
    """Store a result with the run, and return its file; None, with a warning, if that fails.

    `result` has `kind` and `to_json()`, and may have `name`, `step` and `title`; a mapping with
    these keys will do. A step that is None becomes that of the run in this process. The id is the
    kind with name and step, or else with the time: a result with the same id replaces the former
    one, as a reader sees at once. One result is at most 4 MiB, and a run has at most 64 of them, of
    64 MiB: the oldest of the kind that has most are deleted.
    """
    try:
        return _save(Path(run_directory), result, name, title)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        text = paths.describe_error(error)
        log.warning("A result of insight is not stored with the run: %s", text)
        return None


def make_artifact(result: Any, *, name: str | None = None, title: str = "") -> dict[str, Any]:
    """A result with its header, as it is stored. Raises TypeError, ValueError."""
    data = _plain(result)
    kind = str(data["kind"])
    if not _KIND.fullmatch(kind):
        raise ValueError(f"the kind of a result must be a name such as loss_surface, not {kind!r}")
    step = data.get("step")
    step = int(step) if isinstance(step, int | float) and abs(step) < _MAX_STEP else None
    name = clean(_given_name(result, data, name), _MAX_NAME_CHARS)
    title = clean(title or str(data.get("title") or ""), _MAX_TITLE_CHARS)
    now = time.time()
    parts = [kind, *([_slug(name)] if name else []), *([str(step)] if step is not None else [])]
    if len(parts) == 1:
        parts.append(time.strftime("%Y%m%d-%H%M%S", time.gmtime(now)))
    return {
        "version": VERSION,
        "id": "-".join(parts),
        "kind": kind,
        "name": name,
        "title": title or TITLES.get(kind, kind.replace("_", " ").capitalize()),
        "step": step,
        "time": round(now, 3),
        "data": finite_values(data),
    }


def list_artifacts(run_directory: Path | str) -> list[dict[str, Any]]:
    """The headers of the stored results, the oldest first; empty if there is none.

    Each has kind, id, name, title, step (None if unknown), time (seconds since the epoch), size in
    bytes and `revision`, which changes when the result is replaced. What is no result is left out.
    """
    with _reading(Path(run_directory)) as folder:
        if folder is None:
            return []
        found = []
        for entry in _entries(folder):
            header = _read_header(folder, entry)
            if header is not None:
                header |= {"size": entry.size, "revision": str(entry.modified)}
                found.append(header)
        return sorted(found, key=lambda each: (each["time"], each["id"]))


def load_artifact(run_directory: Path | str, artifact_id: str) -> dict[str, Any]:
    """The result of that id with its header; numbers that are not finite are None.

    Raises ArtifactError if there is none, or if it cannot be read.
    """
    if not _ID.fullmatch(artifact_id):
        raise ArtifactError("There is no such result.")
    with _reading(Path(run_directory)) as folder:
        if folder is None:
            raise ArtifactError("There is no such result.")
        try:
            value = _parse(_read(folder, artifact_id + _SUFFIX, _MAX_FILE_BYTES))
        except FileNotFoundError:
            raise ArtifactError("There is no such result. It may have been deleted.") from None
        except (OSError, ValueError, RecursionError) as error:
            text = error.strerror if isinstance(error, OSError) else str(error)
            raise ArtifactError(f"The result {artifact_id} cannot be read: {text}.") from None
        header = _checked_header(value, artifact_id)
        data = value.get("data") if isinstance(value, dict) else None
        if header is None or not isinstance(data, dict):
            raise ArtifactError(f"The file of the result {artifact_id} is damaged.")
        return header | {"data": data}


def shown_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a result without what no picture shows, such as random projections."""
    return {key: value for key, value in data.items() if key not in _HIDDEN_KEYS}


def artifact_mark(run_directory: Path | str) -> str:
    """What differs once a result was stored or deleted; empty without results. One stat."""
    try:
        status = Path(run_directory, INSIGHT_NAME).lstat()
    except OSError:
        return ""
    return str(status.st_mtime_ns) if stat.S_ISDIR(status.st_mode) else ""


def copy_artifacts(source: Path, target: Path, max_bytes: int = MAX_RUN_BYTES) -> None:
    """Copy the newest results, of at most so many bytes, that are newer than in the other run
    directory. Raises OSError.
    """
    with _reading(source) as folder:
        entries = [] if folder is None else _newest(_entries(folder), max_bytes)
        if folder is None or not entries:
            return
        with _writing(target) as copies:
            known = {entry.name: entry.modified for entry in _entries(copies)}
            newer = [each for each in entries if known.get(each.name, -1) < each.modified]
            for entry in newer:
                # It may have been deleted meanwhile, or be no result.
                with suppress(FileNotFoundError, ValueError):
                    body = _read(folder, entry.name, _MAX_FILE_BYTES)
                    _write(copies, entry.name, body, entry.modified)
            if newer:
                _prune(copies, "")


class _Entry(NamedTuple):
    """A file of the folder: its name, its size in bytes and the time of its change in ns."""

    name: str
    size: int
    modified: int

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]


def _save(run_directory: Path, result: Any, name: str | None, title: str) -> Path:
    data = _plain(result)
    if data.get("step", 0) is None:
        data["step"] = _current_step(run_directory)
    artifact = make_artifact(data, name=_given_name(result, data, name), title=title)
    body = _encode(artifact)
    if len(body) > MAX_BYTES:
        body = _encode(artifact | {"data": with_floats(artifact["data"], _shortened)})
    if len(body) > MAX_BYTES:
        size, limit = f"{len(body) / 2**20:.1f} MiB", f"{MAX_BYTES >> 20} MiB"
        raise ValueError(f"{artifact['id']} has {size}, more than {limit}: use fewer points")
    file = f"{artifact['id']}{_SUFFIX}"
    with _writing(run_directory) as folder:
        _write(folder, file, body)
        _prune(folder, file)
    return run_directory / INSIGHT_NAME / file


def _plain(result: Any) -> dict[str, Any]:
    """The JSON of a result, with its kind. Raises TypeError."""
    if not isinstance(result, Mapping) and not hasattr(result, "to_json"):
        raise TypeError(f"a result of insight has to_json(), and {type(result).__name__} has not")
    data = dict(result if isinstance(result, Mapping) else result.to_json())
    return {**data, "kind": data.get("kind") or getattr(result, "kind", "")}


def _given_name(result: Any, data: Mapping[str, Any], name: str | None) -> str:
    return str((data.get("name") or getattr(result, "name", "")) if name is None else name)


def _current_step(run_directory: Path) -> int | None:
    """The step of the run that is monitored in this process, if that is its directory."""
    from sentinel.client.session import current_session  # noqa: PLC0415 - as above

    session = current_session()
    if session is None or current_run_directory() != run_directory:
        return None
    return session.recorder.clock.step


def _encode(artifact: Mapping[str, Any]) -> bytes:
    header = json.dumps({key: artifact[key] for key in _HEADER_KEYS}, allow_nan=False)
    data = json.dumps(artifact["data"], allow_nan=False, separators=(",", ":"))
    return f'{header[:-1]},\n"data":{data}}}\n'.encode()


def _slug(name: str) -> str:
    """The name as a part of a file name; with a digest if it had to be changed.

    >>> _slug("policy"), _slug("lr 1e-6")
    ('policy', 'lr-1e-6-98421fc6')
    """
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:_MAX_SLUG_CHARS].strip("-.")
    if slug == name:
        return slug
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{slug}-{digest}" if slug else digest


@contextmanager
def _reading(run_directory: Path) -> Iterator[int | None]:
    """The descriptor of the folder with the results; None if there is none."""
    try:
        folder = os.open(
            run_directory / INSIGHT_NAME,
            os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC,
        )
    except OSError:
        yield None
        return
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def _writing(run_directory: Path) -> Iterator[int]:
    """The descriptor of the folder, which is created. Raises OSError."""
    path = run_directory / INSIGHT_NAME
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    with _reading(run_directory) as folder:
        if folder is None:
            raise NotADirectoryError(20, "is no folder that can be read", str(path))
        yield folder


def _entries(folder: int) -> list[_Entry]:
    """The files of results, the oldest first."""
    found = []
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number >= _MAX_ENTRIES:
                break
            stem, suffix = os.path.splitext(entry.name)  # noqa: PTH122 - text only
            if suffix != _SUFFIX or not _ID.fullmatch(stem):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                found.append(_Entry(entry.name, status.st_size, status.st_mtime_ns))
    return sorted(found, key=lambda each: (each.modified, each.name))


def _newest(entries: list[_Entry], max_bytes: int) -> list[_Entry]:
    """The newest of the files that together have at most so many bytes."""
    chosen, size = [], 0
    for entry in reversed(entries):
        size += entry.size
        if size > max_bytes:
            break
        chosen.append(entry)
    return chosen


def _read(folder: int, name: str, max_bytes: int) -> bytes:
    """The content of a file. Raises OSError, and ValueError if it is longer or no file."""
    body = _read_start(folder, name, max_bytes + 1)
    if len(body) > max_bytes:
        raise ValueError("the file is too large")
    return body


def _read_start(folder: int, name: str, max_bytes: int) -> bytes:
    descriptor = os.open(name, _READ_FLAGS, dir_fd=folder)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - of a descriptor
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no file")
        return file.read(max_bytes)


def _write(folder: int, name: str, body: bytes, modified: int | None = None) -> None:
    """Write or replace a file in one instant. Raises OSError."""
    temporary = f".{secrets.token_hex(8)}.new"  # as `_LEFTOVER` matches
    descriptor = os.open(temporary, _WRITE_FLAGS, 0o600, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - of a descriptor
            file.write(body)
            file.flush()
            if modified is not None:
                os.utime(descriptor, ns=(modified, modified))
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _prune(folder: int, kept: str) -> None:
    """Delete the oldest results above the limits, never `kept`, and what a kill left behind."""
    entries = _entries(folder)
    size = sum(each.size for each in entries)
    while len(entries) > MAX_ARTIFACTS or size > MAX_RUN_BYTES:
        kinds = [each.kind for each in entries if each.name != kept]
        if not kinds:
            break
        most = max(kinds, key=kinds.count)
        oldest = next(each for each in entries if each.kind == most and each.name != kept)
        entries.remove(oldest)
        size -= oldest.size
        with suppress(FileNotFoundError):
            os.unlink(oldest.name, dir_fd=folder)
    _remove_leftovers(folder)


def _remove_leftovers(folder: int) -> None:
    oldest = time.time() - 3600
    with os.scandir(folder) as entries:
        leftovers = [each.name for each in entries if _LEFTOVER.fullmatch(each.name)]
    for name in leftovers:
        with suppress(OSError):
            if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime < oldest:
                os.unlink(name, dir_fd=folder)


def _read_header(folder: int, entry: _Entry) -> dict[str, Any] | None:
    """The header of a result; None if the file has none."""
    try:
        start = _read_start(folder, entry.name, _MAX_HEADER_BYTES)
        line, separator, _ = start.partition(b"\n")
        if separator and line.endswith(b","):
            value = _parse(line[:-1] + b"}")
        else:
            # Written by others.
            value = _parse(_read(folder, entry.name, _MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return _checked_header(value, entry.name.removesuffix(_SUFFIX))


def _checked_header(value: Any, artifact_id: str) -> dict[str, Any] | None:
    """The header with values of the right types; None if it is none."""
    if not isinstance(value, dict) or value.get("version") != VERSION:
        return None
    kind, step, when = value.get("kind"), value.get("step"), value.get("time")
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        return None
    if not isinstance(step, int) or abs(step) > _MAX_STEP:
        step = None
    if not isinstance(when, int | float) or not 0 <= when < _MAX_TIME:
        when = 0.0
    return {
        "version": VERSION,
        "id": artifact_id,
        "kind": kind,
        "name": clean(str(value.get("name") or ""), _MAX_NAME_CHARS),
        "title": clean(str(value.get("title") or ""), _MAX_TITLE_CHARS) or TITLES.get(kind, kind),
        "step": step,
        "time": when,
    }


def _parse(body: bytes) -> Any:
    """The JSON with None for numbers that are not finite. Raises ValueError, RecursionError."""
    try:
        value = json.loads(body)
    except ValueError:
        raise ValueError("it is no JSON") from None
    return finite_values(value)


def _shortened(number: float) -> float:
    """The number with fewer digits than a picture can show."""
    return float(f"{number:.{_SHORT_DIGITS}g}")


def with_floats(value: Any, change: Callable[[float], float]) -> Any:
    """The JSON value with each of its floats changed."""
    if isinstance(value, float):
        return change(value)
    if isinstance(value, dict):
        return {key: with_floats(each, change) for key, each in value.items()}
    if isinstance(value, list):
        return [with_floats(each, change) for each in value]
    return value
