"""Fixtures of all tests: isolated directories, raised errors, and readers of rings."""

import fcntl
import itertools
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from support.captured_logs import CapturedLogs
from support.fork_server import TORCH, ForkedProcess, ForkServer
from support.forked_ranks import start_ranks
from support.garbage import with_less_collection
from support.rank_processes import until
from support.recorded_rings import open_rings, read_rings

from sentinel.agent import processor
from sentinel.client import guard, session
from sentinel.model.record import Event, Record
from sentinel.pipeline import pipeline
from sentinel.transport import paths
from sentinel.transport.ring import RingHeader

# One thread for each process of the tests: the threads of several would compete. Read at import.
ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
os.environ.update(dict.fromkeys(ONE_THREAD, "1"))

# No deadline: on a busy machine any example may be slow.
hypothesis_settings.register_profile(
    "no_deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.register_profile(
    "thorough", hypothesis_settings.get_profile("no_deadline"), max_examples=10_000
)
hypothesis_settings.load_profile("no_deadline")

# A shell starts background jobs with SIGINT ignored, which the processes of tests would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_LOGS = CapturedLogs()
logging.getLogger().addHandler(_LOGS)
_PATH_NUMBERS = itertools.count()
RANKS_TIMEOUT_SECONDS = 300.0
"""Time limit for a few ranks that train a few steps, on a slow machine."""
LOG_LINES = 30
"""Lines of an agent's log that the report of a failed test shows."""
_LAUNCHERS = ("RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "SLURM_", "OMPI_", "PMI_", "TORCHELASTIC")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what a failed test logged, and the last lines of each agent's log."""
    report = yield
    if report.failed and _LOGS.records:
        report.sections.append((f"Captured log {call.when}", _LOGS.text))
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if call.when == "call" and report.failed and folder is not None:
        # Agents of the test may still write and remove files.
        with suppress(OSError):
            for path in sorted(folder.glob("**/agent.log")):
                lines = path.read_text(errors="replace").splitlines()[-LOG_LINES:]
                report.sections.append((str(path.relative_to(folder)), "\n".join(lines)))
    return report


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of the test. That of pytest also makes a symbolic link, which takes 3 ms."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = tmp_path_factory.getbasetemp() / f"{name}-{next(_PATH_NUMBERS)}"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(autouse=True)
def isolated(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Keep a test apart from the others. One fixture, since each takes 0.1 ms of every test."""
    _LOGS.clear()
    _isolate_directories(tmp_path, monkeypatch)
    if "swallows_errors" not in request.keywords:
        _raise_swallowed_errors(monkeypatch)
    yield
    assert session.current_session() is None, "the test left a session open"
    # The copies of agents of this process: they would go to the directories of later tests.
    for thread in threading.enumerate():
        if thread.name == "sentinel-home":
            thread.finish(60.0)


def _isolate_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use directories of the test only, without the environment of a launcher."""
    for name in list(os.environ):
        if name.startswith((*_LAUNCHERS, "SENTINEL_", "KUBERNETES_SERVICE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "shm"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache-home"))
    sources = str(Path(__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([sources, os.environ.get("PYTHONPATH", "")]))


def _raise_swallowed_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise errors that sentinel would swallow; tests marked `swallows_errors` check that."""
    monkeypatch.setattr(guard, "on_swallowed_error", _raise)
    monkeypatch.setattr(pipeline, "SKIPPED_ERRORS", ())
    monkeypatch.setattr(processor, "SKIPPED_ERRORS", ())


@pytest.fixture(scope="session", autouse=True)
def end_agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """End the agents of the tests, which otherwise try for a day to reach receivers."""
    yield
    folder = str(tmp_path_factory.getbasetemp())
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_agent = process.cmdline()[-4:-1] == ["sentinel", "agent", "--run"]
            if is_agent and process.environ().get("SENTINEL_HOME", "").startswith(folder):
                process.kill()


@pytest.fixture(scope="session")
def fork_server() -> Iterator[Callable[..., ForkServer]]:
    """Returns a function: the server that has imported the modules with these names."""
    servers: dict[tuple[str, ...], ForkServer] = {}

    def find(*modules: str) -> ForkServer:
        if modules not in servers:
            servers[modules] = ForkServer(modules)
        return servers[modules]

    yield find
    for server in servers.values():
        server.close()


@pytest.fixture
def run_ranks(fork_server: Callable[..., ForkServer], tmp_path: Path) -> Callable[..., str]:
    """Returns a function that runs a script as several ranks of one node and returns their output.

    They have the environment of torchrun's ranks, the ring directory of the test, so `recorded`
    reads their rings, and can import the test helpers. torch and the modules of `frameworks` are
    imported already.
    """

    def run(text: str, ranks: int = 2, frameworks: Sequence[str] = (), **environment: str) -> str:
        path, log = tmp_path / "ranks.py", tmp_path / "ranks.log"
        path.write_text(text)
        here = Path(__file__).parent
        known = [str(here / "frameworks"), str(here), os.environ.get("PYTHONPATH", "")]
        environment |= {"PYTHONPATH": os.pathsep.join(known)}
        server = fork_server(*TORCH, *frameworks)
        with log.open("w") as output:
            started = start_ranks(server, [path], ranks, cwd=tmp_path, output=output, **environment)
        try:
            until(lambda: _are_over(started), RANKS_TIMEOUT_SECONDS, "the ranks have ended")
        finally:
            for each in started:
                each.kill()
        assert [each.wait() for each in started] == [0] * ranks, log.read_text()[-6000:]
        return log.read_text()

    return run


def _are_over(ranks: list[ForkedProcess]) -> bool:
    """Whether all have ended, or one has failed."""
    codes = [rank.poll() for rank in ranks]
    return None not in codes or any(codes)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Let torch compute in one thread, so that sums have one order."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def caplog() -> Iterator[CapturedLogs]:
    """What the test logs, and the levels from which loggers do."""
    yield _LOGS
    _LOGS.restore_levels()


@pytest.fixture
def recorded() -> Callable[[], dict[int, list[Record]]]:
    """Returns a function: records of all rings by rank, in order, without metadata."""

    def read() -> dict[int, list[Record]]:
        found = read_rings()
        return {rank: [r for r in found[rank] if r.event is not Event.METADATA] for rank in found}

    return read


@pytest.fixture
def reported_metadata() -> Callable[[], dict[int, dict[str, str | float]]]:
    """Returns a function: the newest metadata and settings by rank."""

    def read() -> dict[int, dict[str, str | float]]:
        found: dict[int, dict[str, str | float]] = {}
        for rank, records in read_rings().items():
            known = found.setdefault(rank, {})
            for record in records:
                if record.event is Event.METADATA:
                    known |= {**record.values, **record.attributes}
        return found

    return read


@pytest.fixture
def headers() -> Callable[[], dict[int, RingHeader]]:
    """Returns a function: the headers of all rings by rank."""
    return lambda: {header.identity.rank: header for header, _ in open_rings()}


def _raise(error: Exception) -> None:
    raise error


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], list[str]]:
    """Returns a function that writes a script and returns the command line to run it."""

    def write(text: str) -> list[str]:
        path = tmp_path / "train.py"
        path.write_text(with_less_collection(text))
        return [sys.executable, str(path)]

    return write


@pytest.fixture
def isolated_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run commands in the test's directory, on one thread; their agents exit at once."""
    monkeypatch.setenv("SENTINEL_LINGER_SECONDS", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run_without_agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Id of a run whose agent lock is held, so that no agent removes its rings."""
    run = "without-agent"
    monkeypatch.setenv("SENTINEL_RUN_ID", run)
    with (paths.ring_dir(run) / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield run
