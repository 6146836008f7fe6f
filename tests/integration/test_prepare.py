"""Preparing `.venv`: the torch that is there is used, and the pins follow it."""

import shutil
import subprocess
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

BORROW = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import prepare
place = Path(sys.argv[2])
torch = prepare.borrow(place, place / "bin" / "python")
print(torch.version if torch else "none")
print(prepare.constrain(place, torch))
"""


def environment(place: Path) -> Path:
    """An empty virtual environment; returns the folder its packages go to."""
    venv.create(place, symlinks=True)
    return next((place / "lib").glob("python3*/site-packages"))


def install(packages: Path, name: str, version: str, code: str) -> None:
    """Lay down a package as pip would."""
    (packages / name).mkdir()
    (packages / name / "__init__.py").write_text(code)
    about = packages / f"{name}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def borrow(active: Path, place: Path) -> tuple[str, Path]:
    """Prepare `place` from the Python of `active`: the version borrowed, and the pins chosen."""
    asked = [active / "bin" / "python", "-c", BORROW, ROOT / "scripts", place]
    told = subprocess.run(asked, capture_output=True, text=True, check=True)
    *_, version, pins = told.stdout.splitlines()
    return version, Path(pins)


def imported(place: Path) -> str:
    """What `import torch` gives there: its version, or the kind of error."""
    ask = "try:\n import torch; print(torch.__version__)\nexcept ImportError as e: print(type(e))"
    asked = [place / "bin" / "python", "-c", ask]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def active(tmp_path):
    """A virtual environment standing for the active Python, with a torch and a numpy of its own."""
    packages = environment(tmp_path / "active")
    install(packages, "torch", "2.5.1+cu121", "__version__ = '2.5.1+cu121'\n")
    install(packages, "numpy", "1.26.4", "")
    return tmp_path / "active"


def test_the_torch_of_the_active_python_is_used(active, tmp_path):
    """Even where the active Python is itself a virtual environment."""
    environment(tmp_path / "ours")
    version, _ = borrow(active, tmp_path / "ours")

    assert version == imported(tmp_path / "ours") == "2.5.1+cu121"


def test_what_lies_beside_a_borrowed_torch_is_left_as_it_is(active, tmp_path):
    """Our pins would move its numpy under it, or fetch another torch."""
    environment(tmp_path / "ours")
    _, pins = borrow(active, tmp_path / "ours")
    lines = pins.read_text().splitlines()

    assert "torch==2.5.1+cu121" in lines
    assert not [line for line in lines if line.startswith(("torch==2.13", "numpy"))]
    assert [line for line in lines if line.startswith("pytest==")]


def test_a_torch_that_does_not_import_is_not_used(active, tmp_path):
    packages = environment(tmp_path / "ours")
    (next(active.glob("lib/*/site-packages")) / "torch" / "__init__.py").write_text("import gone\n")
    version, pins = borrow(active, tmp_path / "ours")

    assert (version, pins) == ("none", ROOT / "constraints.txt")
    assert not list(packages.glob("*.pth"))


def test_a_torch_that_has_gone_is_forgotten(active, tmp_path):
    environment(tmp_path / "ours")
    borrow(active, tmp_path / "ours")
    shutil.rmtree(next(active.glob("lib/*/site-packages/torch")))
    borrow(active, tmp_path / "ours")

    assert imported(tmp_path / "ours") == "<class 'ModuleNotFoundError'>"


def test_torch_is_pinned_exactly():
    """Anything looser fetches the newest CUDA build."""
    pins = (ROOT / "constraints.txt").read_text().splitlines()

    assert [line for line in pins if line.startswith("torch")] == ["torch==2.13.0"]


@pytest.mark.parametrize("name", ["constraints.txt", "pyproject.toml", "Makefile", ".ci/run"])
def test_where_packages_come_from_is_the_machine_s_business(name):
    text = (ROOT / name).read_text()

    assert [word for word in ("index-url", "find-links", "pypi.") if word in text] == []
