"""Finds the reader for a log by the log's content.

A reader is a module of this package with three names: `FORMAT_NAME`, its name in messages;
`can_read(path, head)`, whether it reads this file, whose first HEAD_BYTES bytes are `head`, or this
directory; and `read(path)` or `read(path, run_name)`, which returns a LogReader. The first reader
that can read a log is used, in alphabetical order of the modules, but for one that is named as the
suffix of the file, which is tried first; one with `IS_FALLBACK` is tried after all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from types import ModuleType

from sentinel.config.plugins import load_module, module_names
from sentinel.readers.log_file import open_binary_log, open_log_file, uncompressed_name
from sentinel.readers.log_reader import HEAD_BYTES, LogReader


def load_readers() -> dict[str, ModuleType]:
    """Name to module of every reader, in alphabetical order."""
    return dict(_each_reader())


def _each_reader(first: str = "") -> Iterator[tuple[str, ModuleType]]:
    """Name and module of each reader, that named `first` first; imported when it is reached."""
    fallbacks = []
    for name in sorted(module_names("readers"), key=lambda name: name != first):
        module = load_module("readers", name)
        if getattr(module, "IS_FALLBACK", False):
            fallbacks.append((name, module))
        elif hasattr(module, "FORMAT_NAME"):
            yield name, module
    yield from fallbacks


def open_log(path: Path, *, is_live: bool = False) -> LogReader:
    """The reader of a file, or of the directory of a run; see `find_reader`."""
    module, path, run_name = find_reader(path, is_live=is_live)
    return open_with(module, path, run_name)


def find_reader(path: Path, *, is_live: bool = False) -> tuple[ModuleType, Path, str]:
    """The reader's module for a log, the path of its file or directory, and the name of the run.

    `FILE/NAME` is one run of a file with several. `is_live` is whether it will be followed: then a
    text without a line of metrics is one that may get some. Raises OSError, and ValueError with the
    reason or the readable formats.
    """
    run_name = ""
    if path.parent.is_file():
        path, run_name = path.parent, path.name
    head = b""
    if not path.is_dir():
        with open_log_file(path, is_live=is_live) as file:
            head = file.peek()[:HEAD_BYTES]
    for _, module in _each_reader(uncompressed_name(path).suffix.removeprefix(".")):
        if module.can_read(path, head):
            return module, path, run_name
    console = load_module("readers", "console")
    if is_live and console.may_become_log(path, head):
        return console, path, run_name
    if head:
        # Content in a binary format is not found in a compressed file.
        open_binary_log(path).close()
    formats = ", ".join(module.FORMAT_NAME for module in load_readers().values())
    problem = "its format is not known" if head or path.is_dir() else "it is empty"
    if console.is_text(head):
        problem += ": no two of its lines have the same metrics, at different steps"
    raise ValueError(f"{problem}; readable formats: {formats}")


def open_with(module: ModuleType, path: Path, run_name: str) -> LogReader:
    """The reader of what `find_reader` found. Raises ValueError if the log holds no such run."""
    if run_name and "run_name" not in signature(module.read).parameters:
        raise ValueError(f"{path.name} is a log of one run: it holds no run {run_name!r}")
    reader: LogReader = module.read(path, run_name) if run_name else module.read(path)
    return reader
