"""Who may import whom, and what: each rule a function from a tree of files to what breaks it.

`test_house.py` holds the rules against this repository, and against small trees that are wrong.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

FLOORS = {
    "record": 0, "sheet": 0, "signals": 0, "stats": 0, "discover": 0, "tally": 0,
    "catalogue": 0, "dialect": 0, "kl": 0, "about": 1, "address": 0, "layers": 0, "configured": 0,
    "wire": 1, "finding": 1, "said": 1, "combine": 1, "moment": 1, "hardware": 1, "samples": 1,
    "incident": 2, "diagnosis": 2, "detectors": 2, "causes": 2, "snapshot": 2, "align": 2,
    "levers": 0, "cases": 3, "engine": 3, "post": 3, "testing": 3,
    "hook": 4, "integrations": 4, "callbacks": 4, "sources": 4, "cluster": 4, "sinks": 4,
    "outlets": 4, "web": 4, "insight": 4, "generate": 4, "settings": 4,
    "fold": 4, "onset": 4, "demo": 4,
    "bootstrap": 5, "launch": 5, "judge": 5, "agent": 5, "checkup": 5, "story": 5, "sentinel": 5,
    "cli": 6, "__main__": 7,
}  # fmt: skip
"""Room, or file at the root of the package, to floor; `sentinel` is the package's own face."""

NEIGHBOURS = {
    "signals": {"catalogue"}, "dialect": {"signals"}, "kl": {"dialect", "signals"},
    "sheet": {"record"}, "about": {"wire"}, "combine": {"said"}, "moment": {"said"},
    "incident": {"diagnosis"}, "causes": {"diagnosis"}, "engine": {"cases"},
    "integrations": {"hook"}, "callbacks": {"hook"}, "web": {"outlets"}, "sentinel": {"hook"},
    "generate": {"outlets"}, "agent": {"judge"},
}  # fmt: skip
"""What a room may import besides the floors below it."""

EVERYBODY, EVERYBODYS_FLOOR = {"settings"}, 4
"""What the whole of floor 4 may import."""

DETECTORS_SEE = {"detectors", "finding", "kl", "record", "signals", "stats"}

TRAINER = {"hook", "integrations", "callbacks", "wire", "sentinel"}
"""What is loaded into the trainer: the standard library only, the framework inside functions."""

FRAMEWORKS = {
    "torch", "transformers", "trl", "accelerate", "deepspeed", "lightning", "pytorch_lightning",
    "verl", "ray",
}  # fmt: skip
"""The trainer's own libraries, which we may use where they already are, and never load."""

SLOW_TO_LOAD = {"ruptures", "pyarrow"}
"""Seconds of import: inside the function that needs it."""

STANDARD = sys.stdlib_module_names | {"tomllib", "tomli"}
"""The standard library of any Python we run on, and what brings a part of it to 3.10."""

LOADS_CODE = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
BANNED_CALLS = {"eval", "exec", "yaml.load", "torch.load", "os.system", "os.popen"}
PICKLES_INSIDE = {
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list",
    "send_object_list", "recv_object_list",
}  # fmt: skip
"""Collectives of torch.distributed that carry pickles."""


def parse(path: Path) -> ast.Module:
    return _tree(path.read_text())


_tree = cache(ast.parse)


def python_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if ".venv" not in path.parts)


