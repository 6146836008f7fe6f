"""The house keeps its rules; and each rule can tell a house that does not."""

import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import house
import housekeeping
import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "sentinel"
OURS = [
    ROOT / name for name in ("sentinel", "tests", "scripts", "benchmarks", "examples", "deploy")
]


def plain(project: str) -> str:
    return re.match(r"[\w.-]+", project)[0].lower().replace("_", "-")


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def import_names(*requirements: str) -> set[str]:
    """What these requirements are imported as; those not installed here, by their own name."""
    wanted = {plain(requirement) for requirement in requirements}
    found = packages_distributions().items()
    names = {name for name, projects in found if wanted & set(map(plain, projects))}
    return names | {project.replace("-", "_") for project in wanted}


def allowed() -> set[str]:
    """The runtime requirements, and what single files of ours can do without."""
    return import_names(*project()["project"]["dependencies"], "grafana-foundation-sdk", "pyarrow")


RULES = {
    "every room has a floor": lambda: house.unknown_rooms(PACKAGE),
    "nobody imports upward or sideways": lambda: house.wrong_floors(PACKAGE),
    "no file needs itself to be loaded": lambda: house.circles(PACKAGE),
    "libraries stay where they belong": lambda: house.wrong_libraries(PACKAGE, allowed()),
    "rooms say what they are and no more": lambda: housekeeping.talking_inits(PACKAGE),
    "classes are narrow": lambda: housekeeping.wide_classes(PACKAGE),
    "public names are documented": lambda: housekeeping.undocumented(PACKAGE),
    "functions are short": lambda: housekeeping.long_functions(PACKAGE),
    "nothing runs what others wrote": lambda: [
        line for folder in OURS if folder.name != "tests" for line in house.dangerous(folder)
    ],
    "files are short": lambda: [line for folder in OURS for line in housekeeping.too_long(folder)],
    "names are plain": lambda: [
        line for folder in OURS for line in housekeeping.vague_names(folder)
    ],
}


@pytest.mark.parametrize("rule", RULES)
def test_the_house_keeps(rule):
    assert RULES[rule]() == []


@pytest.fixture
def built(tmp_path):
    """Builds a package `sentinel` of the files given, and returns its folder."""

    def build(**files: str) -> Path:
        package = tmp_path / "sentinel"
        for name, text in ({"__init__": '"""Face."""\n'} | files).items():
            path = package / f"{name.replace('__in__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return package

    return build


UPWARD = {
    "a lower floor imports a higher": {"record": "import sentinel.engine", "engine": ""},
    "a function's import is an import": {
        "record": "def late():\n    from sentinel.engine import Engine",
        "engine": "",
    },
    "one name of the package": {"record": "from sentinel import engine", "engine": ""},
    "strangers on floor 4": {
        "sinks__in__slack": "from sentinel.outlets.courier import Courier",
        "outlets__in__courier": "",
    },
    "the hook knows no integration": {
        "hook__in__monitor": "from sentinel.integrations import trl",
        "integrations__in__trl": "",
    },
    "a detector imports a statistic's neighbour": {
        "detectors__in__kl": "import sentinel.wire.ring",
        "wire__in__ring": "",
    },
    "a relative name": {"stats__in__ewma": "from . import cusum", "stats__in__cusum": ""},
    "the agent uses the public face": {"agent": "from sentinel import log"},
    "the face knows the agent": {"__init__": "from sentinel.agent import Agent", "agent": ""},
}


@pytest.mark.parametrize("case", UPWARD)
def test_an_import_against_the_floors_is_told(built, case):
    assert len(house.wrong_floors(built(**UPWARD[case]))) == 1


def test_imports_downward_and_of_named_neighbours_are_fine(built):
    package = built(
        __init__="def log():\n    import sentinel.hook.monitor",
        agent="from sentinel import __version__\nfrom sentinel.sinks.slack import Slack",
        sinks__in__slack="from sentinel.settings import Settings\nimport json",
        settings="",
        integrations__in__trl="from sentinel.hook.monitor import hook",
        hook__in__monitor="from sentinel.record import Record",
        record="",
    )
    assert house.wrong_floors(package) == []


def test_a_new_room_needs_a_floor_and_is_told_where(built):
    (told,) = house.unknown_rooms(built(cellar__in__wine="", record=""))
    assert told.startswith("cellar has no floor: give it one in FLOORS")


