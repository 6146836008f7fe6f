"""One script of a page's JavaScript modules, for a report that is a single file.

The modules keep to a subset of the language that this joins without a parser: imports are
`import { a, b } from "./file.js";`, exports stand before a declaration, and no two modules have a
top-level name in common. `bundle` raises ValueError for anything else.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from importlib.resources import files

_IMPORT = re.compile(
    r'^import (?:\{([^}]*)\} from )?"(\.{1,2}/[\w./-]+\.js)";[ \t]*$', re.MULTILINE
)
_EXPORT = re.compile(r"^export (?=(?:async )?function\b|(?:const|let|class)\b)", re.MULTILINE)
_OTHER_MODULE_SYNTAX = re.compile(r"^\s*(?:import|export)\b.*$|\bimport\s*[(.]", re.MULTILINE)
_TOP_LEVEL_NAME = re.compile(
    r"^(?:(?:async )?function\*? ?|class |const |let |var )(\w+|\{[^}]*\}|\[[^\]]*\])", re.MULTILINE
)
_ENDS_OF_SCRIPT = re.compile(r"<(?=/script|!--|script)", re.IGNORECASE)
"""What ends a script inside HTML, or changes how its end is found."""


def read_static(name: str) -> str:
    """The text of a static file of the page. Raises OSError if there is none."""
    return files("sentinel.web").joinpath("static", *name.split("/")).read_text(encoding="utf-8")


def bundle(entry: str, read: Callable[[str], str] = read_static) -> str:
    """The module `entry` with all that it imports, as one script without imports.

    Modules come after those that they import. Raises ValueError for two equal top-level names, or
    module syntax that is not joined; OSError if a module is missing.
    """
    parts: list[str] = []
    owners: dict[str, str] = {}
    for name in _in_order(entry, read):
        text = _EXPORT.sub("", _IMPORT.sub("", read(name)))
        if other := _OTHER_MODULE_SYNTAX.search(text):
            raise ValueError(f"{name}: cannot be bundled: {other[0].strip()}")
        for found in _top_level_names(text):
            if found in owners:
                raise ValueError(f"{name}: the name {found} is also in {owners[found]}")
            owners[found] = name
        parts.append(f"// {name}\n{text.strip()}\n")
    joined = "\n".join(parts)
    return f'(() => {{\n"use strict";\n{_ENDS_OF_SCRIPT.sub(_escape, joined)}}})();\n'


def _escape(_found: re.Match[str]) -> str:
    return r"\x3C"


def _in_order(entry: str, read: Callable[[str], str]) -> list[str]:
    """The modules, each after those that it imports."""
    ordered: list[str] = []
    seen: set[str] = set()

    def visit(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        for names, path in _IMPORT.findall(read(name)):
            if re.search(r"\bas\b", names):
                raise ValueError(f"{name}: cannot be bundled: an import under another name")
            visit(posixpath.normpath(posixpath.join(posixpath.dirname(name), path)))
        ordered.append(name)

    visit(entry)
    return ordered


def _top_level_names(text: str) -> Iterator[str]:
    for found in _TOP_LEVEL_NAME.findall(text):
        # Of `const { a, b: c } = ...`, the names are a and c.
        for part in found.strip("{}[]").split(","):
            name = part.partition("=")[0].rpartition(":")[2].strip().removeprefix("...")
            if name:
                yield name
