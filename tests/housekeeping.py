"""How files are named and how large things get: rules of the same form as those of `house.py`."""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

from house import parse, python_files

VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "base", "core", "manager", "stuff"}
MOST_LINES = 300
MOST_METHODS = 10
MEDIAN_FUNCTION, LONG_FUNCTION = 8, 25


def too_long(folder: Path) -> list[str]:
    counted = {path: len(path.read_text().splitlines()) for path in python_files(folder)}
    return [
        f"{path.relative_to(folder)} has {lines} lines; at most {MOST_LINES}: split it by idea"
        for path, lines in counted.items()
        if lines > MOST_LINES
    ]


def vague_names(folder: Path) -> list[str]:
    return [
        f"{path.relative_to(folder)}: name it for what it does"
        for path in sorted(folder.rglob("*"))
        if path.is_dir() or path.suffix == ".py"
        if path.stem.strip("_") in VAGUE and "__pycache__" not in path.parts
    ]


def talking_inits(package: Path) -> list[str]:
    """Rooms whose `__init__.py` holds more than a docstring, or none at all."""
    return [
        f"{path.relative_to(package)} must be a docstring and nothing else"
        for path in python_files(package)
        if path.name == "__init__.py" and path.parent != package
        if len(parse(path).body) != 1 or not ast.get_docstring(parse(path))
    ]


def wide_classes(package: Path) -> list[str]:
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return [
        f"{path.relative_to(package)}:{node.lineno} {node.name} has {count} public methods"
        for path in python_files(package)
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef)
        if (
            count := sum(isinstance(f, functions) and not f.name.startswith("_") for f in node.body)
        )
        > MOST_METHODS
    ]


def undocumented(package: Path) -> list[str]:
    """Files, public classes and public functions that do not say what they are."""
    found = []
    for path in python_files(package):
        tree = parse(path)
        spoken = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        public = [n for n in tree.body if isinstance(n, spoken) and not n.name.startswith("_")]
        silent = [node.name for node in public if not ast.get_docstring(node)]
        # A file that holds one class of its own name speaks for it.
        silent = [name for name in silent if name.lower() != path.stem.replace("_", "")]
        if not ast.get_docstring(tree):
            silent.insert(0, "the file")
        found += [f"{path.relative_to(package)}: {name} has no docstring" for name in silent]
    return found


def function_lengths(package: Path) -> list[int]:
    """Lines of each function, its docstring not counted."""
    lengths = []
    for path in python_files(package):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                skip = bool(ast.get_docstring(node)) and len(node.body) > 1
                first = node.body[0].end_lineno + 1 if skip else node.lineno
                lengths.append(node.end_lineno - first + 1)
    return lengths


def long_functions(package: Path) -> list[str]:
    lengths = function_lengths(package)
    median, ninth = statistics.median(lengths), statistics.quantiles(lengths, n=10)[-1]
    if median <= MEDIAN_FUNCTION and ninth <= LONG_FUNCTION:
        return []
    have = f"functions have {median:.0f} lines (median), {ninth:.0f} (ninth decile)"
    return [f"{have}: at most {MEDIAN_FUNCTION} and {LONG_FUNCTION}"]
