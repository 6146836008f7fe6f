"""Starts the agent of this node and restarts it when it exits, without waiting for it.

The one exception is the exit of a process with which its container or job ends, see `JobEnd`. Only
shared memory is used: an access to the home directory could block the trainer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from time import monotonic, sleep

from sentinel.client.job_end import JobEnd, ends_with_agent
from sentinel.transport.paths import START_LOG_NAME, describe_error, is_agent_running, ring_dir
from sentinel.transport.process import is_killed

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess

AGENT_POLL_INTERVAL_SECONDS = 0.5
MAX_RESTART_DELAY_SECONDS = 60.0
"""Maximum time between two starts of an agent that keeps failing."""
STABLE_AFTER_SECONDS = 60.0
"""Life of an agent after which it is restarted at once: it did not fail at its start."""
WARNING_PREFIX = "sentinel agent: warning: "
"""Beginning of the line of the start log that is shown to the user."""
WARNING_SECONDS = 30.0
"""How long after its start an agent may write it."""
EXIT_BAD_SETTINGS = 2
"""Exit status of an agent with invalid settings. It is not restarted."""
_RELEASE_POLL_SECONDS = 0.02
_MAX_VARIABLE_BYTES = 120 << 10
"""Longest environment variable that is passed on: 128 KiB of Linux, less what is added to paths."""
_MAX_ARGUMENTS_BYTES = 6 << 20
"""Limit of Linux for arguments and environment together, whatever the limit of the stack."""
_RESERVED_BYTES = 16 << 10
"""Bytes that are left for arguments, and for variables that are added."""
_ENTRY_BYTES = 9
"""Bytes of a pointer and of the NUL at the end of each variable."""
_SOURCE_ROOT = Path(__file__).resolve().parents[2]


class AgentSupervisor:
    """Keeps an agent running for `run`; `config` is its settings file, if any."""

    def __init__(self, run: str, config: Path | None = None) -> None:
        self.run, self.config = run, config
        self.child: subprocess.Popen[bytes] | None = None
        self.restart_delay = self.next_poll_at = self.started_at = 0.0
        self.next_start_at: float | None = None
        self.warned = self.has_shown_warning = False
        self.ends_job = ends_with_agent()
        self.job_end: JobEnd | None = None
        if self.ends_job:
            with suppress(OSError):
                directory = ring_dir(run)
                # One that runs apart stays longer than the job.
                if not is_agent_running(directory):
                    self.job_end = JobEnd(directory, self.is_agent_alive, starts_agent=True)

    def start(self) -> None:
        """Start the agent, unless one runs; writes one warning to stderr if that fails."""
        self.next_start_at = None
        self.next_poll_at = monotonic() + AGENT_POLL_INTERVAL_SECONDS
        try:
            directory = ring_dir(self.run)
            if is_agent_running(directory):
                # Start ours once the running agent has exited.
                self.next_start_at = monotonic()
                return
            # Only one rank of a node needs this module.
            import subprocess  # noqa: PLC0415

            with (directory / START_LOG_NAME).open("wb") as log:
                self.child = subprocess.Popen(  # noqa: S603 - our own command line
                    agent_command(self.run),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**agent_environment(os.environ, self.config), **self.linger_environment},
                    start_new_session=True,
                )
            self.started_at = monotonic()
        except OSError as error:
            self._warn(f"cannot start the agent: {describe_error(error)}")

    def start_in(self, seconds: float) -> None:
        """Let the first `poll` after that time start the agent, or `release` if it is earlier."""
        self.next_start_at = monotonic() + seconds

    @property
    def has_started(self) -> bool:
        """Whether an agent serves the run, or served it."""
        return self.started_at > 0.0 or is_agent_running(ring_dir(self.run))

    def poll(self) -> None:
        """Restart the agent if it exited; checks at most every `AGENT_POLL_INTERVAL_SECONDS`."""
        now = monotonic()
        if now < self.next_poll_at:
            return
        self.next_poll_at = now + AGENT_POLL_INTERVAL_SECONDS
        if not self.has_shown_warning and now - self.started_at < WARNING_SECONDS:
            self._show_warning()
        if self.child is not None and self.child.poll() is None and is_killed(self.child.pid):
            # A disk keeps it from the end, for which nothing waits.
            self.child.returncode = -SIGKILL
        if self.child is not None and self.child.returncode is not None:
            self._on_exit(self.child.returncode, now)
        if self.next_start_at is not None and now >= self.next_start_at:
            self.start()

    @property
    def linger_environment(self) -> dict[str, str]:
        """With this the agent ends as soon as all is sent; empty where it can stay longer."""
        return {"SENTINEL_LINGER_SECONDS": "0"} if self.ends_job else {}

    def release(self, wait_seconds: float = 0.0) -> None:
        """Stop supervising at the end of the run. The agent continues, to send what is left.

        An agent that exits within `wait_seconds` is started again.
        """
        deadline = monotonic() + wait_seconds
        while self.child is not None and monotonic() < deadline and self.child.poll() is None:
            sleep(_RELEASE_POLL_SECONDS)
        self.restart_delay, self.next_poll_at = 0.0, 0.0
        if self.next_start_at is not None:
            self.next_start_at = 0.0
        self.poll()
        if self.child is not None and self.child.returncode is None and not self.ends_job:
            # Popen warns about a child that is never waited for.
            self.child.returncode = 0

    def is_agent_alive(self) -> bool:
        """Whether the agent runs, which this process or a rank below it has started."""
        if self.child is not None and self.child.poll() is None:
            return True
        # Ours ends at once if a rank was faster to start one.
        return is_agent_running(ring_dir(self.run))

    def _on_exit(self, status: int, now: float) -> None:
        self.child = None
        if status == EXIT_BAD_SETTINGS:
            self._warn(f"the agent rejected its settings: {self._last_log_line()}")
            return
        if status > 0:
            self._warn(f"the agent failed and will be restarted: {self._last_log_line()}")
        if now - self.started_at >= STABLE_AFTER_SECONDS:
            self.restart_delay = 0.0
        # Status 0 may mean that another agent serves the run; ours starts again if that one exits.
        self.next_start_at = now + self.restart_delay
        # The first restart is immediate: a run may end soon after its agent did.
        self.restart_delay = min(max(1.0, 2 * self.restart_delay), MAX_RESTART_DELAY_SECONDS)

    def _show_warning(self) -> None:
        """Write the warning of the agent to stderr, once. It monitors the run all the same."""
        with suppress(OSError):
            for line in self._log_lines():
                if line.startswith(WARNING_PREFIX):
                    self.has_shown_warning = True
                    sys.stderr.write(f"sentinel: {line.removeprefix(WARNING_PREFIX)}\n")

    def _log_lines(self) -> list[str]:
        """The last lines that the agent wrote to its start log. Raises OSError."""
        text = (ring_dir(self.run) / START_LOG_NAME).read_bytes()[-4096:]
        return text.decode(errors="replace").strip().splitlines()

    def _last_log_line(self) -> str:
        """The last line of the start log, as a sentence."""
        try:
            lines = self._log_lines()
        except OSError as error:
            return f"its log cannot be read ({error.strerror or error})."
        if not lines:
            return "it wrote no reason; `sentinel doctor` checks what it needs."
        line = lines[-1].removeprefix("sentinel agent: ")
        return line if line.endswith(".") else f"{line}."

    def _warn(self, message: str) -> None:
        if not self.warned:
            self.warned = True
            sys.stderr.write(f"sentinel: {message} Training continues without monitoring.\n")


def agent_command(run: str) -> list[str]:
    """Command line of the agent; `-P` keeps the working directory out of its import path."""
    return [sys.executable, "-P", "-m", "sentinel", "agent", "--run", run]


def agent_environment(trainer: Mapping[str, str], config: Path | None) -> dict[str, str]:
    """The trainer's environment, with the paths of the sources and of the settings file.

    The largest variables are left out of one that is too large for a program.
    """
    environ = dict(trainer)
    paths = []
    if _SOURCE_ROOT.name not in {"site-packages", "dist-packages"}:
        paths = [str(_SOURCE_ROOT), environ.get("PYTHONPATH", "")]
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    environ = _fitting_environment(environ)
    if paths:
        environ.setdefault("PYTHONPATH", paths[0])
    if config is not None:
        environ["SENTINEL_CONFIG"] = str(config.resolve())
    return environ


def _fitting_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a program can be given, the smallest first.

    A process may set larger ones for itself. Source: execve(2).
    """
    room = min(os.sysconf("SC_ARG_MAX"), _MAX_ARGUMENTS_BYTES) - _RESERVED_BYTES
    entries = [(len(os.fsencode(f"{name}={environ[name]}")), name) for name in environ]
    fitting = {}
    for size, name in sorted(entries):
        room -= size + _ENTRY_BYTES
        if room < 0 or size > _MAX_VARIABLE_BYTES:
            break
        fitting[name] = environ[name]
    return fitting