def room_of(package: Path, path: Path) -> str:
    """The first name under the package: a room, or a file at its root."""
    first = path.relative_to(package).parts[0].removesuffix(".py")
    return "sentinel" if first == "__init__" else first


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything imported, `from a import b` as `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            home = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{home}.{alias.name}") for alias in node.names)


def outside_functions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The imports that run when the file is loaded."""
    inside = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for line, _ in imports(node)
    }
    return ((line, name) for line, name in imports(tree) if line not in inside)


def unknown_rooms(package: Path) -> list[str]:
    rooms = {room_of(package, path) for path in python_files(package)}
    return [
        f"{room} has no floor: give it one in FLOORS of tests/house.py, above all that it imports"
        for room in sorted(rooms - FLOORS.keys())
    ]


def wrong_floors(package: Path) -> list[str]:
    """Imports that go up, sideways to a stranger, or by a relative name."""
    return [
        f"{path.relative_to(package)}:{line} imports {name}: {verdict}"
        for path in python_files(package)
        for line, name in imports(parse(path))
        if (verdict := _floor_verdict(package, room_of(package, path), name))
    ]


def _floor_verdict(package: Path, room: str, name: str) -> str:
    if name.startswith("."):
        return "write the full name"
    words = name.split(".")
    if words[0] != "sentinel" or name == "sentinel.__version__":
        return ""
    there = words[1] if len(words) > 1 else "sentinel"
    ours = there in FLOORS or (package / there).is_dir() or (package / f"{there}.py").is_file()
    if not ours:
        there = "sentinel"
    mine, its = FLOORS.get(room, 99), FLOORS.get(there, 99)
    known = (
        {room} | NEIGHBOURS.get(room, set()) | (EVERYBODY if mine == EVERYBODYS_FLOOR else set())
    )
    if there in known:
        return ""
    if room == "detectors" and there not in DETECTORS_SEE:
        return f"a detector sees only {', '.join(sorted(DETECTORS_SEE))}"
    if room == "sentinel":
        return "the package's face shows the hook and nothing else"
    return "" if its < mine else f"{room} is on floor {mine}, {there} on floor {its}"


def circles(package: Path) -> list[str]:
    """Files of ours that need each other to be loaded."""
    named = {_dotted(package, path): path for path in python_files(package)}
    needs = {
        name: {
            there
            for _, target in outside_functions(parse(path))
            for there in (target, target.rpartition(".")[0])
            if there in named and there != name
        }
        for name, path in named.items()
    }
    return [f"{name} needs itself to be loaded" for name in needs if name in _reach(needs, name)]


def _dotted(package: Path, path: Path) -> str:
    return ".".join(path.relative_to(package.parent).with_suffix("").parts)


def _reach(needs: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = [*needs[start]]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo.extend(needs[name])
    return seen


def wrong_libraries(package: Path, declared: set[str]) -> list[str]:
    """Third-party imports where they must not be; `declared` are the import names we depend on."""
    return [
        f"{path.relative_to(package)}:{line} imports {name}: {verdict}"
        for path in python_files(package)
        for line, name in imports(parse(path))
        if (top := name.split(".")[0]) not in STANDARD | {"sentinel", ""}
        if (verdict := _library_verdict(package, path, line, top, declared))
    ]


def _library_verdict(package: Path, path: Path, line: int, top: str, declared: set[str]) -> str:
    room = room_of(package, path)
    early = any(line == at for at, _ in outside_functions(parse(path)))
    if top in FRAMEWORKS:
        if room not in {"hook", "integrations", "callbacks", "cluster"}:
            return "only the hook, the integrations and the cluster know the framework"
        # A callback is imported for the framework that it is for.
        early = early and room != "callbacks"
        return "inside the function that needs it: sentinel loads no framework" if early else ""
    if room in TRAINER:
        return "the trainer's side uses the standard library only"
    if FLOORS.get(room, 99) <= FLOORS["engine"] and not (room == "stats" and top == "numpy"):
        return "floors 0 to 3 use the standard library only"
    if top not in declared:
        return "not among the dependencies in pyproject.toml"
    return (
        "inside the function that needs it: slow to load" if early and top in SLOW_TO_LOAD else ""
    )


def dangerous(folder: Path) -> list[str]:
    """Calls and imports that run what somebody else wrote, or a shell."""
    found = []
    for path in python_files(folder):
        tree = parse(path)
        hits = [(at, name) for at, name in imports(tree) if name.split(".")[0] in LOADS_CODE]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                hits += [(node.lineno, name) for name in _danger(node)]
        found += [f"{path.relative_to(folder)}:{line} uses {name}" for line, name in hits]
    return found


def _danger(call: ast.Call) -> Iterator[str]:
    name = ast.unparse(call.func)
    if name in BANNED_CALLS or name.rpartition(".")[2] in PICKLES_INSIDE:
        yield name
    for keyword in call.keywords:
        if keyword.arg == "shell" and not (
            isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        ):
            yield "shell="
