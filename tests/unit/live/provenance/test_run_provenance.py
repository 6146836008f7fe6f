"""What is recorded of the process of a rank, and what cannot be read is left out."""

from __future__ import annotations

import subprocess
import sys
from threading import Event

import pytest

from sentinel.live.provenance.run_provenance import ProvenanceReader, hardware

WAITING = "import sys\nprint(flush=True)\nsys.stdin.read()\n"


@pytest.fixture
def start(tmp_path):
    """Starts a script that waits, in a folder inside a repository without a commit."""
    processes = []
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("a" * 40)
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.py").write_text(WAITING)

    def start(*arguments, **environ):
        command = [sys.executable, "-I", "-S", *arguments]
        environ = {"PATH": "/nowhere", **environ}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        processes.append(subprocess.Popen(command, cwd=tmp_path, env=environ, **pipes))
        processes[-1].stdout.readline()
        return processes[-1].pid

    yield start
    for process in processes:
        process.communicate()


def read(pid, driver, **options):
    reader = ProvenanceReader(driver_directory=driver, **options)
    return {name: text for values in reader.read(pid, Event()) for name, text in values.items()}


def test_command_commit_and_image(start, tmp_path):
    image = {"APPTAINER_CONTAINER": "/images/torch.sif"}
    pid = start("job/train.py", "--lr", "1e-4", "--api-key", "hunter2", **image)

    found = read(pid, tmp_path)

    assert found.pop("command").endswith("job/train.py --lr 1e-4 --api-key ***")
    assert found.pop("git_commit") == "a" * 40
    assert found.pop("git_changes") == "unknown"
    assert found.pop("container_image") == "/images/torch.sif"
    assert found == {}


def test_the_command_can_be_left_out(start, tmp_path):
    found = read(start("job/train.py"), tmp_path, has_command=False)

    assert "command" not in found
    assert found["git_commit"] == "a" * 40


def test_a_process_that_is_gone_and_a_node_without_a_driver(tmp_path):
    assert read(2**22 + 1, tmp_path) == {}


def test_driver_and_models_of_gpus(tmp_path):
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
        "GCC version:  gcc version 13.3.0\n"
    )
    for number in range(2):
        gpu = tmp_path / "gpus" / f"0000:0{number}:00.0"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 200\n")

    assert hardware(tmp_path) == {"nvidia_driver": "580.65.06", "gpu": "NVIDIA H200"}
