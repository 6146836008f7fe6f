"""Processes that something else holds, throttles, signals or does not reap."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from support.rank_processes import until
from support.watched_jobs import TIMEOUT_SECONDS, watched_job

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

FLOOR = {"SENTINEL_DETECTORS__RUN_STALLED__FLOOR": "3"}
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
CGROUPS = Path("/sys/fs/cgroup")


def own_group(controller):
    """The control group of this process, in version 1 or, as "unified", in version 2."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(",") or (controller, names) == ("unified", ""):
            folder = CGROUPS / controller / path.lstrip("/")
            return folder if folder.is_dir() else CGROUPS / controller
    return pytest.skip(f"there are no control groups of {controller} here")


@contextmanager
def control_group(controller, *pids):
    """A control group with these processes, below that of this process.

    Skips the test without permission.
    """
    parent = own_group(controller)
    folder = parent / f"sentinel-test-{os.getpid()}-{time.monotonic_ns()}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip(f"no control group of {controller} can be created here")
    processes = folder / "cgroup.procs"
    try:
        for pid in pids:
            processes.write_text(str(pid))
        yield folder
    finally:
        for pid in processes.read_text().split():
            with suppress(OSError):
                (parent / "cgroup.procs").write_text(pid)
        until(lambda: not processes.read_text(), 60.0, "the group is empty")
        folder.rmdir()


def tree(job):
    """Launcher, ranks and agent of a job."""
    launcher = psutil.Process(job.launcher.pid)
    return [launcher, *launcher.children(recursive=True)]


@pytest.mark.full
@pytest.mark.fault("R13")
def test_a_rank_that_a_debugger_holds_is_named(tmp_path):
    """As `gdb -p` or `strace -p` does: the process is in a tracing stop."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    with watched_job(tmp_path, environ=FLOOR) as job:
        rank = job.rank()
        job.until_more_steps()
        assert libc.ptrace(PTRACE_SEIZE, rank.pid, 0, 0) == 0, os.strerror(ctypes.get_errno())
        assert libc.ptrace(PTRACE_INTERRUPT, rank.pid, 0, 0) == 0
        body = job.until_found("run_stalled")
        assert "held by a debugger" in body["commonAnnotations"]["summary"]
        assert str(rank.pid) in str(body)
        os.waitpid(rank.pid, 0x40000000)
        assert libc.ptrace(PTRACE_DETACH, rank.pid, 0, 0) == 0
        job.until_found("run_stalled", "resolved")
        job.end()
        assert job.detectors() == ["run_stalled"] * 2


@pytest.mark.full
@pytest.mark.fault("R14")
@pytest.mark.parametrize(
    ("controller", "name", "frozen", "thawed"),
    [("freezer", "freezer.state", "FROZEN", "THAWED"), ("unified", "cgroup.freeze", "1", "0")],
    ids=["version-1", "version-2"],
)
def test_a_rank_in_a_frozen_container_is_named(tmp_path, controller, name, frozen, thawed):
    """As `docker pause` does: the control group of the trainer is frozen, the agent is not."""
    with watched_job(tmp_path, environ=FLOOR) as job:
        rank = job.rank()
        job.until_more_steps()
        with control_group(controller, rank.pid) as group:
            (group / name).write_text(frozen)
            try:
                body = job.until_found("run_stalled")
                assert "frozen control group" in body["commonAnnotations"]["summary"]
                assert body["commonLabels"]["severity"] == "critical"
            finally:
                (group / name).write_text(thawed)
        job.until_found("run_stalled", "resolved")
        job.end()


@pytest.mark.full
@pytest.mark.fault("T17")
def test_a_job_that_is_suspended_as_a_whole_reports_nothing(tmp_path):
    """As by `scontrol suspend` or a paused virtual machine: the agent is suspended too.

    It is continued first, and sees ranks that took no step for longer than the limit.
    """
    environ = {"SENTINEL_DETECTORS__RUN_STALLED__FLOOR": "6", "STEP_SECONDS": "0.2"}
    with watched_job(tmp_path, environ=environ) as job:
        job.until_more_steps(10)
        processes = tree(job)
        for process in processes:
            process.suspend()
        time.sleep(9.0)
        agent = job.agent_process()
        agent.resume()
        time.sleep(2.0)
        for process in processes:
            process.resume()
        job.until_more_steps(5)
        job.end()

        assert job.detectors() == []


@pytest.mark.full
@pytest.mark.fault("A19")
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGHUP,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGQUIT,
        signal.SIGALRM,
        signal.SIGPIPE,
        signal.SIGTSTP,
        signal.SIGABRT,
        signal.SIGSEGV,
    ],
)
def test_a_stray_signal_to_the_agent_ends_no_watch(tmp_path, number):
    """Slurm's `--signal` and `scancel` send a signal to every process of a step."""
    with watched_job(tmp_path) as job:
        job.until_more_steps()
        os.kill(job.agent_process().pid, number)
        job.until_more_steps(50)
        job.check_nan_and_end()
        assert set(job.detectors()) == {"nan_or_inf"}


