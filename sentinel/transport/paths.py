"""Paths of the files of a run, and the lock that marks a running agent.

What must last is in the home directory: `$SENTINEL_HOME/runs/<run id>`, by default below the user's
state directory. What the processes of a node share is in shared memory, see `runtime_dir`: rings,
unless it is too small for them, the lock and the start log of the agent, and in `state` the run
directory in which the agent works. Its files are copied to the home directory, whose disk may not
respond.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from sentinel.transport.mounts import find_mount
from sentinel.transport.process import is_killed

AGENT_LOCK = "agent.lock"
"""File that a running agent holds locked, in shared memory and in the run directory."""
START_LOG_NAME = "agent.log"
"""File in shared memory with the output of an agent until it has found its run directory."""
SENT_LOG_NAME = "sent.jsonl"
"""File in shared memory with the keys of sent notifications."""
SETTLED_NAME = "settled"
"""File in shared memory with the newest reported failure, whose time is that of the newest reported
end of a rank, see `JobEnd`."""
DATABASE_NAME = "sentinel.db"
BASELINES_NAME = "baselines"
"""Directory of the trajectories of healthy runs."""
INSIGHT_NAME = "insight"
"""Directory in that of a run with the results of insight."""
MIN_DATABASE_BYTES = 8 << 20
"""Room in shared memory that a database needs."""
_DATABASE_SHARE = 0.25
"""Share of the free shared memory that a database may take."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - owner and mode of what is in it are checked
_RUNTIME_DIR_NAMES = 10
"""How many names another user must take in shared memory before the home directory is used."""
HOME_TIMEOUT_SECONDS = 1.0
"""Longest wait for a home directory on a file server."""
_HANG_MEMORY_SECONDS = 30.0

_RUN_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_RING_NAME = re.compile(r"(\d+)-(\d+)\.ring")
_OWNER_FILE = "owner_host"
_LOCK_TABLE = Path("/proc/locks")
_STATE_NAME = "state"
HOME_RINGS_NAME = "rings-at-home"
"""Name of the empty file in shared memory that marks rings in the home directory."""
REMOVED_SUFFIX = ".removed"
"""Suffix of the empty file that marks a ring which was read and removed."""


class RunIdError(ValueError):
    """A run id that is not a safe directory name."""


class UnsafeDirectoryError(OSError):
    """A directory that another user owns or may write to."""


def describe_error(error: Exception) -> str:
    """The error as one sentence; for a file or directory, its path and the reason.

    >>> describe_error(PermissionError(13, "Permission denied", "/sys/runs"))
    'cannot use /sys/runs (Permission denied); `sentinel doctor` shows the remedy.'
    """
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.filename and error.strerror:
        text = f"cannot use {error.filename} ({error.strerror}); `sentinel doctor` shows the remedy"
    return text if text.endswith(".") else f"{text}."


def home_dir() -> Path:
    """`$SENTINEL_HOME`, else `sentinel` in the user's state directory. Not created."""
    chosen = os.environ.get("SENTINEL_HOME")
    if chosen:
        return Path(chosen)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else _user_home() / ".local" / "state") / "sentinel"


def _user_home() -> Path:
    """Home directory of the user; the root directory for one without `HOME` and without an entry in
    the user database, as container runtimes set it for such a user.
    """
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def runtime_dir(*, make: bool) -> Path:
    """`$SENTINEL_RUNTIME_DIR`, or `/dev/shm/sentinel-<uid>`; with `make`, it is created.

    Where another user took the name of the default one, it is the next of `_default_runtime_dirs`.
    All processes of this user find the same: the first that is theirs, whatever becomes of those
    before it, and only if there is none the first that can be created. Raises UnsafeDirectoryError,
    OSError.
    """
    chosen = os.environ.get("SENTINEL_RUNTIME_DIR")
    if chosen:
        return _make_root(Path(chosen)) if make else Path(chosen)
    first_error: OSError | None = None
    for path in _default_runtime_dirs():
        if _is_private_dir(path):
            return path
    for path in _default_runtime_dirs():
        if not make:
            return path
        try:
            if path.parent != SHARED_MEMORY:
                _make_root(path.parent)
            return _make_private_dir(path)
        except OSError as error:
            first_error = first_error or error
    assert first_error is not None
    raise first_error


