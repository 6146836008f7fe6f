"""Versions are those of the directories from which a process loaded its libraries."""

from __future__ import annotations

import os

import numpy as np

from sentinel.live.provenance.package_versions import package_directories, package_versions


def install(directory, name, version):
    info = directory / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_the_directories_of_this_process_have_numpy():
    directories = package_directories(os.getpid())

    assert package_versions(directories)["numpy"] == np.__version__


def test_a_process_that_is_gone_has_none():
    assert package_directories(2**22 + 1) == []
    assert package_versions([]) == {}


def test_torch_states_its_build(tmp_path):
    install(tmp_path, "torch", "2.9.1")
    install(tmp_path, "nvidia-nccl-cu12", "2.27.5")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(
        "from typing import Optional\n__version__ = '2.9.1+cu128'\ndebug = False\n"
        "cuda: Optional[str] = '12.8'\ngit_version = 'abc'\nhip: Optional[str] = None\n"
    )

    assert package_versions([str(tmp_path)]) == {
        "torch": "2.9.1+cu128",
        "cuda": "12.8",
        "nccl": "2.27.5",
    }


def test_a_package_in_two_versions_is_left_out(tmp_path):
    for folder, version in (("system", "4.57.0"), ("user", "5.0.0")):
        install(tmp_path / folder, "transformers", version)
        install(tmp_path / folder, "flash-attn", "2.8.3")

    found = package_versions([str(tmp_path / "system"), str(tmp_path / "user")])

    assert found == {"flash-attn": "2.8.3"}
