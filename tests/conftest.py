"""What every test shares: places of its own, errors that are heard, and rings read back."""

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as budget

from sentinel.agent import processor
from sentinel.client import guard, session
from sentinel.model.record import Event, Record
from sentinel.pipeline import pipeline
from sentinel.transport import paths
from sentinel.transport.record_codec import RecordDecoder
from sentinel.transport.ring import RingCursor, RingHeader, RingReader

# A property holds or it does not, however long a busy machine takes to look.
budget.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
budget.register_profile("thorough", budget.get_profile("unhurried"), max_examples=10_000)
budget.load_profile("unhurried")

_LAUNCHERS = ("RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "SLURM_", "OMPI_", "PMI_", "TORCHELASTIC")


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes to the user's directories, or inherits a launcher's environment."""
    for name in list(os.environ):
        if name.startswith((*_LAUNCHERS, "SENTINEL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "shm"))
    sources = str(Path(__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([sources, os.environ.get("PYTHONPATH", "")]))


@pytest.fixture(autouse=True)
def loud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that we would swallow fails the test, unless swallowing is its subject."""
    if "quiet" not in request.keywords:
        monkeypatch.setattr(guard, "on_swallowed_error", _raise)
        monkeypatch.setattr(pipeline, "SKIPPED_ERRORS", ())
        monkeypatch.setattr(processor, "SKIPPED_ERRORS", ())


@pytest.fixture(autouse=True)
def nothing_left_on() -> Iterator[None]:
    """Every run that a test begins must end in it."""
    yield
    assert session.current_session() is None


@pytest.fixture
def told() -> Callable[[], dict[int, list[Record]]]:
    """Reads every ring there is: records by rank, in order, but for facts about the run."""

    def read() -> dict[int, list[Record]]:
        found = read_rings()
        return {rank: [r for r in found[rank] if r.event is not Event.METADATA] for rank in found}

    return read


@pytest.fixture
def facts() -> Callable[[], dict[int, dict[str, str | float]]]:
    """Reads what every rank told of the run: texts and numbers, the newest of each name."""

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
    """Reads the header of every ring there is, by rank."""
    return lambda: {header.identity.rank: header for header, _ in _opened()}


def read_rings() -> dict[int, list[Record]]:
    """Records of every ring under `$SENTINEL_RUNTIME_DIR`, by rank, attempts joined."""
    found: dict[int, list[Record]] = {}
    for header, reader in _opened():
        who = header.identity
        unpacker = RecordDecoder(who.run, who.attempt, who.rank)
        batch = reader.read(RingCursor())
        assert (batch.lost_frames, batch.corrupt_frames) == (0, 0)
        records = [unpacker.decode(payload) for payload in batch.payloads]
        found.setdefault(who.rank, []).extend(r for r in records if r is not None)
    return found


def _opened() -> Iterator[tuple[RingHeader, RingReader]]:
    root = Path(os.environ["SENTINEL_RUNTIME_DIR"])
    for run in sorted(root.iterdir()) if root.is_dir() else []:
        for path in paths.list_rings(run.name):
            reader = RingReader(path)
            yield reader.read_header(), reader
            reader.close()


def _raise(error: Exception) -> None:
    raise error


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], list[str]]:
    """Writes a script and gives the command line that runs it."""

    def write(text: str) -> list[str]:
        path = tmp_path / "train.py"
        path.write_text(text)
        return [sys.executable, str(path)]

    return write


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in a directory of their own, on one thread; their agents leave at once."""
    monkeypatch.setenv("SENTINEL_LINGER_SECONDS", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def unserved(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A run whose agent's place is taken, so that its rings stay to be read."""
    monkeypatch.setenv("SENTINEL_RUN_ID", "unserved")
    with (paths.run_dir("unserved") / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield "unserved"