def _default_runtime_dirs() -> Iterator[Path]:
    """The default runtime directory, then those that replace it.

    They do not depend on the environment of the process, but for the home directory. One of a
    login, `$XDG_RUNTIME_DIR`, is none of them: it is not known to a job, and ends with the login.
    """
    default = SHARED_MEMORY / f"sentinel-{os.geteuid()}"
    yield default
    for number in range(1, _RUNTIME_DIR_NAMES):
        yield default.with_name(f"{default.name}-{number}")
    # A mapped file on a file server could block or kill the trainer.
    if not is_home_remote():
        yield home_dir() / "shared"


def foreign_runtime_dir() -> Path | None:
    """The default runtime directory if another user took its name, so that another one is used."""
    if os.environ.get("SENTINEL_RUNTIME_DIR"):
        return None
    default = next(_default_runtime_dirs())
    return default if os.path.lexists(default) and not _is_private_dir(default) else None


def private_cache_dir(name: str) -> Path:
    """A directory in the user's cache, created if missing. Raises UnsafeDirectoryError, OSError."""
    return _make_private_dir(_make_root(cache_dir()) / name)


def cache_dir() -> Path:
    """`sentinel` in the user's cache directory. Not created."""
    chosen = os.environ.get("XDG_CACHE_HOME")
    return (Path(chosen) if chosen else _user_home() / ".cache") / "sentinel"


def run_dir(run_id: str) -> Path:
    """Directory of a run, created if missing. Raises RunIdError, UnsafeDirectoryError."""
    return _make_private_dir(
        _make_private_dir(_make_root(home_dir()) / "runs") / validate_run_id(run_id)
    )


def ring_dir(run_id: str) -> Path:
    """Shared-memory directory of a run, created if missing. Raises like `run_dir`."""
    return _make_private_dir(runtime_dir(make=True) / validate_run_id(run_id))


def shared_run_dir(run_id: str) -> Path:
    """Path of `ring_dir`. Creates nothing. Raises RunIdError."""
    return runtime_dir(make=False) / validate_run_id(run_id)


def shared_state_path(run_id: str) -> Path:
    """Path of the run directory in shared memory. Creates nothing. Raises RunIdError."""
    return shared_run_dir(run_id) / _STATE_NAME


def shared_state_dir(run_id: str) -> Path:
    """Run directory in shared memory, created if missing. Raises like `run_dir`."""
    return _make_private_dir(ring_dir(run_id) / _STATE_NAME)


def shared_memory_room(directory: Path) -> int:
    """Bytes of the shared memory at `directory` that a database may take; 0 if it needs more.

    0 too if the directory does not exist.
    """
    try:
        status = os.statvfs(directory)
    except OSError:
        return 0
    share = int(status.f_bavail * status.f_frsize * _DATABASE_SHARE)
    return share if share >= MIN_DATABASE_BYTES else 0


def path_digest(path: Path) -> str:
    """A name for files about the log at that path."""
    # Only the processes that read logs need this module.
    import hashlib  # noqa: PLC0415

    return hashlib.sha256(os.fsencode(path.absolute())).hexdigest()


def current_run_dir(run_id: str) -> Path:
    """Where the files of the run are now. Creates nothing. Raises RunIdError.

    That is in shared memory while its database is there, else in the home directory.
    """
    fallback = shared_run_dir(run_id) / _STATE_NAME
    return fallback if (fallback / DATABASE_NAME).exists() else home_dir() / "runs" / run_id


def list_current_run_dirs() -> dict[str, Path]:
    """`current_run_dir` of every run of this user, by run id. Creates nothing.

    A home directory whose file server does not answer is left out, see `read_home`.
    """
    directories = {path.name: path for path in _list_home_runs()}
    for database in runtime_dir(make=False).glob(f"*/{_STATE_NAME}/{DATABASE_NAME}"):
        directories[database.parent.parent.name] = database.parent
    return dict(sorted(directories.items()))


def ring_path(run_id: str, attempt: int, rank: int) -> Path:
    """Path of a rank's ring in shared memory."""
    return ring_dir(run_id) / ring_name(attempt, rank)


def ring_name(attempt: int, rank: int) -> str:
    """File name of a ring."""
    return f"{attempt}-{rank}.ring"


def attempt_from_ring_name(name: str) -> int:
    """The attempt in a ring's file name; -1 for any other file.

    >>> attempt_from_ring_name("2-15.ring"), attempt_from_ring_name("agent.lock")
    (2, -1)
    """
    match = _RING_NAME.fullmatch(name)
    return int(match[1]) if match else -1


def list_shared_run_ids() -> set[str]:
    """Ids of the runs of this user that have a directory in shared memory."""
    return {name for name in _list_names(runtime_dir(make=False)) if _RUN_ID.fullmatch(name)}


