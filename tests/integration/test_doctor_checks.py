"""Tests of the checks of the doctor: each problem is graded and has a remedy."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version

import pytest
from support.rank_processes import ranks

from sentinel.config import plugins
from sentinel.doctor import frameworks as frameworks_file
from sentinel.doctor.check_result import CheckResult, Grade, fail, ok, warn
from sentinel.doctor.directories import check_directories
from sentinel.doctor.frameworks import TESTED_VERSIONS, check_frameworks
from sentinel.doctor.runs import check_runs
from sentinel.doctor.settings import check_settings
from sentinel.doctor.versions import check_versions, is_at_least
from sentinel.transport.identity import Identity
from sentinel.transport.paths import home_dir, ring_dir, ring_path
from sentinel.transport.ring import RingWriter

ON = "on"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SENTINEL_PORT", "0")


def by_subject(results):
    return {result.subject: result for result in results}


def dry_run_with(state, version="2.13.0"):
    """A dry run in which every integration has this state."""
    return lambda names: [{"integration": n, "version": version, "state": state} for n in names]


def torch_patch(state, version="2.13.0"):
    found = by_subject(check_frameworks(dry_run_with(state, version)))
    return found["patch torch_loop (torch)"]


def test_a_result_has_a_remedy_unless_it_is_ok():
    with pytest.raises(ValueError, match="remedy"):
        fail("disk", "full", "")
    with pytest.raises(ValueError, match="remedy"):
        CheckResult(Grade.OK, "disk", "fine", "none")
    assert (ok("a", "b").grade, warn("a", "b", "c").grade) == (Grade.OK, Grade.WARN)


def test_python_and_sentinel_versions_are_reported():
    found = by_subject(check_versions())

    assert found["python"].grade is Grade.OK
    assert found["sentinel"].grade is Grade.OK


def test_an_old_or_missing_package_fails():
    def installed(name):
        if name == "numpy":
            return "1.0"
        raise PackageNotFoundError(name)

    found = by_subject(check_versions(installed))
    if "numpy" not in found:
        pytest.skip("sentinel itself is not installed here, only found on the path")
    assert (found["numpy"].grade, found["psutil"].grade) == (Grade.FAIL, Grade.FAIL)
    assert "pip install 'numpy>=" in found["numpy"].remedy
    assert found["torch"].grade is Grade.WARN


def test_every_integration_is_checked():
    found = list(check_frameworks(dry_run_with(ON, "")))

    assert len(found) == len(plugins.load_modules("integrations"))
    assert {result.grade for result in found} == {Grade.OK}


@pytest.mark.parametrize(
    ("state", "version", "grade"),
    [
        (ON, "2.13.0+cpu", Grade.OK),
        (ON, "2.13.7", Grade.OK),
        (ON, "9.0", Grade.WARN),
        (ON, "1.0", Grade.WARN),
        ("on, without Tensor.backward", "2.13.0", Grade.FAIL),
        ("off: TypeError in attach", "2.13.0", Grade.FAIL),
        ("absent: ImportError: no libcuda", "2.13.0", Grade.WARN),
    ],
)
def test_patch_states_are_graded(state, version, grade):
    result = torch_patch(state, version)

    assert result.grade is grade
    assert state in result.message
    assert version in result.message


def test_an_untested_version_is_reported_with_the_tested_range():
    assert f"tested with {TESTED_VERSIONS['torch'][0]}" in torch_patch(ON, "9.0").message


def test_all_frameworks_are_loaded_in_one_process_unless_it_dies():
    calls = []

    def dry_run_stub(names):
        calls.append(names)
        return dry_run_with(ON, "")(names)

    assert {result.grade for result in check_frameworks(dry_run_stub)} == {Grade.OK}
    assert len(calls) == 1


def test_a_dry_run_that_dies_does_not_affect_the_others():
    def dry_run_stub(names):
        if "torch_loop" in names:
            raise subprocess.CalledProcessError(-11, "python")
        return dry_run_with(ON, "")(names)

    found = by_subject(check_frameworks(dry_run_stub))
    assert "CalledProcessError" in found["patch torch_loop (torch)"].message
    assert {r.grade for s, r in found.items() if "(torch)" not in s} == {Grade.OK}


def test_child_processes_of_a_framework_do_not_block_the_doctor(tmp_path, monkeypatch):
    """Child processes that outlive the dry run may keep its output open."""
    python, began = tmp_path / "python", tmp_path / "began"
    status = json.dumps(dry_run_with(ON)(["torch_loop"]))
    python.write_text(f"#!/bin/sh\nsleep 120 &\necho $! > {began}\necho '{status}' > $3\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(frameworks_file, "DRY_RUN_TIMEOUT_SECONDS", 30.0)
    try:
        assert [status["state"] for status in frameworks_file._dry_run(["torch_loop"])] == [ON]
    finally:
        os.kill(int(began.read_text()), signal.SIGKILL)


def test_a_missing_framework_has_no_dry_run(monkeypatch):
    monkeypatch.setattr(frameworks_file, "find_spec", lambda name: None)
    found = list(check_frameworks(lambda names: pytest.fail("nothing to load")))

    assert {result.grade for result in found} == {Grade.OK}


@pytest.mark.parametrize("name", TESTED_VERSIONS)
def test_installed_versions_are_in_the_tested_range(name):
    """A new framework version must be added to TESTED_VERSIONS."""
    try:
        found = version(name)
    except PackageNotFoundError:
        found = version("mlflow-skinny") if name == "mlflow" else TESTED_VERSIONS[name][0]
    lowest, highest = TESTED_VERSIONS[name]

    assert is_at_least(found, lowest)
    assert is_at_least(f"{highest}.99999", found)


def test_torch_is_patched_and_restored(tmp_path):
    """In a separate process."""
    out = tmp_path / "status.txt"
    script = (
        "import sys, torch; before = torch.Tensor.backward\n"
        "from sentinel.client.dry_run import dry_run\n"
        "(status,) = dry_run(['torch_loop'])\n"
        "assert torch.Tensor.backward is before\n"
        f"open({str(out)!r}, 'w').write(status.state + ' ' + status.version)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=240)

    state, found = out.read_text().split()
    assert (state, found) == ("on", version("torch"))


def test_a_framework_that_cannot_be_imported_is_absent(monkeypatch):
    from sentinel.client.dry_run import dry_run
    from sentinel.integrations import torch_loop

    monkeypatch.setattr(torch_loop, "FRAMEWORK", "no_such_framework.anywhere")
    (status,) = dry_run(["torch_loop"])

    assert status.state.startswith("absent: ModuleNotFoundError")


@pytest.mark.swallows_errors
def test_a_patch_that_fails_is_off(monkeypatch):
    from sentinel.client.dry_run import dry_run
    from sentinel.integrations import torch_loop

    def fail(patcher):
        raise KeyError("backward")

    monkeypatch.setattr(torch_loop, "FRAMEWORK", "json")
    monkeypatch.setattr(torch_loop, "attach", fail)
    (status,) = dry_run(["torch_loop"])

    assert status.state == "off: KeyError in attach"


def test_writable_directories_are_ok_and_left_unchanged():
    assert {r.subject: r.grade for r in check_directories()} == {
        "state directory": Grade.OK,
        "shared memory": Grade.OK,
    }
    assert list((home_dir() / "runs").iterdir()) == []


def test_a_directory_that_cannot_be_created_fails(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "file" / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "file" / "shm"))

    found = by_subject(check_directories())
    assert {result.grade for result in found.values()} == {Grade.FAIL}
    assert "SENTINEL_HOME" in found["state directory"].remedy
    assert "--shm-size" in found["shared memory"].remedy


def test_a_directory_writable_by_others_is_not_safe(tmp_path):
    (home_dir() / "runs").mkdir(parents=True)
    (home_dir() / "runs").chmod(0o777)

    assert "remove it" in by_subject(check_directories())["state directory"].remedy


def test_valid_settings_are_ok_and_no_sink_is_a_warning():
    found = by_subject(check_settings())

    assert (found["settings"].grade, found["port"].grade) == (Grade.OK, Grade.OK)
    assert found["sinks"].grade is Grade.WARN


@pytest.mark.fault("D15", "X1")
def test_the_proxy_is_shown_without_its_password(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert "proxy" not in by_subject(check_settings())
    monkeypatch.setenv("https_proxy", "http://user:CANARY@proxy.example.org:3128")
    monkeypatch.setenv("no_proxy", "localhost,.corp")

    found = by_subject(check_settings())["proxy"]
    assert found.message == (
        "sinks reach https:// through proxy.example.org:3128, except localhost,.corp"
    )


def test_invalid_settings_fail(monkeypatch):
    monkeypatch.setenv("SENTINEL_PROT", "1")
    found = by_subject(check_settings())["settings"]

    assert found.grade is Grade.FAIL
    assert 'Did you mean "port"' in found.message


def test_no_free_port_fails(monkeypatch):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("SENTINEL_PORT", str(port))
        monkeypatch.setenv("SENTINEL_PORT_TRIES", "1")
        found = by_subject(check_settings())["port"]

    assert (found.grade, str(port) in found.message) == (Grade.FAIL, True)


def test_no_run_is_ok():
    assert [result.grade for result in check_runs()] == [Grade.OK]


def test_an_unmonitored_run_fails():
    with ranks() as begin:
        begin(0, world=1)
        (found,) = check_runs()

    assert (found.grade, found.subject) == (Grade.FAIL, "run live")
    assert "sentinel agent --run live" in found.remedy


def test_client_errors_and_drops_of_a_rank_are_reported():
    ring_dir("live")
    ring = RingWriter(ring_path("live", 0, 3), Identity("live", rank=3), 1 << 20)
    ring.count_error()
    ring.count_drop("key", 2)

    found = [result for result in check_runs() if result.subject == "run live, rank 3"]
    assert [result.grade for result in found] == [Grade.FAIL, Grade.WARN]
    assert "2 key" in found[1].message


def test_a_gone_agent_without_live_ranks_is_a_warning():
    folder = home_dir() / "runs" / "old"
    folder.mkdir(parents=True)
    status = {"run": "old", "url": "http://127.0.0.1:9", "pid": os.getpid(), "port": 9}
    (folder / "agent.json").write_text(json.dumps(status))

    (found,) = check_runs()
    assert (found.grade, found.message) == (Grade.WARN, "the agent is not running")
