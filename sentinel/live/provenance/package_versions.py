"""Versions of the packages that decide how a training behaves, as the process of a rank has them.

Nothing is imported: the versions are those in the metadata of the packages, in the directories
whose libraries the process has loaded. An agent need not run in the environment of the training.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import Distribution
from pathlib import Path

PACKAGES = (
    "accelerate", "bitsandbytes", "datasets", "deepspeed", "flash-attn", "lightning",
    "liger-kernel", "megatron-core", "numpy", "peft", "pytorch-lightning", "tokenizers", "torch",
    "transformers", "triton", "trl", "verl", "vllm",
)  # fmt: skip
_NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")

_PACKAGE_DIRECTORY = re.compile(r"(/.*?/(?:site|dist)-packages)/")
_TORCH_VERSION = re.compile(r"^__version__\s*=\s*['\"]([^'\"]+)", re.MULTILINE)
_TORCH_CUDA = re.compile(r"^cuda\b[^=]*=\s*['\"]([^'\"]+)", re.MULTILINE)
_MAX_VERSION_FILE_CHARACTERS = 10_000


def package_directories(pid: int) -> list[str]:
    """Directories of packages from which the process has loaded libraries; empty if it is gone.

    Raises PermissionError if it is that of another user.
    """
    try:
        with Path(f"/proc/{pid}/maps").open(errors="replace") as lines:
            found = [_PACKAGE_DIRECTORY.search(line) for line in lines]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [*dict.fromkeys(match[1] for match in found if match)]


def package_versions(directories: Iterable[str]) -> dict[str, str]:
    """Versions by name of package, with `cuda` and `nccl` as torch was built with them.

    A package that two of the directories have in different versions is left out, since either may
    be in use.
    """
    paths = [*directories]
    found = {name: _version(name, paths) for name in PACKAGES}
    nccl = (_version(name, paths) for name in _NCCL_PACKAGES)
    found["nccl"] = next(filter(None, nccl), "")
    if found["torch"]:
        found |= _torch_build(paths)
    return {name: version for name, version in found.items() if version}


def _version(name: str, paths: list[str]) -> str:
    versions = {
        str(each.metadata["Version"]) for each in Distribution.discover(name=name, path=paths)
    }
    return versions.pop() if len(versions) == 1 else ""


def _torch_build(paths: list[str]) -> dict[str, str]:
    """The version that torch states, which names its build, and the CUDA it was built with."""
    files = [path for each in paths if (path := Path(each, "torch", "version.py")).is_file()]
    if len(files) != 1:
        return {}
    with files[0].open(errors="replace") as file:
        text = file.read(_MAX_VERSION_FILE_CHARACTERS)
    matches = {"torch": _TORCH_VERSION.search(text), "cuda": _TORCH_CUDA.search(text)}
    return {name: match[1] for name, match in matches.items() if match}