def list_runs() -> list[str]:
    """Ids of all runs of this user that have a directory, sorted. Waits like `read_home`."""
    names = {*list_shared_run_ids(), *(path.name for path in _list_home_runs())}
    return sorted(name for name in names if _RUN_ID.fullmatch(name))


def list_rings(run_id: str, known: Container[str] = ()) -> list[Path]:
    """Every ring of a run, by attempt, then rank, but for those with a path in `known`.

    Creates nothing, and never waits for a server.
    While the agent works in shared memory, the home directory, whose disk may not respond, is read
    only if it is known to have rings.
    """
    shared = shared_run_dir(run_id)
    directories = [shared]
    is_agent_shared = (shared / _STATE_NAME / DATABASE_NAME).exists()
    may_be_at_home = not is_agent_shared or (shared / HOME_RINGS_NAME).exists()
    if may_be_at_home and not is_home_remote():
        directories.append(home_dir() / "runs" / run_id)
    rings: list[tuple[int, int, Path]] = []
    for directory in directories:
        for name in _list_names(directory):
            if f"{directory}/{name}" in known:
                continue
            match = _RING_NAME.fullmatch(name)
            if match:
                rings.append((int(match[1]), int(match[2]), directory / name))
    return [path for _, _, path in sorted(rings)]


def list_shared_rings() -> list[Path]:
    """Every ring of this user in shared memory, of all runs. Creates nothing."""
    return sorted(runtime_dir(make=False).glob("*/*.ring"))


def mark_home_rings(run_id: str) -> None:
    """Record that rings of the run are in the home directory, see `list_rings`."""
    # Without an inode for this file the agent cannot work in shared memory either.
    with suppress(OSError):
        (ring_dir(run_id) / HOME_RINGS_NAME).touch(mode=0o600)


def mark_ring_removed(run_id: str, ring: Path) -> None:
    """Record that a ring is about to be removed, so that its attempt number is not reused.

    The mark is in shared memory; the agent moves it to the home directory at its end.
    """
    (shared_state_dir(run_id) / f"{ring.name}{REMOVED_SUFFIX}").touch(mode=0o600)


def is_home_remote() -> bool:
    """Whether the home directory is on a file server, which may hang. Never waits for it."""
    return find_mount(home_dir()).is_remote


class HomeEntries(NamedTuple):
    """What a rank that starts needs to know of the run's directory in the home directory.

    `owner` is the host that owns the run id, "" if none is recorded.
    """

    owner: str
    names: tuple[str, ...]


def read_home(run_id: str) -> HomeEntries:
    """The run's entries in the home directory; empty if they cannot be read.

    Waits at most `HOME_TIMEOUT_SECONDS` for a file server. Creates nothing. Raises RunIdError.
    """
    directory = home_dir() / "runs" / validate_run_id(run_id)
    if not is_home_remote():
        try:
            owner = (directory / _OWNER_FILE).read_text()
        except OSError:
            owner = ""
        return HomeEntries(owner, tuple(_list_names(directory)))
    owner, *names = _run_listing(f'cat "$1/{_OWNER_FILE}"; echo; ls -A "$1"', directory) or [""]
    return HomeEntries(owner, tuple(names))


def _list_home_runs() -> list[Path]:
    runs = home_dir() / "runs"
    names = _run_listing('ls -A "$1"', runs) if is_home_remote() else _list_names(runs)
    return [runs / name for name in names if _RUN_ID.fullmatch(name)]


def _list_names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208 - only the names are needed
    except OSError:
        return []


