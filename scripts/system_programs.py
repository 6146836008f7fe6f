"""The system programs that tests use: install what is missing, or report what is not tested.

    python3 scripts/system_programs.py install    by apt-get as root; otherwise installs nothing
    python3 scripts/system_programs.py report     what was not tested, and how to test it

As another user, `install` uses sudo in CI only (CI=true), and only where sudo asks for no password.
SENTINEL_INSTALL_PROGRAMS=0 makes it install nothing. A program that is still missing afterwards is
an error with SENTINEL_REQUIRE_STACK=1 only: without that, its tests are skipped.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple


class Program(NamedTuple):
    """A program under any of its names, its Debian packages, and what is not tested without it."""

    names: tuple[str, ...]
    packages: tuple[str, ...]
    tests: str


CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser")
MANAGER = ("prometheus-alertmanager", "alertmanager")
SLURM = "jobs of Slurm, their ends and requeues"
VMALERT = "the rules of vmalert"
PROGRAMS = (
    Program(("make",), ("make",), "everything"),
    Program(("gcc",), ("gcc", "libc6-dev"), "DeepSpeed"),
    Program(("prometheus",), ("prometheus",), "scraping, rules and dashboards of Prometheus"),
    Program(("promtool",), ("prometheus",), "the syntax of /metrics and of the rules"),
    Program(MANAGER, MANAGER[:1], "alerts through Alertmanager"),
    Program(("amtool",), MANAGER[:1], "the syntax of Alertmanager's configuration"),
    Program(("victoria-metrics",), ("victoria-metrics",), VMALERT),
    Program(("vmalert",), ("victoria-metrics",), VMALERT),
    Program(("munge",), ("munge",), SLURM),
    Program(("sbatch",), ("slurm-wlm",), SLURM),
    Program(("systemd-analyze",), ("systemd",), "units of systemd"),
    # Chromium renders text only with a font.
    Program(CHROMIUM, (*CHROMIUM[:1], "fonts-dejavu-core"), "pages"),
    Program(("openssl",), ("openssl",), "receivers with certificates of their own"),
)
APT = ("apt-get", "-q", "-o", "Acquire::Retries=3", "-o", "Acquire::http::Timeout=60")
INSTALL = ("-o", "DPkg::Lock::Timeout=120", "install", "--yes", "--no-install-recommends")
UPDATE_SECONDS, DOWNLOAD_SECONDS = 180.0, 900.0
"""Time limits. What is downloaded is installed without one, since apt must not be interrupted."""
POLICY = Path("/usr/sbin/policy-rc.d")
"""Asked by Debian whether a package may start its services: 101 means no."""
POLICY_MARK = "# of sentinel: scripts/system_programs.py"
_signals: list[int] = []
"""Signals that ask this process to end."""


def main() -> None:
    """Run the command of the command line."""
    command = sys.argv[1] if len(sys.argv) == 2 else ""
    if command not in ("install", "report"):
        sys.exit(__doc__)
    if command == "install" and missing():
        install(packages(missing()))
        if missing() and os.environ.get("SENTINEL_REQUIRE_STACK") == "1":
            report()
            sys.exit("SENTINEL_REQUIRE_STACK=1 but the programs above are missing.")
    elif command == "report":
        report()


def missing() -> list[Program]:
    """The programs that are not on PATH under any name."""
    return [each for each in PROGRAMS if not any(map(shutil.which, each.names))]


def packages(programs: list[Program]) -> list[str]:
    """Their packages, each once."""
    return list(dict.fromkeys(package for each in programs for package in each.packages))


def report() -> None:
    """Print what was not tested, and the command that installs what it needs."""
    programs = missing()
    for each in programs:
        print(f"not tested: {each.tests} ({' or '.join(each.names)} is not installed)")
    if programs:
        sudo = "" if os.geteuid() == 0 else "sudo "
        print(f"To test this too: {sudo}python3 scripts/system_programs.py install")
        print(f"It installs packages of Debian: {' '.join(packages(programs))}")


def install(wanted: list[str]) -> None:
    """Install packages if this user may; prints what it does, and raises nothing if it fails."""
    prefix = as_root()
    if prefix is None or shutil.which("apt-get") is None:
        return
    print("Installing", *wanted, "(SENTINEL_INSTALL_PROGRAMS=0 prevents that)", flush=True)
    with services_stopped(prefix):
        # A repository that fails does not prevent packages of the others.
        run(*prefix, *APT, "update", seconds=UPDATE_SECONDS)
        install_packages(prefix, wanted)
        # apt installs nothing if one package is unknown.
        for program in missing():
            install_packages(prefix, packages([program]))


def install_packages(prefix: tuple[str, ...], wanted: list[str]) -> None:
    """Download the packages, and install them if that succeeds."""
    command = (*prefix, "env", "DEBIAN_FRONTEND=noninteractive", *APT, *INSTALL)
    if run(*command, "--download-only", *wanted, seconds=DOWNLOAD_SECONDS):
        run(*command, "--no-download", *wanted)


def as_root() -> tuple[str, ...] | None:
    """What a command of root begins with; None if this user may not or shall not install."""
    if os.environ.get("SENTINEL_INSTALL_PROGRAMS") == "0":
        return None
    if os.geteuid() == 0:
        return ()
    in_ci = os.environ.get("CI", "").lower() in {"1", "true"}
    return ("sudo", "-n") if in_ci and run("sudo", "-n", "true") else None


@contextmanager
def services_stopped(prefix: tuple[str, ...]) -> Iterator[None]:
    """Prevent that packages start their services, which would occupy the ports of tests."""
    # One of an installation that was killed is replaced.
    if POLICY.exists() and POLICY_MARK not in POLICY.read_text(errors="replace"):
        yield
        return
    script = f"printf '#!/bin/sh\\n{POLICY_MARK}\\nexit 101\\n' >{POLICY} && chmod 755 {POLICY}"
    # An exception in a handler may leave a lock of `subprocess` held, so `run` raises it.
    former = signal.signal(signal.SIGTERM, lambda number, _: _signals.append(number))
    try:
        run(*prefix, "sh", "-c", script)
        yield
    finally:
        run(*prefix, "rm", "-f", str(POLICY), is_ended_by_signals=False)
        signal.signal(signal.SIGTERM, former)
    exit_if_asked()


def exit_if_asked() -> None:
    """Raise SystemExit if SIGTERM has arrived while services are stopped."""
    if _signals:
        sys.exit(128 + _signals[0])


def run(*command: str, seconds: float | None = None, is_ended_by_signals: bool = True) -> bool:
    """Run a command without input; whether it succeeded within that time.

    SIGTERM to this process kills the command, and raises SystemExit, unless the command is not to
    be `is_ended_by_signals`.
    """
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError:
        return False
    end = math.inf if seconds is None else time.monotonic() + seconds
    try:
        while child.poll() is None:
            if (_signals and is_ended_by_signals) or time.monotonic() > end:
                break
            time.sleep(0.02)
    finally:
        # Also after Ctrl-C. A command of sudo cannot be killed by another user.
        with suppress(PermissionError):
            child.kill()
        child.wait()
    if is_ended_by_signals:
        exit_if_asked()
    return child.returncode == 0


if __name__ == "__main__":
    main()
