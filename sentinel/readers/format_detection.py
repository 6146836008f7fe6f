"""Recognised: which of the readers a log is for, by what is in it."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from types import ModuleType

from sentinel.config.plugins import modules
from sentinel.readers.log_reader import Reading

HEAD_BYTES = 4096


def recognised(path: Path) -> Reading:
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
    readers = {n: m for n, m in modules("readers").items() if hasattr(m, "recognises")}
    for module in readers.values():
        if module.recognises(path, head):
            return _read(module, path, part)
    known = ", ".join(str(module.__doc__).split(":", 1)[0] for module in readers.values())
    wrong = "its form is not known" if head or path.is_dir() else "it is empty"
    raise ValueError(f"{wrong}; readable are: {known}")


def _read(module: ModuleType, path: Path, part: str) -> Reading:
    if part and "part" not in signature(module.read).parameters:
        raise ValueError(f"{path.name} is a log of one run: there is no {part} in it")
    reading: Reading = module.read(path, part) if part else module.read(path)
    return reading