def test_two_files_that_need_each_other_are_told(built):
    package = built(
        stats__in__a="from sentinel.stats.b import B", stats__in__b="import sentinel.stats.a"
    )
    assert len(house.circles(package)) == 2


def test_a_late_import_breaks_a_circle(built):
    late = "def late():\n    import sentinel.stats.a"
    assert house.circles(built(stats__in__a="import sentinel.stats.b", stats__in__b=late)) == []


LIBRARIES = {
    "numpy in the hook": {"hook__in__monitor": "def f():\n    import numpy"},
    "torch when the hook is loaded": {"hook__in__monitor": "import torch"},
    "torch in a sink": {"sinks__in__slack": "def f():\n    import torch"},
    "requests in the engine": {"engine": "import requests"},
    "a library nobody declared": {"sinks__in__slack": "import slack_sdk"},
    "ruptures when loaded": {"insight__in__onset": "import ruptures"},
}


@pytest.mark.parametrize("case", LIBRARIES)
def test_a_library_in_the_wrong_place_is_told(built, case):
    known = {"numpy", "requests", "ruptures", "torch"}
    assert len(house.wrong_libraries(built(**LIBRARIES[case]), known)) == 1


def test_a_library_in_its_place_is_fine(built):
    package = built(
        hook__in__monitor="import time\ndef f():\n    import torch",
        stats__in__ewma="import numpy",
        outlets__in__courier="import requests",
        insight__in__onset="def f():\n    import ruptures",
    )
    assert house.wrong_libraries(package, {"numpy", "requests", "ruptures"}) == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from marshal import loads",
        "import shelve as shelf",
        "eval(text)",
        "exec(text)",
        "yaml.load(text)",
        "torch.load(path)",
        "subprocess.run(text, shell=True)",
        "subprocess.run(text, shell=asked)",
        "torch.distributed.all_gather_object(out, this)",
        "os.system(text)",
    ],
)
def test_what_runs_the_words_of_others_is_told(built, line):
    assert len(house.dangerous(built(agent=line))) == 1


def test_look_alikes_of_dangerous_calls_are_fine(built):
    fine = "model.eval()\nyaml.safe_load(text)\nsubprocess.run([text], shell=False)\nphase('eval')"
    assert house.dangerous(built(agent=fine)) == []


def test_the_301st_line_is_one_too_many(built):
    assert housekeeping.too_long(built(agent="x = 1\n" * 300)) == []
    assert len(housekeeping.too_long(built(engine="x = 1\n" * 301))) == 1


@pytest.mark.parametrize(
    "name", ["utils", "wire__in__helpers", "common__in__ring", "_base", "core"]
)
def test_a_name_that_says_nothing_is_told(built, name):
    assert len(housekeeping.vague_names(built(**{name: ""}))) == 1


def test_an_init_that_does_something_is_told(built):
    package = built(wire__in____init__='"""Wire."""\nimport os', stats__in____init__="")
    assert len(housekeeping.talking_inits(package)) == 2


def test_an_eleventh_public_method_is_told(built):
    def wide(count: int) -> str:
        methods = "".join(f"    def m{n}(self): ...\n" for n in range(count))
        return f"class Wide:\n    def _own(self): ...\n{methods}"

    assert housekeeping.wide_classes(built(engine=wide(10))) == []
    assert len(housekeeping.wide_classes(built(agent=wide(11)))) == 1


def test_a_public_name_without_a_docstring_is_told(built):
    package = built(record='"""Record."""\nclass Event: ...\ndef make(): ...\ndef _own(): ...')
    assert len(housekeeping.undocumented(package)) == 2
    assert housekeeping.undocumented(built(record='"""What."""\nclass Record: ...')) == []
    assert housekeeping.undocumented(built(tally="x = 1")) == [
        "tally.py: the file has no docstring"
    ]


def test_long_functions_are_told_and_docstrings_do_not_count(built):
    def function(lines: int) -> str:
        return f'def f():\n    """{"Say." + chr(10) * 40}"""\n' + "    x = 1\n" * lines

    assert housekeeping.long_functions(built(record=function(8), tally=function(8))) == []
    assert len(housekeeping.long_functions(built(engine=function(30), agent=function(30)))) == 1


def test_importing_sentinel_loads_the_standard_library_only():
    """The trainer pays for nothing it did not ask for."""
    ask = (
        "import sys; before = set(sys.modules); import sentinel;"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    told = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    loaded = set(told.stdout.split())

    assert "sentinel" in loaded
    assert loaded - {"sentinel"} <= sys.stdlib_module_names
