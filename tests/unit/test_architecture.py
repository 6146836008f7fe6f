"""Rules of the code that linters do not check; layers are contracts in pyproject.toml."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.config import plugins

ROOT = Path(__file__).parents[2]
CODE = [
    path
    for folder in ("sentinel", "scripts", "benchmarks", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
LOADS_CODE = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
BANNED_CALLS = {"eval", "exec", "yaml.load", "torch.load", "os.system", "os.popen"}
PICKLES_INSIDE = {
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list",
    "send_object_list", "recv_object_list",
}  # fmt: skip
LAST_NAMES = {name.rpartition(".")[2] for name in BANNED_CALLS | PICKLES_INSIDE}
FRAMEWORKS = {"torch", "transformers", "trl", "accelerate", "deepspeed", "lightning", "verl", "ray"}


def dangerous(tree: ast.AST) -> Iterator[str]:
    """Imports and calls that run code from data, or a shell."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [getattr(node, "module", None), *(alias.name for alias in node.names)]
            yield from (name for name in modules if name and name.split(".")[0] in LOADS_CODE)
        elif isinstance(node, ast.Call):
            is_named = getattr(node.func, "attr", getattr(node.func, "id", None)) in LAST_NAMES
            name = ast.unparse(node.func) if is_named else ""
            is_for_tensors = name == "torch.load" and "weights_only=True" in map(
                ast.unparse, node.keywords
            )
            if is_for_tensors:
                # Its unpickler makes tensors, numbers, strings and containers only.
                continue
            if name in BANNED_CALLS or name.rpartition(".")[2] in PICKLES_INSIDE:
                yield name
            for keyword in node.keywords:
                if keyword.arg == "shell" and ast.unparse(keyword.value) != "False":
                    yield "shell="


@pytest.mark.fault("X11")
def test_nothing_unpickles_evaluates_or_calls_a_shell():
    found = {str(path): [*dangerous(ast.parse(path.read_text()))] for path in CODE}

    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.fault("X11")
@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from marshal import loads",
        "eval(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=is_trusted)",
        "subprocess.run(text, shell=True)",
        "torch.distributed.all_gather_object(out, this)",
    ],
)
def test_dangerous_code_is_found(line):
    assert [*dangerous(ast.parse(line))] != []


def test_code_that_only_looks_dangerous_is_allowed():
    fine = "model.eval()\nyaml.safe_load(text)\nsubprocess.run([text], shell=False)"
    fine += "\ntorch.load(path, weights_only=True)"

    assert [*dangerous(ast.parse(fine))] == []


@pytest.mark.parametrize("package", ["detectors", "causes", "sinks"])
def test_a_plugin_file_holds_the_class_of_its_name_and_no_other(package):
    for name, kind in plugins.load_classes(package).items():
        module = inspect.getmodule(kind)
        public = [
            each.__name__
            for each in vars(module).values()
            if inspect.isclass(each)
            and each.__module__ == module.__name__
            and not each.__name__.startswith("_")
        ]
        assert public == [kind.__name__], name


@pytest.mark.parametrize("module", ["sentinel", "sentinel.client.session", "sentinel.client.api"])
def test_importing_the_client_loads_the_standard_library_only(module):
    script = (
        f"import sys; before = set(sys.modules); import {module};"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )

    printed = subprocess.check_output([sys.executable, "-c", script], text=True, timeout=240)

    assert set(printed.split()) - {"sentinel"} <= sys.stdlib_module_names


def test_no_framework_is_imported_when_a_module_is_loaded():
    """Callbacks are subclasses of a framework's classes; nothing else imports one at load time."""
    early = []
    for path in sorted((ROOT / "sentinel").rglob("*.py")):
        if "callbacks" in path.parts:
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None) or node.names[0].name]
                early += [(path.name, name) for name in names if name.split(".")[0] in FRAMEWORKS]
    assert early == []


def test_no_group_of_a_regular_expression_is_possessive():
    """Python 3.11.0 to 3.11.4, as in Debian 12, matches those wrongly (CPython issue 106052)."""
    group = re.compile(r"\)(?:[?*+]|\{+[0-9,]+\}+)\+")
    assert [
        path for path in (ROOT / "sentinel").rglob("*.py") if group.search(path.read_text())
    ] == []
