"""Prepare `.venv`: what `make demo` and `make test` run on, from a bare clone.

    python3 scripts/prepare.py demo     sentinel, what it runs on, and torch
    python3 scripts/prepare.py test     the same, and what checks it

Does nothing when `.venv` already holds that for this pyproject.toml and constraints.txt. Where the
Python that runs this script imports torch, `.venv` borrows it instead of fetching it again.
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
MAKER = ".made-by"

# What the running interpreter would say of torch, asked in a process of its own: importing torch
# here would be slow, and a broken torch may end the process.
ASK = """
import importlib.metadata, json, os, sys, sysconfig
import torch
own = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
own |= {os.path.join(path, "lib-dynload") for path in own}
places = [path for path in sys.path if os.path.isdir(path) and os.path.realpath(path) not in own]
installed = {found.metadata["Name"] for found in importlib.metadata.distributions()}
print(json.dumps({"version": torch.__version__, "places": places,
                  "installed": sorted(filter(None, installed))}))
"""


class Torch(NamedTuple):
    """The torch of the running interpreter: where it lies, and what is installed beside it."""

    version: str
    places: list[str]
    installed: list[str]


def main() -> None:
    """Bring `.venv` up to date with what the goal needs."""
    goal = sys.argv[1] if len(sys.argv) > 1 else "demo"
    if sys.version_info < (3, 11):
        stop(
            f"sentinel needs Python 3.11 or newer, and {sys.executable} is {version()}.",
            f"Name another one: make PYTHON=python3.12 {goal}",
        )
    venv = ROOT / ".venv"
    if Path(sys.prefix).resolve() == venv.resolve():
        step_outside(venv)
    with (ROOT / "pyproject.toml").open() as lock:
        # Two makes at once would install over each other.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done(venv, goal):
            prepare(venv, goal)


def step_outside(venv: Path) -> None:
    """Go on with the Python that made `.venv`, which is active: it cannot be made from within."""
    maker = venv / MAKER
    outside = maker.read_text() if maker.is_file() else ""
    if not Path(outside).is_file():
        stop("make cannot prepare .venv while it is active.", "Leave it (deactivate), then again.")
    os.execv(outside, [outside, *sys.argv])


def prepare(venv: Path, goal: str) -> None:
    """Install what is missing for the goal, and remember what it was made from."""
    python = venv / "bin" / "python"
    if not works(python):
        create(venv)
    (venv / MAKER).write_text(sys.executable)
    torch = borrow(venv, python)
    constraints = constrain(venv, torch)
    if torch is None and not has_torch(python):
        say("Fetching torch, once: about 200 MB, or several GB where only a CUDA build is found.")
    if torch is None:
        pip(python, constraints, "torch")
    say("Installing sentinel and what it runs on.")
    pip(python, constraints, "--editable", str(ROOT))
    if goal == "test":
        say("Installing what checks it.")
        # Older ones do not know dependency groups.
        pip(python, constraints, "pip>=25.1")
        pip(python, constraints, "--group", f"{ROOT / 'pyproject.toml'}:dev")
        frameworks(python, constraints)
    (venv / f".prepared-{goal}").write_text(digest())


def frameworks(python: Path, constraints: Path) -> None:
    """What is tapped, as far as it can be had: the tests of the rest are skipped, with a word."""
    say("Installing the frameworks that it is tested with, once: about 1 GB.")
    project = ROOT / "pyproject.toml"
    whole = installed(python, constraints, "--group", f"{project}:frameworks")
    if not (whole and installed(python, constraints, "--no-deps", "--group", f"{project}:verl")):
        say("Not all of them could be: the tests of frameworks that are missing are skipped.")


def done(venv: Path, goal: str) -> bool:
    """Whether `.venv` holds this goal; what the tests need includes what the demo needs."""
    goals = {"demo": ("demo", "test"), "test": ("test",)}[goal]
    marks = [venv / f".prepared-{name}" for name in goals]
    return any(mark.is_file() and mark.read_text() == digest() for mark in marks)


def digest() -> str:
    """What an installation depends on; it changes when the clone is moved, too."""
    parts = [str(ROOT).encode(), version().encode()]
    parts += [(ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def version() -> str:
    """Version of the running interpreter."""
    return ".".join(map(str, sys.version_info[:3]))


def works(python: Path) -> bool:
    """Whether an earlier, perhaps interrupted, run left an environment of this Python, with pip."""
    if not python.exists():
        return False
    ask = "import pip, sys; print(*sys.version_info[:3], sep='.')"
    return run([str(python), "-c", ask]).stdout.strip() == version()


def has_torch(python: Path) -> bool:
    """Whether torch need not be fetched, though pip will still hold it against the pins."""
    ask = "import importlib.metadata; importlib.metadata.version('torch')"
    return run([str(python), "-c", ask]).returncode == 0


def create(venv: Path) -> None:
    """Make an empty environment; says what to install where this Python cannot."""
    say(f"Creating .venv with Python {version()}.")
    made = run([sys.executable, "-m", "venv", "--clear", str(venv)])
    if made.returncode != 0:
        stop(
            f"{sys.executable} cannot make a virtual environment:",
            (made.stdout + made.stderr).strip(),
            "Debian and Ubuntu keep that apart: apt-get install python3-venv",
        )


def borrow(venv: Path, python: Path) -> Torch | None:
    """Let `.venv` see the running interpreter's torch; None where it has none that works.

    A file of paths, because the running interpreter may itself live in a virtual environment:
    --system-site-packages would show the one beneath it.
    """
    paths = next((venv / "lib").glob("python3*/site-packages")) / "active_python.pth"
    paths.unlink(missing_ok=True)
    answer = run([sys.executable, "-c", ASK], cwd="/")
    if answer.returncode != 0:
        return None
    torch = Torch(**json.loads(answer.stdout.splitlines()[-1]))
    paths.write_text("\n".join(torch.places) + "\n")
    if run([str(python), "-c", "import torch"], cwd="/").returncode != 0:
        paths.unlink()
        return None
    say(f"Using torch {torch.version} of {sys.prefix}.")
    return torch


def constrain(venv: Path, torch: Torch | None) -> Path:
    """The pins to install by: where torch is borrowed, what is there beside it stays as it is."""
    pins = ROOT / "constraints.txt"
    if torch is None:
        return pins
    there = {plain(name) for name in torch.installed}
    lines = [line for line in pins.read_text().splitlines() if plain(line) not in there]
    own = venv / "constraints.txt"
    own.write_text("\n".join([*lines, f"torch=={torch.version}"]) + "\n")
    return own


def plain(requirement: str) -> str:
    """Normal form of the project's name in a line such as `PyYAML==6.0`."""
    name = re.split(r"[=<>;\[ ]", requirement.strip(), maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def pip(python: Path, constraints: Path, *what: str) -> None:
    """Install, or stop with what a person can do about it."""
    if not installed(python, constraints, *what):
        stop(
            f"pip could not install {what[-1]}; its own words are above.",
            "Check that this machine reaches a package registry (pip config list, pip download),",
            "then run the same command again: it goes on where it stopped.",
        )


def installed(python: Path, constraints: Path, *what: str) -> bool:
    """Install, and tell whether that went well; pip itself says what did not."""
    # Errors only: pip warns of much that is no concern of a newcomer.
    asked = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    return subprocess.call([*asked, "--constraint", str(constraints), *what], cwd=ROOT) == 0


def run(command: list[str], cwd: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run quietly and tell how it went."""
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def say(line: str) -> None:
    """Tell what happens now."""
    print(f"prepare: {line}", flush=True)


def stop(*lines: str) -> None:
    """End with what is wrong and what helps."""
    sys.exit("\n".join(f"prepare: {line}" for line in lines))


if __name__ == "__main__":
    main()
