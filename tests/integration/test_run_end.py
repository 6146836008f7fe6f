"""How a run ended, as the notification says it: signals, exit codes, memory, exceptions."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from support.rank_processes import has_agent, until
from support.the_only import the_only
from support.webhook_receiver import Receiver

from sentinel.model.record import Event
from sentinel.store.database import connect
from sentinel.store.history import History

TIMEOUT_SECONDS = 240.0
MEMORY_CGROUPS = Path("/sys/fs/cgroup/memory")

SCRIPT = """
import ctypes, os, signal, sys, time
import sentinel

mode, marks = sys.argv[1:3]
rank = os.environ["RANK"]
logged = os.open(f"{marks}/logged-{rank}", os.O_WRONLY | os.O_CREAT)

def end(step):
    if not os.path.exists(f"{marks}/go"):
        return
    if mode == "segfault":
        ctypes.string_at(0)
    if mode == "abort":
        os.abort()
    if mode == "exit":
        os._exit(3)
    if mode == "exec":
        os.execv(sys.executable, [sys.executable, "-c", "raise SystemExit(9)"])
    if mode == "memory":
        kept = []
        while True:
            kept.append(b"x" * (1 << 24))
    if mode == "raise":
        try:
            {}["shard-7"]
        except KeyError as error:
            raise ValueError("cannot read https://me:hunter2@host/x?sig=1, token=abc") from error

@sentinel.monitor(run="ends")
def train():
    if mode == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode == "handler":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for step in range(1, 1_000_000):
        sentinel.log({"loss": 5.0 * 0.99 ** step}, step=step)
        os.write(logged, b"%d\\n" % step)
        if step == 5:
            open(f"{marks}/{rank}", "w").close()
        end(step)
        time.sleep(0.02)

