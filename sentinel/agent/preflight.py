"""`sentinel preflight`: runs a training for a few updates and reads what its checks found.

The command runs as under `sentinel run`, in a process group of its own, with files of sentinel that
are deleted at the end. Its output goes to standard error. It is ended as a scheduler ends a job.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from sentinel.agent.command_guard import CommandGuard
from sentinel.agent.command_runner import (
    CommandRunner,
    command_environment,
    print_message,
    publish_exit,
    start_command,
    wait_for_command,
)
from sentinel.agent.process_tree import end_group
from sentinel.agent.written_files import scan_files, written_files
from sentinel.client.spawn import AgentSupervisor, agent_command, agent_environment
from sentinel.config import plugins
from sentinel.model.finding import Scope, Severity, detector_scope
from sentinel.model.record import Event
from sentinel.store.database import connect_read_only
from sentinel.store.history import History
from sentinel.store.set_up import FOUND, check_name, open_problems, read_set_up
from sentinel.transport.launch_status import LAUNCHER_PID_VARIABLE
from sentinel.transport.paths import (
    DATABASE_NAME,
    is_agent_running,
    list_shared_rings,
    ring_dir,
    run_dir,
)
from sentinel.transport.ring import read_header

AGENT_END_SECONDS = 120.0
"""How long the agent may take to process what is left once the command has ended."""
_POLL_SECONDS = 0.05
_UNSET_VARIABLES = ("SENTINEL_RUN_ID", LAUNCHER_PID_VARIABLE, "SENTINEL_PARENT_RANK")
"""Variables by which the command would belong to another run."""


@dataclass
class PreflightResult:
    """What a preflight found.

    `updates` were measured of those that were `wanted`, on `ranks`. `exit_status` is that of a
    command that ended by itself, as a shell returns it; None if it was ended, with SIGKILL if
    `was_killed`. `seconds` is how long it ran until then. `was_interrupted` is whether this process
    received a signal to end. `checks` and `facts` are as in `read_set_up`; the checks include the
    problems that other detectors found. `written` are sizes in bytes by path in the working
    directory; not all files were compared unless `all_compared`.
    """

    wanted: int
    updates: int = 0
    ranks: int = 0
    seconds: float = 0.0
    exit_status: int | None = None
    was_killed: bool = False
    was_interrupted: bool = False
    checks: list[dict[str, Any]] = field(default_factory=list)
    facts: list[dict[str, str]] = field(default_factory=list)
    written: Mapping[str, int] = field(default_factory=dict)
    all_compared: bool = True

    @property
    def is_complete(self) -> bool:
        """Whether all updates were measured."""
        return self.updates >= self.wanted

    @property
    def has_problem(self) -> bool:
        """Whether a check found a problem."""
        return any(each["result"] == FOUND for each in self.checks)


class Preflight(CommandRunner):
    """A preflight of `command`: so many `updates` of each rank, for at most `max_seconds`."""

    def __init__(self, command: list[str], updates: int, max_seconds: float) -> None:
        super().__init__(command)
        self.max_seconds = max_seconds
        self.result = PreflightResult(updates)
        self._began, self._ended_at = time.monotonic(), inf
        """When the command was started, and when it was ended, in seconds since the epoch."""

    def measure(self) -> PreflightResult:
        """Run the command and return the result. Raises OSError if it cannot be monitored."""
        before = scan_files(Path.cwd())
        with _own_files():
            self._run()
        after = scan_files(Path.cwd())
        self.result.written = written_files(before, after)
        self.result.all_compared = before.complete and after.complete
        return self.result

    def _run(self) -> None:
        launch = self.publish_launch()
        guard = CommandGuard(launch.run, agent_environment(os.environ, None))
        supervisor = AgentSupervisor(launch.run)
        supervisor.start()
        self._began = time.monotonic()
        environ = command_environment(os.environ, launch)
        with _terminal_of_group() as prepare:
            pid = start_command(self.command, environ, guard, prepare)

            def poll() -> None:
                nonlocal launch
                try:
                    supervisor.poll()
                finally:
                    if self._ended_at == inf and self._is_over():
                        self._ended_at = time.time()
                        print_message("the command is ended now, by SIGTERM.", "preflight")
                        launch = launch.with_stop_signal(signal.SIGTERM.name, self._ended_at)
                        with suppress(OSError):
                            launch.write()
                        self.result.was_killed = end_group(pid, agent_command(launch.run))

            code = wait_for_command(pid, poll, self._on_stop_signal)
            # What a command left behind that ended by itself.
            end_group(pid, agent_command(launch.run))
        if self._ended_at == inf:
            self.result.exit_status = code
            self.result.seconds = time.monotonic() - self._began
        publish_exit(launch.with_exit(code, time.time()), supervisor)
        _await_agent(launch.run, supervisor)
        self._read(run_dir(launch.run) / DATABASE_NAME)

    def _on_stop_signal(self, _: int) -> None:
        self.result.was_interrupted = True

    def _is_over(self) -> bool:
        result = self.result
        self._count_updates()
        result.seconds = time.monotonic() - self._began
        return result.is_complete or result.was_interrupted or result.seconds >= self.max_seconds

    def _count_updates(self) -> None:
        """Count the updates that all ranks have taken in the newest attempt."""
        headers = [*filter(None, map(read_header, list_shared_rings()))]
        attempt = max((each.identity.attempt for each in headers), default=0)
        newest = [each for each in headers if each.identity.attempt == attempt]
        if newest and len(newest) >= newest[-1].identity.local_world_size:
            self.result.updates = min(each.last_step_index for each in newest)
            self.result.ranks = len(newest)

    def _read(self, path: Path) -> None:
        """Read what the agent stored; nothing if there was no training."""
        if not path.is_file():
            return
        with closing(connect_read_only(path)) as connection:
            history = History(connection)
            if self._ended_at == inf:
                # Some updates of a command that ended by itself were not counted.
                self.result.updates = max(self.result.updates, history.event_count(Event.STEP))
            found = read_set_up(connection)
            self.result.facts = found["facts"]
            self.result.checks = [*self._other_problems(history), *found["checks"]]

    def _other_problems(self, history: History) -> Iterator[dict[str, Any]]:
        """What detectors of the training found beside the checks before the command was ended."""
        kinds = plugins.load_classes("detectors")
        for name, each in open_problems(history, until=self._ended_at).items():
            kind = kinds.get(name)
            if kind is None or check_name(kind) or detector_scope(kind) is Scope.PROCESS:
                continue
            if each["severity"] != Severity.INFO.value:
                yield {"check": name, "detector": name, **each}


@contextmanager
def _own_files() -> Iterator[None]:
    """Use a home directory and shared files that are deleted at the end, and send nothing."""
    environ = dict(os.environ)
    with TemporaryDirectory(prefix="sentinel-preflight-", ignore_cleanup_errors=True) as folder:
        for name in _UNSET_VARIABLES:
            os.environ.pop(name, None)
        os.environ |= {
            "SENTINEL_HOME": f"{folder}/home",
            "SENTINEL_RUNTIME_DIR": f"{folder}/shared",
            "SENTINEL_PREFLIGHT": "true",
        }
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(environ)


@contextmanager
def _terminal_of_group() -> Iterator[Callable[[], None]]:
    """Gives what makes a process the leader of a group, which may read from our terminal.

    Its standard output is our standard error, so that ours has the result only.
    """
    own_group = os.getpgrp()
    is_foreground = os.isatty(0) and os.tcgetpgrp(0) == own_group

    def prepare() -> None:
        os.setpgid(0, 0)
        # Our caller may have closed it.
        with suppress(OSError):
            os.dup2(2, 1)
        if is_foreground:
            _set_foreground(os.getpgrp())

    try:
        yield prepare
    finally:
        if is_foreground:
            _set_foreground(own_group)


def _set_foreground(group: int) -> None:
    """Let the group read from the terminal at standard input."""
    # The kernel would stop a group in the background that does this.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    # The terminal may be gone.
    with suppress(OSError):
        os.tcsetpgrp(0, group)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _await_agent(run: str, supervisor: AgentSupervisor) -> None:
    """Wait until the agent has stored all; end one that does not."""
    directory, deadline = ring_dir(run), time.monotonic() + AGENT_END_SECONDS
    while is_agent_running(directory) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    if supervisor.child is not None:
        with suppress(psutil.Error):
            agent = psutil.Process(supervisor.child.pid)
            try:
                agent.wait(max(_POLL_SECONDS, deadline - time.monotonic()))
            except psutil.TimeoutExpired:
                agent.kill()
