"""Finds the logs of runs below a folder, each with the name of its run.

A folder that is one run, such as a TensorBoard or W&B directory or the output of transformers, is
one log; any other file is one if a reader reads it and it holds steps. Data sets and samples in
JSONL are not logs.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType

from sentinel.model.record import Event, Record
from sentinel.readers import console, number_columns, tensorboard, trackio, trainer_state
from sentinel.readers.format_detection import load_readers, open_log
from sentinel.readers.log_config import CONFIG_FILE_NAMES
from sentinel.readers.log_file import open_log_file, read_error_text
from sentinel.readers.log_reader import HEAD_BYTES
from sentinel.signals.catalogue import SIGNALS
from sentinel.transport.paths import DATABASE_NAME, cache_dir, home_dir, path_digest

MAX_DEPTH = 8
"""Levels of folders that are searched."""
MAX_ENTRIES = 200_000
"""Files and folders that are looked at."""
MAX_LOGS = 10_000
MAX_NAME_CHARS = 100
MAX_PROBED_RECORDS = 20
"""First records of a file that show whether it is the log of a training."""

_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages"})
_OWN_FILES = (frozenset({DATABASE_NAME}), frozenset({"import.json", "used"}))
"""Files in the directory of a run of sentinel, and in that of a log that it imported."""
_OUTPUT_FOLDERS = frozenset({"runs", "completions", "wandb"})
"""Folders in the output of transformers that repeat its history, or hold samples."""
_LOG_SUFFIXES = frozenset({".jsonl", ".ndjson", ".csv", ".tsv", ".wandb", ".db", ".json", ".log"})
_LINE_SUFFIXES = frozenset({".jsonl", ".ndjson"})
"""Suffixes of logs of lines, whose refusal is reported whatever they hold."""
_COMPRESSED_SUFFIXES = frozenset({".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".z"})
_TEXT_SUFFIXES = frozenset({"", ".txt", ".out", ".err"})
"""Suffixes of files that may be logs, but whose refusal is not reported."""
_PROBED_FORMATS = frozenset({
    "JSONL", "JSON array", "JSON columns", "CSV", "Console output", "Columns of numbers",
})  # fmt: skip
"""Formats that data of other kinds have too."""
_SAMPLE_FILE = re.compile(r"(completions_)?\d+\.jsonl(\.gz)?")
_SAMPLE_KEYS = (b'"prompt"', b'"completion"', b'"messages"', b'"input_ids"')
_INVALID_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class LogRun:
    """A log below a folder. `run` is its name, which is unique there and safe in a URL.

    `path` is what `open_log` opens; `format` names the reader. `problem` is why it cannot be read,
    "" if nothing is known against it.
    """

    run: str
    path: Path
    format: str
    problem: str = ""

    @property
    def files(self) -> list[Path]:
        """The files that the log consists of, as far as they exist now."""
        return log_files(self.path)

    @property
    def last_written(self) -> float:
        """When the newest of its files was written, in seconds since the epoch; 0 if unknown."""
        times = [0.0]
        for file in self.files:
            with suppress(OSError):
                times.append(file.stat().st_mtime)
        return max(times)


def find_logs(folder: Path, known: Iterable[LogRun] = ()) -> list[LogRun]:
    """The logs at or below a folder, or of a file, by the name of their run.

    Of a log that cannot be read, such as a pipe, the reason is in `problem`. Raises OSError if
    there is nothing at `folder`, or it cannot be read. Files of the logs that are `known` from an
    earlier search are not opened again.
    """
    formats = {log.path: log.format for log in known if not log.problem}
    found = [*islice(_Search(folder, formats).logs(), MAX_LOGS)]
    names = _run_names(folder, [path for path, _, _ in found])
    return sorted(
        (LogRun(names[path], path, kind, problem) for path, kind, problem in found),
        key=lambda log: log.run,
    )


def log_files(path: Path) -> list[Path]:
    """The files that the log at `path` consists of, with the file of arguments next to it."""
    if path.parent.is_file():
        # One run of a file with several.
        path = path.parent
    if not path.is_dir():
        return [path, path.with_name(f"{path.name}-wal"), *_config_files(path.parent)]
    for module in load_readers().values():
        if _is_run_folder(module, path):
            files: list[Path] = module.log_files(path)
            return [*files, *_config_files(path)]
    return [path]


def _config_files(folder: Path) -> list[Path]:
    return [folder / name for name in CONFIG_FILE_NAMES]


def _is_run_folder(module: ModuleType, folder: Path) -> bool:
    """Whether a folder is one run for a reader, which reads such folders."""
    if module is tensorboard:
        return tensorboard.is_run_folder(folder)
    return hasattr(module, "log_files") and bool(module.can_read(folder, b""))


_Found = tuple[Path, str, str]
"""Path, name of the format, and problem."""


class _Search:
    """One search: every folder is visited once, however many links lead to it."""

    def __init__(self, root: Path, formats: Mapping[Path, str]) -> None:
        self._root, self._formats = root, formats
        self._readers = load_readers()
        self._visited: set[tuple[int, int]] = set()
        self._entries_left = MAX_ENTRIES

    def logs(self) -> Iterator[_Found]:
        """Path, format and problem of each log. Raises OSError if the root cannot be read."""
        if self._root.parent.is_file():
            known = self._root.name in trackio.run_names(self._root.parent)
            problem = "" if known else f"{self._root.parent.name} holds no run of that name"
            yield self._root, trackio.FORMAT_NAME, problem
            return
        self._root.stat()
        if not self._root.is_dir():
            yield from self._file_logs(self._root, is_named=True)
            return
        os.scandir(self._root).close()
        real_root = self._root.resolve()
        for folder in (home_dir(), cache_dir()):
            # The runs of sentinel are no logs, whatever their folders lack or hold.
            with suppress(OSError):
                if not real_root.is_relative_to(folder.resolve()):
                    self._visited.add(_identity(folder.stat()))
        yield from self._folder_logs(self._root, MAX_DEPTH, None)

    def _folder_logs(self, folder: Path, depth: int, outer: ModuleType | None) -> Iterator[_Found]:
        listed = self._list(folder)
        readers = self._readers.values() if listed else ()
        module = next((each for each in readers if _is_run_folder_safe(each, folder)), None)
        if module is tensorboard and outer is tensorboard and tensorboard.is_part(folder):
            return
        if module is not None:
            yield folder, module.FORMAT_NAME, ""
        for entry in listed:
            path = Path(entry.path)
            if entry.is_symlink() and not self._is_inside(path):
                continue
            if entry.is_dir():
                is_skipped = entry.name in _SKIPPED_FOLDERS or _is_part(entry.name, module)
                if depth and not is_skipped:
                    yield from self._folder_logs(path, depth - 1, module or outer)
            elif path in self._formats:
                yield path, self._formats[path], ""
            elif module is None or (module is tensorboard and not tensorboard.is_event_file(path)):
                yield from self._file_logs(path)

    def _is_inside(self, link: Path) -> bool:
        """Whether a link leads to somewhere in the folder that is searched."""
        try:
            return link.resolve().is_relative_to(self._root.resolve())
        except (OSError, RuntimeError):
            return False

    def _list(self, folder: Path) -> list[os.DirEntry[str]]:
        """What is in a folder, links last; nothing the second time, or if it cannot be read."""
        try:
            status = folder.stat()
            with os.scandir(folder) as entries:
                listed = sorted(islice(entries, self._entries_left), key=_links_last)
        except OSError:
            return []
        if _identity(status) in self._visited:
            return []
        self._visited.add(_identity(status))
        self._entries_left -= len(listed)
        names = {each.name for each in listed}
        if any(own <= names for own in _OWN_FILES):
            return []
        # The arguments of a run are part of the log beside them.
        return [
            each
            for each in listed
            if not each.name.startswith(".") and each.name not in CONFIG_FILE_NAMES
        ]

    def _file_logs(self, path: Path, *, is_named: bool = False) -> Iterator[_Found]:
        """The runs in a file; a named file is one in any case."""
        suffix = _suffix(path)
        is_log_name = suffix in _LOG_SUFFIXES or tensorboard.is_event_file(path)
        if not is_named and not is_log_name and suffix not in _TEXT_SUFFIXES:
            return
        try:
            with open_log_file(path) as file:
                head = file.peek()[:HEAD_BYTES]
        except (OSError, ValueError) as error:
            if is_named or (is_log_name and suffix not in {".json", ".log", ".db"}):
                yield path, "", read_error_text(error)
            return
        is_text = is_named or suffix in console.LOG_SUFFIXES | _LINE_SUFFIXES
        readers = [
            m for m in self._readers.values() if m not in (console, number_columns) or is_text
        ]
        module = next((m for m in readers if m.can_read(path, head)), None)
        if module is None:
            if is_named or (suffix in _LINE_SUFFIXES and head.strip()):
                yield path, "", _refusal(path)
            return
        if module is trackio:
            for name in trackio.run_names(path):
                # Any other name is not part of a path.
                if (path / name).parent == path and (path / name).name == name:
                    yield path / name, module.FORMAT_NAME, ""
        elif is_named or module.FORMAT_NAME not in _PROBED_FORMATS or _holds_steps(path, head):
            yield path, module.FORMAT_NAME, ""


def _refusal(path: Path) -> str:
    try:
        open_log(path)
    except (OSError, ValueError) as error:
        return read_error_text(error)
    return ""


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _links_last(entry: os.DirEntry[str]) -> tuple[bool, str]:
    return entry.is_symlink(), entry.name


def _is_run_folder_safe(module: ModuleType, folder: Path) -> bool:
    try:
        return _is_run_folder(module, folder)
    except (OSError, ValueError):
        return False


def _is_part(name: str, module: ModuleType | None) -> bool:
    """Whether a folder of that name in the run of a reader belongs to that run."""
    if module is None:
        return False
    if module is trainer_state:
        return (
            name in _OUTPUT_FOLDERS or trainer_state.CHECKPOINT_FOLDER.fullmatch(name) is not None
        )
    return module is not tensorboard or tensorboard.is_part_name(name)


def _suffix(path: Path) -> str:
    """The suffix of the format, in lower case: before that of a compression.

    >>> _suffix(Path("log.jsonl.gz")), _suffix(Path("LOG"))
    ('.jsonl', '')
    """
    suffix = path.suffix.lower()
    return path.with_suffix("").suffix.lower() if suffix in _COMPRESSED_SUFFIXES else suffix


def _holds_steps(path: Path, head: bytes) -> bool:
    """Whether the first rows of a table or of JSON lines are those of a training."""
    if _SAMPLE_FILE.fullmatch(path.name) or any(key in head for key in _SAMPLE_KEYS):
        return False
    try:
        return any(map(_is_step, islice(open_log(path), MAX_PROBED_RECORDS)))
    except (OSError, ValueError):
        return False


def _is_step(record: Record) -> bool:
    return record.event in (Event.STEP, Event.EVAL) and (
        "global_step" in record.values or not SIGNALS.keys().isdisjoint(record.values)
    )


def _run_names(folder: Path, paths: list[Path]) -> Mapping[Path, str]:
    """A name for each log: of its path below the folder, without the suffix where that suffices."""
    names = {path: _run_name(_parts(folder, path, with_suffix=False)) for path in paths}
    for with_suffix in (True, False):
        taken = Counter(names.values())
        for path in paths:
            if taken[names[path]] > 1:
                name = _run_name(_parts(folder, path, with_suffix=True))
                names[path] = name if with_suffix else f"{name}-{path_digest(path)[:8]}"
    return names


def _parts(folder: Path, path: Path, *, with_suffix: bool) -> tuple[str, ...]:
    if path == folder:
        own = path.resolve()
        parts: tuple[str, ...] = (own.name,)
    else:
        own, parts = path, path.relative_to(folder if folder.is_dir() else folder.parent).parts
    if with_suffix or path.is_dir() or path.parent.is_file():
        return parts
    name = parts[-1]
    while (suffix := Path(name).suffix.lower()) in _COMPRESSED_SUFFIXES | _LOG_SUFFIXES:
        name = name[: -len(suffix)]
    return (*parts[:-1], name or parts[-1])


def _run_name(parts: tuple[str, ...]) -> str:
    """The parts as a run id.

    >>> _run_name(("runs", "My run (2)", "log"))
    'runs-My-run-2-log'
    """
    name = _INVALID_NAME_CHARACTERS.sub("-", "-".join(parts)).strip("-.")
    name = re.sub("-{2,}", "-", name)
    if len(name) > MAX_NAME_CHARS:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{name[:MAX_NAME_CHARS]}-{digest}"
    return name or "log"
