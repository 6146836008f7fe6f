"""The provenance of a run as its metadata, read from the process of a rank on this node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event as Flag

from sentinel.live.provenance.git_state import changes_of, commit_of, find_repository
from sentinel.live.provenance.package_versions import package_directories, package_versions
from sentinel.model.redaction import redact_arguments
from sentinel.transport.process import read_arguments, read_environ

COMMAND_KEY, COMMIT_KEY, CHANGES_KEY = "command", "git_commit", "git_changes"
DRIVER_KEY, GPU_KEY, IMAGE_KEY = "nvidia_driver", "gpu", "container_image"

IMAGE_VARIABLES = (
    "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "SLURM_CONTAINER", "MODAL_IMAGE_ID",
)  # fmt: skip
"""Variables with the image of a container: of Apptainer, its predecessor, Slurm and Modal.

Docker and Kubernetes set none, and the id of a container in its cgroup does not name the image.
"""
DRIVER_DIRECTORY = Path("/proc/driver/nvidia")


@dataclass(frozen=True, slots=True)
class ProvenanceReader:
    """Reads the provenance of the run of a process; without `has_command`, not its arguments."""

    has_command: bool = True
    driver_directory: Path = DRIVER_DIRECTORY

    def read(self, pid: int, stopping: Flag) -> Iterator[dict[str, str]]:
        """Metadata by name, in parts, what may take seconds at the end.

        What cannot be read is left out. Ends soon after `stopping` is set.
        """
        arguments, environ = read_arguments(pid), read_environ(pid)
        if self.has_command and any(arguments):
            yield {COMMAND_KEY: redact_arguments(arguments)}
        image = next(filter(None, map(environ.get, IMAGE_VARIABLES)), "")
        yield {IMAGE_KEY: image} if image else {}
        yield hardware(self.driver_directory)
        yield self.read_packages(pid)
        with suppress(OSError, ValueError):
            directory = _script_directory(pid, arguments, environ.get("PWD", ""))
            yield _git_metadata(directory, stopping)

    @staticmethod
    def read_packages(pid: int) -> dict[str, str]:
        """Versions of the packages that the process has loaded so far; see `package_versions`."""
        try:
            return package_versions(package_directories(pid))
        except (OSError, ValueError):
            return {}


def hardware(driver_directory: Path) -> dict[str, str]:
    """Version of NVIDIA's driver and the models of its GPUs, as the driver states them in /proc."""
    found: dict[str, str] = {}
    with suppress(OSError, IndexError):
        # NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:18:39 UTC 2025
        line = (driver_directory / "version").read_text().splitlines()[0]
        found[DRIVER_KEY] = next(
            word for word in line.split() if word[:1].isdecimal() and "." in word
        )
    with suppress(OSError):
        files = (driver_directory / "gpus").glob("*/information")
        lines = [line for file in files for line in file.read_text().splitlines()]
        models = {line.partition(":")[2].strip() for line in lines if line.startswith("Model:")}
        if models:
            found[GPU_KEY] = ", ".join(sorted(models))
    return found


def _script_directory(pid: int, arguments: list[str], first_directory: str) -> Path:
    """The directory of the script, or the working directory of a module or installed program."""
    current = Path(f"/proc/{pid}/cwd").readlink()
    scripts = [Path(each) for each in arguments[1:] if each.endswith(".py")]
    for script in scripts[:1]:
        # A path counts from the directory in which the process started, which it may have left.
        for directory in (Path(first_directory or current), current):
            if (directory / script).is_file():
                return (directory / script).resolve().parent
    return current


def _git_metadata(directory: Path, stopping: Flag) -> dict[str, str]:
    """Commit and digest of the changes of the repository around the directory, if there is one."""
    repository = find_repository(directory)
    if repository is None:
        return {}
    return {COMMIT_KEY: commit_of(repository), CHANGES_KEY: changes_of(repository, stopping)}
