"""`sentinel run`: runs a training command unchanged and reports its exit to the run's agent.

The command stays in our process group, with our terminal and files, so signals that a terminal or
scheduler sends to the group reach it directly. A signal sent to us alone is forwarded. If we are
killed, the command is ended by `CommandGuard`.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from sentinel.agent.command_guard import CommandGuard
from sentinel.agent.termination_message import report_exit, termination_log
from sentinel.client.spawn import (
    AGENT_POLL_INTERVAL_SECONDS,
    AgentSupervisor,
    agent_environment,
)
from sentinel.transport.launch_status import LAUNCHER_PID_VARIABLE, LaunchStatus
from sentinel.transport.paths import describe_error, list_rings
from sentinel.transport.process import Process
from sentinel.transport.run_id import derive_run_id
from sentinel.transport.slurm_job import node_run_id, slurm_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

FORWARDED_SIGNALS = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)
STOP_SIGNALS = FORWARDED_SIGNALS - {signal.SIGUSR1, signal.SIGUSR2}
"""Those that ask the command to end. Schedulers may send a user signal before, as a warning."""
EXIT_USAGE_ERROR = 2
"""Exit status for a wrong argument of `sentinel run`."""
EXIT_NOT_FOUND = 127
"""Exit status for a command that does not exist, as in a shell."""
EXIT_NOT_EXECUTABLE = 126
"""Exit status for a command that cannot be executed, as in a shell."""
AGENT_DELAY_SECONDS = 1.0
"""How long a command runs before its agent is started: to import torch takes longer. At the end of
a command that failed or trained, the agent is started if it was not yet."""
KILLED_WAIT_SECONDS = 1.0
"""How long after a SIGKILL of the command an agent that exits is still started again."""
STOP_SIGNAL_SPREAD_SECONDS = 0.5
"""By how much later than the command we may get the signal that ended both."""
_SI_KERNEL = 0x80
"""SI_KERNEL: `si_code` of a signal of the terminal, which the whole process group receives."""
_AUTOSTART_DIR = Path(__file__).resolve().parents[1] / "client" / "autostart"


def run_command(command: list[str], name: str | None, config: Path | None) -> int:
    """Run `command` as the run `name`; its exit status, or that of a wrong argument."""
    if config is not None and not config.is_file():
        print_message(f"--config {config}: no such file.")
        return EXIT_USAGE_ERROR
    if is_missing(command[0]):
        return _report_missing(command[0])
    return CommandRunner(command, name, config).run()


def _report_missing(program: str) -> int:
    print_message(
        f"{program}: command not found. Check the path, and that its environment is active."
    )
    return EXIT_NOT_FOUND


def is_missing(program: str) -> bool:
    """Whether there is no such file; False where a folder of its path may not be searched."""
    folders = [""] if "/" in program else os.get_exec_path()
    for folder in folders:
        try:
            Path(folder, program).stat()
        except PermissionError:
            return False
        except OSError:
            continue
        return False
    return True


class CommandRunner:
    """Runs `command` as the run `name`; `config` is the settings file of the agent."""

    def __init__(
        self, command: list[str], name: str | None = None, config: Path | None = None
    ) -> None:
        self.command, self.name, self.config = command, name, config

    def run(self) -> int:
        """Exit status of the command as a shell returns it: 128 + n after signal n."""
        environ: Mapping[str, str] = os.environ
        # Within another `sentinel run`, or if sentinel is off, the command replaces this process.
        if environ.get(LAUNCHER_PID_VARIABLE) or environ.get("SENTINEL_OFF", "0") not in {"", "0"}:
            exec_command(self.command, environ)
        try:
            launch = self.publish_launch()
            guard = CommandGuard(launch.run, agent_environment(environ, None))
        except (OSError, ValueError) as error:
            print_message(f"{describe_error(error)} The command runs without monitoring.")
            exec_command(self.command, environ)
        supervisor = AgentSupervisor(launch.run, self.config)
        supervisor.start_in(AGENT_DELAY_SECONDS)
        # A rank may be the first to start the agent.
        environ = {**environ, **supervisor.linger_environment}
        pid = start_command(self.command, command_environment(environ, launch, self.config), guard)
        received: list[LaunchStatus] = [launch]

        def on_stop_signal(number: int) -> None:
            received[0] = received[0].with_stop_signal(signal.Signals(number).name, time.time())
            # Once the command has ended, its status is written with it, or the error is reported.
            with suppress(OSError):
                received[0].write()

        code = wait_for_command(pid, supervisor.poll, on_stop_signal)
        # A signal that kills the command may kill the agent too, which then takes a moment to exit.
        wait_seconds = KILLED_WAIT_SECONDS if code == 128 + signal.SIGKILL else 0.0
        ended = received[0].with_exit(code, time.time())
        if not publish_exit(ended, supervisor, wait_seconds):
            print_message("no training found in this command, so nothing was monitored.")
        if message := termination_log(environ):
            report_exit(ended, message, is_agent_apart=supervisor.child is None)
        return code

    def publish_launch(self) -> LaunchStatus:
        """Write the status of a command that begins now. Raises OSError, ValueError."""
        name = self.name or run_name_from_command(self.command)
        run = node_run_id(os.environ.get("SENTINEL_RUN_ID", ""), os.environ) or derive_run_id(
            name, slurm_variables(os.environ), is_alone=True
        )
        launch = LaunchStatus(
            run,
            Process.current(),
            Path(self.command[0]).name,
            time.time(),
            name=self.name or "",
        )
        launch.write()
        return launch


def publish_exit(
    launch: LaunchStatus, supervisor: AgentSupervisor, wait_seconds: float = 0.0
) -> bool:
    """Let the agent report the exit of the command; whether there is anything to report.

    An agent that exits within `wait_seconds` is started again.
    """
    try:
        is_monitored = bool(list_rings(launch.run)) or launch.has_failed
        if is_monitored or supervisor.has_started:
            launch.write()
            supervisor.release(wait_seconds)
        else:
            launch.remove()
    except OSError as error:
        print_message(f"{describe_error(error)} The exit of the command is not reported.")
        return True
    return is_monitored


def command_environment(
    environ: Mapping[str, str], launch: LaunchStatus, config: Path | None = None
) -> dict[str, str]:
    """Environment of the command: the run id for all its processes, and our `sitecustomize`."""
    path = os.pathsep.join(filter(None, [str(_AUTOSTART_DIR), environ.get("PYTHONPATH", "")]))
    added = {
        "SENTINEL_RUN_ID": launch.run,
        LAUNCHER_PID_VARIABLE: str(launch.launcher.pid),
        "PYTHONPATH": path,
        **({"SENTINEL_CONFIG": str(config.resolve())} if config is not None else {}),
    }
    return {**environ, **added}


def run_name_from_command(command: list[str]) -> str:
    """Name of the command's script, or of its program if it has no script.

    >>> run_name_from_command(["torchrun", "--nproc-per-node", "2", "a/train.py", "--lr", "1"])
    'train'
    >>> run_name_from_command(["./go"])
    'go'
    """
    script = next((arg for arg in command if arg.endswith((".py", ".sh"))), command[0])
    return Path(script).stem


def start_command(
    command: list[str],
    environ: Mapping[str, str],
    guard: CommandGuard,
    prepare: Callable[[], None] = lambda: None,
) -> int:
    """Start the command and return its process id; blocks signals for `wait_for_command`.

    `prepare` is called in its process before the command.
    """
    # Our parent may have set SIGCHLD to be ignored, which is inherited.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED_SIGNALS, signal.SIGCHLD})
    pid = os.fork()
    if pid:
        return pid
    try:
        # From here, so that there is no moment without a guard.
        guard.watch(os.getpid())
        prepare()
        # Python ignores these two, and a command would inherit that.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        exec_command(command, environ)
    finally:
        os._exit(EXIT_NOT_EXECUTABLE)


def wait_for_command(
    pid: int, poll: Callable[[], None], on_stop_signal: Callable[[int], None]
) -> int:
    """Wait for the command, forward signals, and call `poll` twice a second; returns the status.

    `on_stop_signal` is called with the number of each received signal of `STOP_SIGNALS`.
    """
    while True:
        received = signal.sigtimedwait(
            {*FORWARDED_SIGNALS, signal.SIGCHLD}, AGENT_POLL_INTERVAL_SECONDS
        )
        if received and received.si_signo != signal.SIGCHLD and received.si_code != _SI_KERNEL:
            os.kill(pid, received.si_signo)
        if received and received.si_signo in STOP_SIGNALS:
            on_stop_signal(received.si_signo)
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            if -code in STOP_SIGNALS and not (received and received.si_signo in STOP_SIGNALS):
                _await_stop_signal(on_stop_signal)
            return 128 - code if code < 0 else code
        try:
            poll()
        except Exception as error:
            print_message(f"{describe_error(error)} The command keeps running.")


def _await_stop_signal(on_stop_signal: Callable[[int], None]) -> None:
    """Note a signal to end that reached the command first: a scheduler sends it to one by one."""
    if received := signal.sigtimedwait(STOP_SIGNALS, STOP_SIGNAL_SPREAD_SECONDS):
        on_stop_signal(received.si_signo)


def exec_command(command: list[str], environ: Mapping[str, str]) -> NoReturn:
    """Replace this process by the command; exit as a shell does if that fails.

    An environment that is too large with the variables of sentinel is used without them.
    """
    try:
        os.execvpe(command[0], command, dict(environ))  # noqa: S606 - running the user's command is the purpose
    except FileNotFoundError:
        status = _report_missing(command[0])
    except OSError as error:
        if error.errno == errno.E2BIG and environ is not os.environ:
            print_message("The environment is too large to add to. The exit is not reported.")
            exec_command(command, os.environ)
        print_message(f"{command[0]}: {error.strerror}. Check that it is executable.")
        status = EXIT_NOT_EXECUTABLE
    os._exit(status)


def print_message(message: str, command: str = "run") -> None:
    """Print one line of that command of ours to stderr, beside the output of the user's."""
    # The caller may have closed it, or its reader may be gone.
    if sys.stderr is not None:
        with suppress(OSError):
            sys.stderr.write(f"sentinel {command}: {message}\n")
            sys.stderr.flush()