def _run_listing(script: str, directory: Path) -> list[str]:
    """Lines that a shell prints about a directory on a file server; none if that hangs.

    In a process of its own, since nothing ends a thread that waits for a file server: it would
    delay the exit of this process.
    """
    if monotonic() < _HangingHome.retry_at:
        return []
    # Few runs need this module.
    import subprocess  # noqa: PLC0415

    try:
        child = subprocess.Popen(  # noqa: S603 - our own command line
            ["/bin/sh", "-c", script, "sh", str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
        )
    except OSError:
        return []
    try:
        return child.communicate(timeout=HOME_TIMEOUT_SECONDS)[0].decode().split("\n")
    except subprocess.TimeoutExpired:
        _HangingHome.retry_at = monotonic() + _HANG_MEMORY_SECONDS
        child.kill()
        # It ends once the server answers; Popen warns about a child that is never waited for.
        child.returncode = 0
        return []
    except UnicodeDecodeError:
        return []
    finally:
        if child.stdout is not None:
            child.stdout.close()


class _HangingHome:
    """Time (monotonic) before which a home directory that did not answer is not tried again."""

    retry_at = 0.0


def removed_ring_names(run_id: str) -> set[str]:
    """File names of the run's removed rings. Creates nothing. Waits like `read_home`."""
    shared = shared_run_dir(run_id) / _STATE_NAME
    names = (*_list_names(shared), *read_home(run_id).names)
    return {name.removesuffix(REMOVED_SUFFIX) for name in names if name.endswith(REMOVED_SUFFIX)}


def write_owner_host(run_id: str, host: str) -> None:
    """Record the host that owns the run id. Raises RunIdError, OSError."""
    path = run_dir(run_id) / _OWNER_FILE
    try:
        is_written = path.read_text() == host
    except (FileNotFoundError, ValueError):
        is_written = False
    if not is_written:
        path.write_text(host)


def is_agent_running(directory: Path) -> bool:
    """Whether an agent holds the lock in that directory. Never waits, creates nothing."""
    path = directory / AGENT_LOCK
    return is_locked(path) and not has_killed_owner(path)


def has_killed_owner(path: Path) -> bool:
    """Whether the agent that holds that lock was killed, and only the kernel still waits for it."""
    try:
        with path.open("rb") as file:
            pid, number = int(file.read(32)), os.fstat(file.fileno()).st_ino
    except (OSError, ValueError):
        return False
    return is_killed(pid) and _holds_lock(pid, number)


def _holds_lock(pid: int, number: int) -> bool:
    """Whether the process holds the exclusive lock of the file with that inode number.

    A process of another namespace may have the pid that is in the file.
    """
    try:
        rows = [line.split() for line in _LOCK_TABLE.read_text().splitlines()]
    except OSError:
        return False
    return any(
        row[1:5] == ["FLOCK", "ADVISORY", "WRITE", str(pid)]
        and row[5].rpartition(":")[2] == str(number)
        for row in rows
    )


def is_copy(directory: Path) -> bool:
    """Whether a run directory is the copy of one in a shared memory that this process lacks.

    Its agent runs, as in another container, and overwrites what others store there.
    """
    # An agent that works in the home directory has a write-ahead log there.
    return is_agent_running(directory) and not (directory / f"{DATABASE_NAME}-wal").exists()


def is_locked(path: Path) -> bool:
    """Whether a process holds the exclusive lock of that file. Never waits, creates nothing.

    The kernel releases the lock when its owner exits, however it exits. Raises OSError if the file
    system has no locks.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        # Shared, so that two that look at once do not take each other for the owner.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def validate_run_id(run_id: str) -> str:
    """The id itself, if it is valid. Raises RunIdError.

    >>> validate_run_id("demo-3f9a1c")
    'demo-3f9a1c'
    """
    if not _RUN_ID.fullmatch(run_id):
        message = (
            f"Run id {run_id[:160]!r} is not valid: use 1 to 128 characters of A-Z a-z 0-9 . _ - "
            "that do not begin with a dot."
        )
        raise RunIdError(message)
    return run_id


def root_warning(path: Path) -> str:
    """What others could do in a root directory that is used nevertheless; "" if nothing.

    They cannot read or write the files of a run, which are in directories of this user only.
    """
    status = path.stat()
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX:
        return f"{path} is writable by others, who could remove the directories of runs"
    return ""


def _make_root(path: Path) -> Path:
    """Create the directory, or check that no other user decides what is there.

    A link is followed if this user or root made it. Root may use a directory of any user, as in a
    container.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    owners = {path.lstat().st_uid, path.stat().st_uid}
    if os.geteuid() and not owners <= {os.geteuid(), 0}:
        message = f"{path} belongs to another user: choose a directory that you own."
        raise UnsafeDirectoryError(message)
    return path


def _make_private_dir(path: Path) -> Path:
    """Create the directory, or check that no other user can have written to it."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise UnsafeDirectoryError(f"{path} is not a directory: remove it.") from None
        if not _is_private_dir(path):
            message = f"{path} belongs to another user or is writable by others: remove it."
            raise UnsafeDirectoryError(message) from None
    return path


def _is_private_dir(path: Path) -> bool:
    """Whether it is a directory to which no other user can have written."""
    try:
        status = path.lstat()
    except OSError:
        return False
    is_writable_by_others = bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    is_own = status.st_uid == os.geteuid()
    return stat.S_ISDIR(status.st_mode) and is_own and not is_writable_by_others