@pytest.mark.fault("A20")
def test_a_stop_of_every_process_of_a_job_is_one_warning(tmp_path):
    """As `scancel`: SIGTERM to every process, the agent too, before any of them can react."""
    with watched_job(tmp_path) as job:
        job.until_more_steps()
        for process in tree(job):
            process.terminate()
        body = job.until_found("run_died")
        job.launcher.wait(TIMEOUT_SECONDS)
        until(lambda: not job.registration(), TIMEOUT_SECONDS, "the agent's end")
        assert "SIGTERM" in body["commonAnnotations"]["summary"]
        assert body["commonLabels"]["severity"] == "warning"
        assert job.detectors() == ["run_died"]


@pytest.mark.fault("P22")
def test_a_dead_rank_that_its_parent_does_not_reap_is_reported(tmp_path):
    """In a container without an init, a dead process stays as a zombie."""
    with watched_job(tmp_path) as job:
        rank = job.rank()
        job.until_more_steps()
        launcher = psutil.Process(job.launcher.pid)
        launcher.suspend()
        # A parent that has not stopped yet reaps it.
        until(lambda: launcher.status() == psutil.STATUS_STOPPED, 60.0, "the launcher is stopped")
        began = time.monotonic()
        rank.kill()
        body = job.until_found("run_died")
        assert rank.status() == psutil.STATUS_ZOMBIE
        assert "SIGKILL" in body["commonAnnotations"]["summary"]
        assert time.monotonic() - began < 60.0


@pytest.mark.full
@pytest.mark.fault("P23")
def test_a_rank_that_used_up_its_cpu_time_is_reported_with_the_signal(tmp_path):
    """The limit of a login node is inherited by the agent, which is younger than the rank."""
    before = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
"""
    with watched_job(tmp_path, before=before) as job:
        rank = job.rank()
        job.until_more_steps()
        used = int(sum(rank.cpu_times()[:2])) + 1
        rank.rlimit(psutil.RLIMIT_CPU, (used, used + 60))
        job.turn_on("spin")
        body = job.until_found("run_died")
        assert "SIGXCPU" in body["commonAnnotations"]["summary"]


@pytest.mark.full
@pytest.mark.fault("A21")
def test_a_job_that_may_use_one_percent_of_a_cpu_reports_no_hang(tmp_path):
    with watched_job(tmp_path, environ={"STEP_SECONDS": "0.2"}) as job:
        job.until_more_steps(10)
        pids = [process.pid for process in tree(job)]
        with control_group("cpu", *pids) as group:
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text("2000")
            time.sleep(45.0)
            (group / "cpu.cfs_quota_us").write_text("-1")
        job.until_more_steps(10)
        assert set(job.detectors()) <= {"throughput_drop", "straggler"}, job.text()
        job.check_nan_and_end()


@pytest.mark.full
@pytest.mark.fault("A22")
def test_an_agent_that_the_kernel_kills_for_lack_of_memory_is_started_again(tmp_path):
    with watched_job(tmp_path) as job:
        rank = job.rank()
        job.until_more_steps()
        agent = job.agent_process()
        with control_group("memory", rank.pid) as group:
            # What the rank has allocated before is not counted, and an agent needs more.
            (group / "memory.limit_in_bytes").write_text(str(32 << 20))
            agent.kill()
            until(
                lambda: "oom_kill 0" not in (group / "memory.oom_control").read_text(),
                TIMEOUT_SECONDS,
                "the killer",
            )
            assert rank.is_running()
            (group / "memory.limit_in_bytes").write_text("-1")
            job.agent_process(other_than=agent)
            job.until_more_steps()
            job.check_nan_and_end()
        assert set(job.detectors()) == {"nan_or_inf"}


@pytest.mark.full
@pytest.mark.fault("A23")
def test_no_process_or_thread_can_be_started(tmp_path):
    """As with the limit of processes of a container, which counts threads."""
    with watched_job(tmp_path) as job:
        job.until_more_steps()
        pids = [process.pid for process in tree(job)]
        with control_group("pids", *pids) as group:
            used = int((group / "pids.current").read_text())
            (group / "pids.max").write_text(str(used))
            job.turn_on("nan")
            job.until_more_steps(100)
            agent = job.agent_process()
            agent.kill()
            time.sleep(3.0)
            (group / "pids.max").write_text("max")
            job.agent_process(other_than=agent)
            job.until_found("nan_or_inf")
        job.turn_off("nan")
        job.until_found("nan_or_inf", "resolved")
        steps = job.end()
        assert job.stored() == list(range(1, steps + 1))
        job.assert_sent_once()
