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

from sentinel.client.spawn import LOOK_EVERY, Keeper
from sentinel.transport.identity import derived
from sentinel.transport.launch_status import LAUNCHED, Launch
from sentinel.transport.paths import rings
from sentinel.transport.process import Process

PASSED_ON = frozenset(
    {
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
    }
)
NOT_FOUND, NOT_RUNNABLE = 127, 126
"""Exit statuses of a shell for a command that is not there, or cannot be run."""
_FROM_KERNEL = 0x80
"""SI_KERNEL: a terminal's signal, which the whole group was sent."""
_WHEN_PARENT_DIES = 1
"""PR_SET_PDEATHSIG of prctl(2)."""
_BOOTSTRAP = Path(__file__).resolve().parents[1] / "client" / "autostart"


@dataclass
class Launcher:
    """Runs `command`, watched as `name`; `config` is the agent's settings file."""

    command: list[str]
    name: str | None = None
    config: Path | None = None

    def run(self) -> int:
        """Exit status of the command as a shell gives it: 128 + n where signal n ended it."""
        environ = os.environ
        # The outermost one watches; where nobody is to watch, nobody stands between.
        if environ.get(LAUNCHED) or environ.get("SENTINEL_OFF", "0") not in {"", "0"}:
            become(self.command, environ)
        try:
            launch = self._announced()
        except (OSError, ValueError) as error:
            say(f"{error} The command runs, but nobody watches it.")
            become(self.command, environ)
        keeper = Keeper(launch.run, self.config)
        keeper.start()
        pid = start(self.command, environment(environ, launch, self.config))
        code = wait(pid, keeper.look)
        self._conclude(launch.over(code, time.time()), keeper)
        return code

    def _announced(self) -> Launch:
        name = self.name or named(self.command)
        run = os.environ.get("SENTINEL_RUN_ID") or derived(name, {}, alone=True)
        launch = Launch(run, Process.me(), Path(self.command[0]).name, time.time())
        launch.write()
        return launch

    def _conclude(self, launch: Launch, keeper: Keeper) -> None:
        try:
            seen = bool(rings(launch.run))
            launch.write()
            keeper.let_go()
        except OSError as error:
            say(f"{error} How the command ended is told to nobody.")
            return
        if not seen and not launch.failed:
            say("no training was seen in this command, so nothing was watched.")


def environment(
    environ: Mapping[str, str], launch: Launch, config: Path | None = None
) -> dict[str, str]:
    """What the command is given: one run for all its processes, and our `sitecustomize`."""
    path = os.pathsep.join(filter(None, [str(_BOOTSTRAP), environ.get("PYTHONPATH", "")]))
    ours = {
        "SENTINEL_RUN_ID": launch.run,
        LAUNCHED: str(launch.process.pid),
        "PYTHONPATH": path,
        **({"SENTINEL_CONFIG": str(config.resolve())} if config is not None else {}),
    }
    return {**environ, **ours}


def named(command: list[str]) -> str:
    """Name of a run by its command: that of the script, or of the program where there is none.

    >>> named(["torchrun", "--nproc-per-node", "2", "a/train.py", "--lr", "1"]), named(["./go"])
    ('train', 'go')
    """
    script = next((word for word in command if word.endswith((".py", ".sh"))), command[0])
    return Path(script).stem


def start(command: list[str], environ: Mapping[str, str]) -> int:
    """Process id of the command, started. Signals are held back from now on; see `wait`."""
    # A parent may have told us not to look after our children.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGCHLD})
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(_WHEN_PARENT_DIES, signal.SIGKILL, 0, 0, 0)
        # Python ignores these two, which a command inherits.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if os.getppid() == parent:
            become(command, environ)
    finally:
        os._exit(NOT_RUNNABLE)


def wait(pid: int, look: Callable[[], None]) -> int:
    """Wait for its end, passing signals on; `look` is called twice a second, and may fail."""
    while True:
        told = signal.sigtimedwait({*PASSED_ON, signal.SIGCHLD}, LOOK_EVERY)
        if told and told.si_signo != signal.SIGCHLD and told.si_code != _FROM_KERNEL:
            os.kill(pid, told.si_signo)
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code
        try:
            look()
        except Exception as error:
            say(f"{error} The command runs on.")


def become(command: list[str], environ: Mapping[str, str]) -> NoReturn:
    """Be that command from now on; leave as a shell would where that cannot be."""
    try:
        os.execvpe(command[0], command, dict(environ))  # noqa: S606 - what it is for
    except FileNotFoundError:
        say(f"{command[0]}: command not found. Is its environment active, or its path complete?")
        status = NOT_FOUND
    except OSError as error:
        say(f"{command[0]}: {error.strerror}. Is it a program that may be executed?")
        status = NOT_RUNNABLE
    os._exit(status)


def say(what: str) -> None:
    """One line beside the command's own."""
    sys.stderr.write(f"sentinel run: {what}\n")
    sys.stderr.flush()
