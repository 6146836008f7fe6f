"""Recognised: which of the readers a log is for, by what is in it."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from types import ModuleType

from sentinel.config.plugins import load_modules
from sentinel.readers.log_reader import LogReader

HEAD_BYTES = 4096


def open_log(path: Path) -> LogReader:
    """The reading of a file, or of the folder of a run.

    Of a file with several runs, `FILE/NAME` is one of them. Raises OSError, and ValueError that
    says what can be read.
    """
    part = ""
    if path.parent.is_file():
        path, part = path.parent, path.name
    head = b""
    if not path.is_dir():
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    readers = {n: m for n, m in load_modules("readers").items() if hasattr(m, "recognises")}
    for module in readers.values():
        if module.recognises(path, head):
            return _open_with(module, path, part)
    known = ", ".join(str(module.__doc__).split(":", 1)[0] for module in readers.values())
    wrong = "its form is not known" if head or path.is_dir() else "it is empty"
    raise ValueError(f"{wrong}; readable are: {known}")


def _open_with(module: ModuleType, path: Path, run_name: str) -> LogReader:
    if run_name and "part" not in signature(module.read).parameters:
        raise ValueError(f"{path.name} is a log of one run: there is no {run_name} in it")
    reading: LogReader = module.read(path, run_name) if run_name else module.read(path)
    return reading
