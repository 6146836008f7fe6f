"""The agent is kept running, and the trainer never waits for it."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.rank_processes import ranks, until

import sentinel
from sentinel.client import job_end, spawn
from sentinel.client.job_end import JobEnd
from sentinel.client.spawn import (
    EXIT_BAD_SETTINGS,
    AgentSupervisor,
    agent_command,
    agent_environment,
)
from sentinel.transport.paths import AGENT_LOCK, SETTLED_NAME, ring_dir

TIMEOUT_SECONDS = 240.0
NOW = 1000.0


@pytest.fixture
def agents(monkeypatch):
    """Makes every agent run this code instead, and lets every poll check its process."""

    def run(code):
        monkeypatch.setattr(spawn, "agent_command", lambda _: [sys.executable, "-c", code])

    monkeypatch.setattr(spawn, "AGENT_POLL_INTERVAL_SECONDS", 0.0)
    return run


def wait_for_end(supervisor):
    """Wait until the agent is a zombie: it has exited and the supervisor has not polled."""
    stat = Path(f"/proc/{supervisor.child.pid}/stat")

    def ended():
        return stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"

    until(ended, TIMEOUT_SECONDS, "the agent ends")


@pytest.fixture
def job(monkeypatch):
    """A job of a scheduler, at whose end the agent is killed."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr("os.isatty", lambda _: False)
    monkeypatch.setattr(job_end.atexit, "register", lambda *_: None)
    monkeypatch.setattr(job_end, "_awaited", [])


def waited_seconds(monkeypatch):
    """How long the end of the job waits, on a clock that only its sleep moves."""
    now = [0.0]
    monkeypatch.setattr(job_end, "monotonic", lambda: now[0])
    monkeypatch.setattr(job_end, "time", lambda: NOW + now[0])
    monkeypatch.setattr(job_end, "sleep", lambda seconds: now.append(now.pop() + seconds))
    job_end._wait_at_exit(os.getpid())
    return now[0]


def test_the_end_of_a_job_waits_once_for_all_agents(agents, job, monkeypatch):
    agents("import time; time.sleep(600)")
    supervisors = [AgentSupervisor(f"run-{number}") for number in range(3)]
    for supervisor in supervisors:
        supervisor.start()

    assert waited_seconds(monkeypatch) == pytest.approx(job_end.JOB_END_SECONDS, abs=0.1)
    for supervisor in supervisors:
        supervisor.child.kill()
        supervisor.child.wait()
    assert waited_seconds(monkeypatch) == 0.0


