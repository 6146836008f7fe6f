"""Recognised: which of the readers a log is for, by what is in it."""

from __future__ import annotations

from pathlib import Path

from sentinel.discover import modules
from sentinel.sources.reading import Reading

HEAD_BYTES = 4096


def recognised(path: Path) -> Reading:
    """The reading of a file, or of the folder of a run.

    Raises OSError, and ValueError that says what can be read.
    """
    head = b""
    if not path.is_dir():
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    readers = {n: m for n, m in modules("sources").items() if hasattr(m, "recognises")}
    for module in readers.values():
        if module.recognises(path, head):
            reading: Reading = module.read(path)
            return reading
    known = ", ".join(str(module.__doc__).split(":", 1)[0] for module in readers.values())
    wrong = "its form is not known" if head or path.is_dir() else "it is empty"
    raise ValueError(f"{wrong}; readable are: {known}")