train()
"""


class Run:
    """Ranks without a launcher, in a process group of their own, and what is received of them."""

    def __init__(self, folder, receiver):
        self.folder, self.receiver = folder, receiver
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, mode, *, ranks=1, prefix=(), preexec=None):
        (self.folder / "train.py").write_text(SCRIPT)
        for rank in range(ranks):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
            place |= {"LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": os.getpid()}
            command = [*prefix, sys.executable, "train.py", mode, str(self.folder)]
            self.processes.append(
                subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env={**os.environ, **{name: str(value) for name, value in place.items()}},
                    stderr=subprocess.DEVNULL,
                    process_group=self.processes[0].pid if self.processes else 0,
                    preexec_fn=preexec,  # noqa: PLW1509 - no other thread runs yet
                )
            )
        for rank in range(ranks):
            until((self.folder / str(rank)).exists, TIMEOUT_SECONDS, "5 steps")
        until(lambda: self.agent_pid() and self.has_steps(), TIMEOUT_SECONDS, "the agent reads")
        (self.folder / "go").touch()
        return self

    @property
    def directory(self):
        """Where the files of the run are now."""
        shared = self.folder.glob("rings/*/state/sentinel.db")
        return next((database.parent for database in shared), None) or self.home

    @property
    def home(self):
        return next((self.folder / "home" / "runs").iterdir())

    def agent_pid(self):
        with suppress(StopIteration, OSError, ValueError):
            return int(json.loads((self.directory / "agent.json").read_text())["pid"])
        return 0

    def has_steps(self):
        """Whether the agent has read steps."""
        with closing(sqlite3.connect(self.directory / "sentinel.db")) as connection:
            return connection.execute("select count(*) from step").fetchone()[0]

    def signal(self, number):
        os.killpg(self.processes[0].pid, number)

    def trainer(self):
        """The child of `sentinel run` that is not its agent."""
        children = psutil.Process(self.processes[0].pid).children()
        (trainer,) = [each for each in children if "agent" not in each.cmdline()]
        return trainer

    def alerts(self):
        alerts = [request.json["alerts"][0] for request in self.receiver.accepted]
        return [
            (a["labels"]["detector"], a["labels"]["severity"], a["annotations"]["summary"])
            for a in alerts
        ]

    def statuses(self):
        """Detector and status of each alert."""
        alerts = [request.json["alerts"][0] for request in self.receiver.accepted]
        return [(alert["labels"]["detector"], alert["status"]) for alert in alerts]

    def alert(self):
        """The only alert, once it is received: detector, severity, and summary without steps."""
        until(self.alerts, TIMEOUT_SECONDS, "a notification")
        detector, severity, summary = the_only(self.alerts())
        return detector, severity, re.sub(r"step \d+", "step N", summary)

    def missing_steps(self):
        """Steps of rank 0 that `log` returned for and that are not in the database."""
        logged = set(map(int, (self.folder / "logged-0").read_text().split()))
        with closing(connect(self.directory / "sentinel.db")) as database:
            records = History(database).records(self.directory.name)
            return logged - {record.step for record in records if record.event is Event.STEP}

    def wait_until_over(self):
        """Wait until the agent has ended."""
        until(lambda: not has_agent(self.directory), TIMEOUT_SECONDS, "the agent ends")

    def close(self):
        with suppress(IndexError, ProcessLookupError):
            self.signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()
        self.wait_until_over()


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.setenv("SENTINEL_LINGER_SECONDS", "0")
    with Receiver() as receiver:
        monkeypatch.setenv("SENTINEL_SINKS__WEBHOOK__URL", receiver.url)
        run = Run(tmp_path, receiver)
        yield run
        run.close()


@pytest.mark.fault("P6")
@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("segfault", "Rank 0 ended by SIGSEGV (segmentation fault) at step N; no rank is left."),
        (
            "exit",
            "Rank 0 ended with exit code 3 at step N without an error message; no rank is left.",
        ),
    ],
)
def test_the_end_of_a_process_is_described(run, mode, text):
    assert run.start(mode).alert() == ("run_died", "critical", text)


@pytest.mark.full
@pytest.mark.fault("P6")
@pytest.mark.parametrize(
    ("mode", "status", "end"),
    [
        ("abort", -signal.SIGABRT, "ended by SIGABRT (abort) at step N"),
        ("exec", 9, "ended with exit code 9 at step N without an error message"),
    ],
)
def test_an_end_without_an_exception_loses_no_record(run, mode, status, end):
    run.start(mode)

    assert run.processes[0].wait(TIMEOUT_SECONDS) == status
    assert run.alert() == ("run_died", "critical", f"Rank 0 {end}; no rank is left.")
    run.wait_until_over()
    assert run.missing_steps() == set()


@pytest.mark.full
@pytest.mark.fault("P7")
@pytest.mark.parametrize(
    ("number", "alerts"),
    [
        (signal.SIGHUP, [("run_died", "warning", "Rank 0 was ended by SIGHUP at step N.")]),
        (signal.SIGINT, []),
    ],
)
def test_a_signal_of_the_terminal_loses_no_record(run, number, alerts):
    run.start("plain").signal(number)

    assert run.processes[0].wait(TIMEOUT_SECONDS) == -number
    run.wait_until_over()
    assert [
        (*alert[:2], re.sub(r"step \d+", "step N", alert[2])) for alert in run.alerts()
    ] == alerts
    assert run.missing_steps() == set()


@pytest.mark.full
@pytest.mark.fault("P11")
def test_a_run_that_is_stopped_and_continued_is_one_incident(run, monkeypatch):
    monkeypatch.setenv("SENTINEL_DETECTORS__RUN_STALLED__FLOOR", "2")
    monkeypatch.setenv("SENTINEL_RESOLVE_SECONDS", "0")
    monkeypatch.setenv("SENTINEL_COOLDOWN_SECONDS", "0")
    run.start("plain", ranks=2).signal(signal.SIGSTOP)
    until(run.alerts, TIMEOUT_SECONDS, "the notification arrives")
    run.signal(signal.SIGCONT)
    until(lambda: len(run.statuses()) > 1, TIMEOUT_SECONDS, "the incident is resolved")

    assert run.statuses() == [("run_stalled", "firing"), ("run_stalled", "resolved")]
    assert "suspended by SIGSTOP" in run.alerts()[0][2]


@pytest.mark.fault("P4")
def test_an_exception_has_message_and_location_without_secrets(run):
    line = SCRIPT.splitlines().index(next(x for x in SCRIPT.splitlines() if "hunter2" in x)) + 1

    text = (
        f"Rank 0 raised ValueError at step N (train.py:{line} in end): "
        "cannot read https://***@host/x?***, token=***."
    )
    assert run.start("raise").alert() == ("run_failed", "critical", text)
    assert b"hunter2" not in run.receiver.accepted[0].body
    cause = f"KeyError: 'shard-7' (train.py:{line - 2} in end)"
    assert cause.encode() in run.receiver.accepted[0].body


@pytest.mark.fault("P3")
@pytest.mark.parametrize("mode", ["plain", pytest.param("handler", marks=pytest.mark.full)])
def test_sigterm_to_the_group_is_a_warning(run, mode):
    """As scancel sends it; torchrun, too, is ended with its ranks."""
    run.start(mode, ranks=2).signal(signal.SIGTERM)

    detector, severity, summary = run.alert()
    assert (detector, severity) == ("run_died", "warning")
    assert summary.startswith("Ranks 0-1 were ended by SIGTERM at step N")


@pytest.mark.fault("P3")
def test_sigkill_after_an_ignored_sigterm_is_a_warning(run):
    """The agent receives the SIGTERM of the scheduler too, which is how it is known."""
    run.start("ignore").signal(signal.SIGTERM)
    os.kill(run.agent_pid(), signal.SIGTERM)
    time.sleep(0.5)
    run.signal(signal.SIGKILL)

    detector, severity, summary = run.alert()
    assert (detector, severity) == ("run_died", "warning")
    assert summary.startswith("Rank 0 was ended by SIGTERM at step N")


@pytest.mark.fault("P3")
@pytest.mark.parametrize(
    ("mode", "to"),
    [("plain", "launcher"), pytest.param("ignore", "group", marks=pytest.mark.full)],
)
def test_sigterm_to_sentinel_run_sends_nothing(run, mode, to):
    run.start(mode, prefix=(sys.executable, "-m", "sentinel", "run", "--run", "ends", "--"))
    if to == "launcher":
        run.processes[0].send_signal(signal.SIGTERM)
    else:
        run.signal(signal.SIGTERM)
    if mode == "ignore":
        time.sleep(0.5)
        run.trainer().kill()
    run.processes[0].wait(TIMEOUT_SECONDS)
    run.wait_until_over()

    assert run.alerts() == []


@pytest.mark.full
@pytest.mark.fault("A1")
def test_under_sentinel_run_a_trainer_that_is_killed_with_its_agent_is_reported(run):
    run.start("plain", prefix=(sys.executable, "-m", "sentinel", "run", "--run", "ends", "--"))
    trainer, agent = run.trainer(), run.agent_pid()
    trainer.kill()
    os.kill(agent, signal.SIGKILL)

    text = "Rank 0 was killed by SIGKILL at step N; no rank is left."
    assert run.alert() == ("run_died", "critical", text)


@contextmanager
def memory_cgroup(limit_bytes):
    """A group of version 1 with that limit; skips where none can be created."""
    own = next(
        (line.split(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines()
         if line.split(":")[1] == "memory"), None,
    )  # fmt: skip
    group = MEMORY_CGROUPS / (own or "").lstrip("/") / f"sentinel-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
    except OSError as error:
        pytest.skip(f"no memory control group can be created here: {error}")
    try:
        yield group
    finally:
        until(lambda: not (group / "cgroup.procs").read_text(), 240.0, "the group is empty")
        group.rmdir()


OOM_TEXT = (
    "Rank 0 was killed by the out-of-memory killer (limit 512 MiB) at step N; no rank is left."
)


@pytest.mark.full
@pytest.mark.fault("P2")
def test_the_out_of_memory_killer_is_named_with_the_limit(run):
    with memory_cgroup(1 << 29) as group:

        def join():
            (group / "cgroup.procs").write_text("0")

        try:
            assert run.start("memory", preexec=join).alert() == (
                "run_died",
                "critical",
                OOM_TEXT,
            )
        finally:
            run.close()
