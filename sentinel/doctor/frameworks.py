"""Checks of the integrations: patches each installed framework in a separate process.

Importing a framework may fail in any way, which must not affect the doctor. TESTED_VERSIONS lists
the versions that were tested.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from sentinel.config import plugins
from sentinel.doctor.check_result import CheckResult, fail, ok, warn
from sentinel.doctor.versions import is_at_least

DRY_RUN_TIMEOUT_SECONDS = 600.0
"""Seconds allowed for importing and patching the frameworks."""

TESTED_VERSIONS: Mapping[str, tuple[str, str]] = {
    "accelerate": ("1.15", "1.15"),
    "deepspeed": ("0.19", "0.19"),
    "lightning": ("2.6", "2.6"),
    "mlflow": ("3.17", "3.17"),
    "pytorch_lightning": ("2.6", "2.6"),
    "tensorboardX": ("2.6", "2.6"),
    "torch": ("2.13", "2.13"),
    "trackio": ("0.43", "0.43"),
    "transformers": ("5.23", "5.23"),
    "trl": ("1.16", "1.16"),
    "verl": ("0.9", "0.9"),
    "wandb": ("0.31", "0.31"),
}
"""Lowest and highest version of each framework that the patches were tested with."""

IntegrationStatus = Mapping[str, str]
DryRun = Callable[[list[str]], list[IntegrationStatus]]


def check_frameworks(dry_run: DryRun | None = None) -> Iterator[CheckResult]:
    """One result per integration, by name.

    `dry_run` takes names of integrations and returns `integration`, `version` and `state` of each,
    as sentinel.client.dry_run does. It may raise OSError, SubprocessError or ValueError.
    """
    modules = plugins.load_modules("integrations")
    grouped: defaultdict[str, list[str]] = defaultdict(list)
    for name, module in modules.items():
        grouped[_package(module)].append(name)
    installed = [names for package, names in grouped.items() if find_spec(package) is not None]
    statuses = _dry_run_groups(installed, dry_run or _dry_run)
    by_name = {status["integration"]: status for status in statuses}
    for name, module in sorted(modules.items()):
        package = _package(module)
        if name in by_name:
            yield _check_integration(name, package, by_name[name])
        else:
            yield ok(_subject(name, package), f"{package} is not installed; nothing to patch")


def _check_integration(name: str, package: str, status: IntegrationStatus) -> CheckResult:
    subject, state = _subject(name, package), status["state"]
    version = status["version"] or "of unknown version"
    message = f"{package} {version}, {state}"
    if state.startswith("absent"):
        remedy = f"none unless you use it; `python -c 'import {package}'` shows the full error"
        return warn(subject, message, remedy)
    if state.startswith("off"):
        remedy = "its signals are not captured: use a tested version, or report this one"
        return fail(subject, f"{message}; {_tested_range(package)}", remedy)
    if state != "on":
        remedy = "some of its signals are not captured: use a tested version, or report this one"
        return fail(subject, f"{message}; {_tested_range(package)}", remedy)
    if status["version"] and not _is_tested(package, status["version"]):
        remedy = "all patches were applied; check on /metrics that its signals arrive"
        return warn(subject, f"{message}; {_tested_range(package)}", remedy)
    return ok(subject, message)


def _subject(name: str, package: str) -> str:
    return f"patch {name}" if name == package else f"patch {name} ({package})"


def _tested_range(package: str) -> str:
    if package not in TESTED_VERSIONS:
        return "no version was tested"
    lowest, highest = TESTED_VERSIONS[package]
    return f"tested with {lowest}" + (f" to {highest}" if highest != lowest else "")


def _is_tested(package: str, version: str) -> bool:
    if package not in TESTED_VERSIONS:
        return False
    lowest, highest = TESTED_VERSIONS[package]
    # Patch releases of the highest version count as tested.
    return is_at_least(version, lowest) and is_at_least(f"{highest}.99999", version)


def _dry_run_groups(groups: list[list[str]], dry_run: DryRun) -> list[IntegrationStatus]:
    """Status of all integrations; if the dry run fails, each group is tried on its own."""
    if not groups:
        return []
    try:
        return dry_run([name for names in groups for name in names])
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        if len(groups) > 1:
            return [status for names in groups for status in _dry_run_groups([names], dry_run)]
        state = f"absent: importing it failed with {type(error).__name__}"
        return [{"integration": name, "version": "", "state": state} for name in groups[0]]


def _package(module: ModuleType) -> str:
    """The top-level package of an integration's framework."""
    return str(module.FRAMEWORK).partition(".")[0]


def _dry_run(names: list[str]) -> list[IntegrationStatus]:
    with TemporaryDirectory(prefix="sentinel-doctor-") as directory:
        result_path = Path(directory) / "result.json"
        command = [sys.executable, "-m", "sentinel.client.dry_run", str(result_path), *names]
        subprocess.run(  # noqa: S603 - a module of sentinel
            command,
            check=True,
            timeout=DRY_RUN_TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
            # A child process of a framework could keep a pipe open.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # The dry run must not count as a run.
            env={**os.environ, "SENTINEL_OFF": "1"},
        )
        statuses: list[IntegrationStatus] = json.loads(result_path.read_text())
    return statuses
