"""Launch: one command run as if nobody watched it, its end told to the agent of its run.

The command stays in our process group, with our terminal and our files: what a terminal or a
scheduler does to the group reaches it without us. A signal that was meant for us alone is passed
on. If we are killed, so is it, as it would have been in our place.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sentinel.client.spawn import AGENT_POLL_INTERVAL_SECONDS, AgentSupervisor
from sentinel.transport.identity import derive_run_id
from sentinel.transport.launch_status import LAUNCHER_PID_VARIABLE, LaunchStatus
from sentinel.transport.paths import list_rings
from sentinel.transport.process import Process

FORWARDED_SIGNALS = frozenset(
    {
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
    }
)
EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE = 127, 126
"""Exit statuses of a shell for a command that is not there, or cannot be run."""
_SI_KERNEL = 0x80
"""SI_KERNEL: a terminal's signal, which the whole group was sent."""
_PR_SET_PDEATHSIG = 1
"""PR_SET_PDEATHSIG of prctl(2)."""
_AUTOSTART_DIR = Path(__file__).resolve().parents[1] / "client" / "autostart"


@dataclass
class CommandRunner:
    """Runs `command`, watched as `name`; `config` is the agent's settings file."""

    command: list[str]
    name: str | None = None
    config: Path | None = None

    def run(self) -> int:
        """Exit status of the command as a shell gives it: 128 + n where signal n ended it."""
        environ = os.environ
        # The outermost one watches; where nobody is to watch, nobody stands between.
        if environ.get(LAUNCHER_PID_VARIABLE) or environ.get("SENTINEL_OFF", "0") not in {"", "0"}:
            exec_command(self.command, environ)
        try:
            launch = self._publish_launch()
        except (OSError, ValueError) as error:
            print_message(f"{error} The command runs, but nobody watches it.")
            exec_command(self.command, environ)
        keeper = AgentSupervisor(launch.run, self.config)
        keeper.start()
        pid = start_command(self.command, command_environment(environ, launch, self.config))
        code = wait_for_command(pid, keeper.poll)
        self._publish_exit(launch.with_exit(code, time.time()), keeper)
        return code

    def _publish_launch(self) -> LaunchStatus:
        name = self.name or run_name_from_command(self.command)
        run = os.environ.get("SENTINEL_RUN_ID") or derive_run_id(name, {}, is_alone=True)
        launch = LaunchStatus(run, Process.current(), Path(self.command[0]).name, time.time())
        launch.write()
        return launch

    def _publish_exit(self, launch: LaunchStatus, agent_starter: AgentSupervisor) -> None:
        try:
            seen = bool(list_rings(launch.run))
            launch.write()
            agent_starter.release()
        except OSError as error:
            print_message(f"{error} How the command ended is told to nobody.")
            return
        if not seen and not launch.has_failed:
            print_message("no training was seen in this command, so nothing was watched.")


def command_environment(
    environ: Mapping[str, str], launch: LaunchStatus, config: Path | None = None
) -> dict[str, str]:
    """What the command is given: one run for all its processes, and our `sitecustomize`."""
    path = os.pathsep.join(filter(None, [str(_AUTOSTART_DIR), environ.get("PYTHONPATH", "")]))
    ours = {
        "SENTINEL_RUN_ID": launch.run,
        LAUNCHER_PID_VARIABLE: str(launch.launcher.pid),
        "PYTHONPATH": path,
        **({"SENTINEL_CONFIG": str(config.resolve())} if config is not None else {}),
    }
    return {**environ, **ours}


def run_name_from_command(command: list[str]) -> str:
    """Name of a run by its command: that of the script, or of the program where there is none.

    >>> named(["torchrun", "--nproc-per-node", "2", "a/train.py", "--lr", "1"]), named(["./go"])
    ('train', 'go')
    """
    script = next((word for word in command if word.endswith((".py", ".sh"))), command[0])
    return Path(script).stem


def start_command(command: list[str], environ: Mapping[str, str]) -> int:
    """Process id of the command, started. Signals are held back from now on; see `wait`."""
    # A parent may have told us not to look after our children.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED_SIGNALS, signal.SIGCHLD})
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # Python ignores these two, which a command inherits.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if os.getppid() == parent:
            exec_command(command, environ)
    finally:
        os._exit(EXIT_NOT_EXECUTABLE)


def wait_for_command(pid: int, poll: Callable[[], None]) -> int:
    """Wait for its end, passing signals on; `look` is called twice a second, and may fail."""
    while True:
        told = signal.sigtimedwait(
            {*FORWARDED_SIGNALS, signal.SIGCHLD}, AGENT_POLL_INTERVAL_SECONDS
        )
        if told and told.si_signo != signal.SIGCHLD and told.si_code != _SI_KERNEL:
            os.kill(pid, told.si_signo)
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code
        try:
            poll()
        except Exception as error:
            print_message(f"{error} The command runs on.")


def exec_command(command: list[str], environ: Mapping[str, str]) -> NoReturn:
    """Be that command from now on; leave as a shell would where that cannot be."""
    try:
        os.execvpe(command[0], command, dict(environ))  # noqa: S606 - what it is for
    except FileNotFoundError:
        print_message(
            f"{command[0]}: command not found. Is its environment active, or its path complete?"
        )
        status = EXIT_NOT_FOUND
    except OSError as error:
        print_message(f"{command[0]}: {error.strerror}. Is it a program that may be executed?")
        status = EXIT_NOT_EXECUTABLE
    os._exit(status)


def print_message(message: str) -> None:
    """One line beside the command's own."""
    sys.stderr.write(f"sentinel run: {message}\n")
    sys.stderr.flush()