@pytest.mark.fault("P29")
def test_the_end_of_a_job_waits_for_the_agent_that_a_rank_was_faster_to_start(
    agents, job, monkeypatch
):
    agents("pass")
    supervisor = AgentSupervisor("run")
    supervisor.start()
    with (ring_dir("run") / AGENT_LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wait_for_end(supervisor)
        assert waited_seconds(monkeypatch) == pytest.approx(job_end.JOB_END_SECONDS, abs=0.1)
    assert waited_seconds(monkeypatch) == 0.0


def test_the_end_of_a_job_does_not_wait_for_an_agent_that_runs_apart(job, monkeypatch):
    with (ring_dir("run") / AGENT_LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        supervisor = AgentSupervisor("run")
        supervisor.start()
        supervisor.release()

        assert supervisor.is_agent_alive()
        assert waited_seconds(monkeypatch) == 0.0


@pytest.fixture
def other_rank(monkeypatch):
    """Makes a rank of the run `run`, and holds the lock of its agent."""
    with (ring_dir("run") / AGENT_LOCK).open("w") as lock, ranks() as begin:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield begin(1, run="run")


@pytest.mark.fault("P29")
@pytest.mark.parametrize("starts_agent", [False, True])
def test_a_failed_rank_waits_until_that_is_reported(job, monkeypatch, other_rank, starts_agent):
    monkeypatch.setattr(job_end, "time", lambda: NOW)
    end = JobEnd(ring_dir("run"), lambda: True, starts_agent=starts_agent)
    end.note_failure()
    assert waited_seconds(monkeypatch) == pytest.approx(job_end.MAX_FAILURE_SECONDS, abs=0.1)

    settled = ring_dir("run") / SETTLED_NAME
    for reported_at, seconds in ((NOW - 1.0, job_end.MAX_FAILURE_SECONDS), (NOW + 1.0, 0.0)):
        settled.touch()
        os.utime(settled, (reported_at, reported_at))
        assert waited_seconds(monkeypatch) == pytest.approx(seconds, abs=0.1)


def test_the_rank_that_started_the_agent_waits_for_its_end_if_no_other_runs(
    job, monkeypatch, other_rank
):
    other_rank.kill()
    other_rank.wait()
    JobEnd(ring_dir("run"), lambda: True, starts_agent=True).note_failure()
    assert waited_seconds(monkeypatch) == pytest.approx(job_end.JOB_END_SECONDS, abs=0.1)


def test_a_rank_that_finished_waits_for_no_agent_of_another(job, monkeypatch):
    JobEnd(ring_dir("run"), lambda: True, starts_agent=False)
    assert waited_seconds(monkeypatch) == 0.0


def test_a_failed_rank_waits_for_an_agent_that_starts(job, monkeypatch):
    monkeypatch.setattr(job_end, "time", lambda: NOW)
    JobEnd(ring_dir("run"), lambda: False, starts_agent=False).note_failure()
    assert waited_seconds(monkeypatch) == pytest.approx(job_end.AGENT_START_SECONDS, abs=0.1)


@pytest.mark.fault("P29")
def test_a_launcher_does_not_end_a_rank_that_waits(job, monkeypatch):
    monkeypatch.setattr(job_end, "monotonic", lambda: 0.0)
    is_over = [False]

    def end_by_launcher(_):
        os.kill(os.getpid(), signal.SIGTERM)
        is_over[0] = True

    monkeypatch.setattr(job_end, "sleep", end_by_launcher)
    JobEnd(ring_dir("run"), lambda: not is_over[0], starts_agent=True)
    job_end._wait_at_exit(os.getpid())
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_the_agent_command_names_the_run():
    assert agent_command("r-1")[-5:] == ["-m", "sentinel", "agent", "--run", "r-1"]


@pytest.mark.fault("A13")
def test_an_agent_that_exits_is_restarted_with_growing_delays(agents, monkeypatch):
    monkeypatch.setattr(spawn, "monotonic", lambda: NOW)
    agents("raise SystemExit(1)")
    supervisor = AgentSupervisor("run")
    delays = []
    supervisor.start()
    wait_for_end(supervisor)
    first = supervisor.child
    supervisor.poll()
    restarted_at_once = supervisor.child is not first
    for _ in range(9):
        wait_for_end(supervisor)
        supervisor.poll()
        delays.append(supervisor.next_start_at - NOW)
        supervisor.next_start_at = 0.0
        supervisor.poll()

    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert restarted_at_once
    supervisor.release()


@pytest.mark.fault("A13")
def test_an_agent_that_ran_well_is_restarted_at_once_each_time(agents, monkeypatch):
    """Every hour, ten times; then at once, nine times; then after a minute."""
    now = NOW
    monkeypatch.setattr(spawn, "monotonic", lambda: now)
    agents("import time; time.sleep(600)")
    supervisor, delays = AgentSupervisor("run"), []
    supervisor.start()
    for life in [3600.0] * 10 + [0.0] * 9 + [60.0]:
        now += life
        supervisor.child.kill()
        wait_for_end(supervisor)
        supervisor.poll()
        delay = 0.0 if supervisor.next_start_at is None else supervisor.next_start_at - now
        delays.append(delay)
        now += delay
        supervisor.poll()
        assert supervisor.child.poll() is None

    assert delays == [0.0] * 10 + [1, 2, 4, 8, 16, 32, 60, 60, 60] + [0.0]
    supervisor.child.kill()
    supervisor.child.wait()


@pytest.mark.fault("A28")
def test_a_killed_agent_that_a_disk_holds_is_replaced(agents, monkeypatch):
    agents("import time; time.sleep(600)")
    supervisor = AgentSupervisor("run")
    supervisor.start()
    first = supervisor.child
    monkeypatch.setattr(spawn, "is_killed", lambda pid: pid == first.pid)
    supervisor.poll()

    assert supervisor.child.pid != first.pid
    for each in (first, supervisor.child):
        each.returncode = None
        each.kill()
        each.wait()


def test_no_agent_is_started_while_another_one_serves_the_run(agents):
    agents("")
    supervisor = AgentSupervisor("run")
    with (ring_dir("run") / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        supervisor.start()
        for _ in range(3):
            supervisor.poll()
        assert supervisor.child is None

    supervisor.poll()
    assert supervisor.child is not None
    supervisor.release()


def test_an_agent_that_found_another_one_is_not_restarted_meanwhile(agents):
    """The other agent took the lock between our check and that of our agent."""
    agents("")
    supervisor = AgentSupervisor("run")
    supervisor.start()
    with (ring_dir("run") / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wait_for_end(supervisor)
        for _ in range(3):
            supervisor.poll()
        assert supervisor.child is None


def test_a_failing_agent_is_reported_once_and_restarted(agents, capsys):
    agents("raise ImportError('no such thing')")
    supervisor = AgentSupervisor("run")
    supervisor.start()
    for _ in range(3):
        wait_for_end(supervisor)
        supervisor.poll()
        if supervisor.child is None:
            supervisor.next_start_at = 0.0
            supervisor.poll()

    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1
    assert "no such thing" in stderr
    supervisor.release()


def test_invalid_settings_are_reported_once_and_the_agent_is_not_restarted(agents, capsys):
    agents(
        f"import sys; print('noise'); print('port: not a number.'); sys.exit({EXIT_BAD_SETTINGS})"
    )
    supervisor = AgentSupervisor("run")
    supervisor.start()
    wait_for_end(supervisor)
    for _ in range(5):
        supervisor.poll()

    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1
    assert "port: not a number." in stderr
    assert supervisor.next_start_at is None


@pytest.mark.fault("A5")
def test_an_agent_that_cannot_be_started_is_reported_once(monkeypatch, capsys):
    monkeypatch.setattr(spawn, "agent_command", lambda _: ["/no/such/program"])
    supervisor = AgentSupervisor("run")
    supervisor.start()
    supervisor.poll()

    assert capsys.readouterr().err.count("\n") == 1


def test_the_process_is_not_checked_between_two_polls(monkeypatch):
    monkeypatch.setattr(spawn, "monotonic", lambda: NOW)
    supervisor = AgentSupervisor("run")
    supervisor.next_poll_at = NOW + 0.1
    monkeypatch.setattr(supervisor, "start", lambda: pytest.fail("checked too early"))
    supervisor.next_start_at = 0.0

    supervisor.poll()


def test_an_exited_agent_is_restarted_at_the_end_of_the_run(agents):
    """Some agent must report the end of the run."""
    agents("raise SystemExit(1)")
    supervisor = AgentSupervisor("run")
    supervisor.restart_delay = 60.0
    supervisor.start()
    wait_for_end(supervisor)
    first = supervisor.child
    supervisor.release()

    assert supervisor.child is not first
    subprocess.run(["true"], check=True)


def test_the_environment_of_the_agent_names_its_settings_and_sources(tmp_path):
    environ = agent_environment({"PYTHONPATH": "other"}, tmp_path / "sentinel.toml")

    assert environ["SENTINEL_CONFIG"] == str(tmp_path / "sentinel.toml")
    assert environ["PYTHONPATH"].endswith(":other")


@pytest.mark.fault("P28")
@pytest.mark.parametrize(
    "added",
    [
        {"PYTHONPATH": "x" * (1 << 17)},
        {"BIG": "x" * (1 << 17)},
        {f"BIG{number}": "x" * (100 << 10) for number in range(64)},
    ],
    ids=["paths", "variable", "total"],
)
def test_an_environment_that_no_program_can_be_given_is_reduced(tmp_path, added):
    trainer = os.environ | {"SENTINEL_PORT": "0"} | added
    environ = agent_environment(trainer, tmp_path / "sentinel.toml")

    subprocess.run([sys.executable, "-c", "import sentinel.client.spawn"], env=environ, check=True)
    assert environ["SENTINEL_PORT"] == "0"
    assert environ["PATH"] == os.environ["PATH"]


def test_only_local_rank_0_starts_an_agent(agents, monkeypatch, tmp_path):
    agents("")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with sentinel.monitor():
        pass

    assert list(tmp_path.rglob("agent.log")) == []


def test_an_agent_outlives_the_run_in_a_session_of_its_own(agents, tmp_path):
    agents("import os; print(os.getsid(0) == os.getpid(), flush=True)")
    with sentinel.monitor(run="r"):
        pass

    (log,) = tmp_path.rglob("agent.log")
    until(log.read_text, TIMEOUT_SECONDS, "output of the agent")
    assert log.read_text() == "True\n"
