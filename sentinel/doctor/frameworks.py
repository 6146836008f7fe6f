"""Frameworks: whether the taps of each integration would go in, tried without a run.

Frameworks are loaded in another process, since that may fail in every way. Which versions were
tested is said here.
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
"""Seconds that loading frameworks, and trying their taps, may take."""

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
"""The lowest and the highest version of each framework that the taps were tried with."""

IntegrationStatus = Mapping[str, str]
DryRun = Callable[[list[str]], list[IntegrationStatus]]


def check_frameworks(dry_run: DryRun | None = None) -> Iterator[CheckResult]:
    """A remark for each integration, by name.

    `rehearse` takes names of integrations and gives for each `integration`, `version` and `state`
    as sentinel.client.dry_run does; it raises OSError, SubprocessError or ValueError if it cannot.
    """
    modules = plugins.load_modules("integrations")
    grouped: defaultdict[str, list[str]] = defaultdict(list)
    for name, module in modules.items():
        grouped[_package(module)].append(name)
    here = [names for top, names in grouped.items() if find_spec(top) is not None]
    found = {told["integration"]: told for told in _dry_run_groups(here, dry_run or _dry_run)}
    for name, module in sorted(modules.items()):
        top = _package(module)
        if name in found:
            yield _check_integration(name, top, found[name])
        else:
            yield ok(_subject(name, top), "not installed, so there is nothing to tap")


def _check_integration(name: str, package: str, status: IntegrationStatus) -> CheckResult:
    subject, state = _subject(name, package), status["state"]
    version = status["version"] or "of unknown version"
    says = f"{package} {version}, {state}"
    if state.startswith("absent"):
        remedy = f"nothing, unless you use it; `python -c 'import {package}'` shows the whole error"
        return warn(subject, says, remedy)
    if state.startswith("off"):
        remedy = "its signals are not captured: use a tested version, or tell us of this one"
        return fail(subject, f"{says}; {_tested_range(package)}", remedy)
    if state != "on":
        remedy = "what hangs on that is not captured: use a tested version, or tell us of this one"
        return fail(subject, f"{says}; {_tested_range(package)}", remedy)
    if status["version"] and not _is_tested(package, status["version"]):
        remedy = "every tap went in; look at /metrics whether its signals come"
        return warn(subject, f"{says}; {_tested_range(package)}", remedy)
    return ok(subject, says)


def _subject(name: str, package: str) -> str:
    return f"tap {name}" if name == package else f"tap {name} ({package})"


def _tested_range(package: str) -> str:
    if package not in TESTED_VERSIONS:
        return "no version of it was tested"
    lowest, highest = TESTED_VERSIONS[package]
    return f"tested with {lowest}" + (f" to {highest}" if highest != lowest else "")


def _is_tested(package: str, version: str) -> bool:
    if package not in TESTED_VERSIONS:
        return False
    lowest, highest = TESTED_VERSIONS[package]
    # Patches of the highest one are it.
    return is_at_least(version, lowest) and is_at_least(f"{highest}.99999", version)


def _dry_run_groups(groups: list[list[str]], dry_run: DryRun) -> list[IntegrationStatus]:
    """What became of all; where one takes the others down with it, of each framework by itself."""
    if not groups:
        return []
    try:
        return dry_run([name for names in groups for name in names])
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        if len(groups) > 1:
            return [told for names in groups for told in _dry_run_groups([names], dry_run)]
        why = f"absent: loading it ended by {type(error).__name__}"
        return [{"integration": name, "version": "", "state": why} for name in groups[0]]


def _package(module: ModuleType) -> str:
    """The package that an integration's framework is in."""
    return str(module.FRAMEWORK).partition(".")[0]


def _dry_run(names: list[str]) -> list[IntegrationStatus]:
    with TemporaryDirectory(prefix="sentinel-doctor-") as folder:
        out = Path(folder) / "told.json"
        command = [sys.executable, "-m", "sentinel.client.dry_run", str(out), *names]
        subprocess.run(  # noqa: S603 - our own module
            command,
            check=True,
            timeout=DRY_RUN_TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
            # A pipe would be waited for as long as anything that a framework began holds it.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Nothing may take the rehearsal for a run.
            env={**os.environ, "SENTINEL_OFF": "1"},
        )
        told: list[IntegrationStatus] = json.loads(out.read_text())
    return told
