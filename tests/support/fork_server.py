"""Scripts that start with frameworks imported, since importing one takes seconds of a processor.

`ForkServer` is a process that has imported them. Each script runs in a fork of it, as `__main__`,
with arguments, environment and working directory of its own; the rest is as after the imports.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, Any

TORCH = ("torch._dynamo", "torch.distributed.fsdp")
"""Modules with which nothing of torch remains to be imported; its optimizers need the first."""

MAX_REQUEST_BYTES = 1 << 17
"""Limit of a request, most of which is the environment."""


class ForkServer:
    """Starts scripts whose `modules` are imported already; `close` ends it, and no script."""

    def __init__(self, modules: Sequence[str]) -> None:
        # A message of such a socket is received as a whole.
        self._control, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server_end:
            self._process = subprocess.Popen(
                # Without the folder of this file on the path.
                [sys.executable, "-P", __file__, str(server_end.fileno()), *modules],
                # A fork would lack the thread that pyarrow's allocator starts otherwise.
                env={**os.environ, "JE_ARROW_MALLOC_CONF": "background_thread:false"},
                pass_fds=[server_end.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def start(
        self, command: Sequence[Any], *, env: Mapping[str, str], cwd: Path, output: IO[Any]
    ) -> ForkedProcess:
        """Run `command`, a script and its arguments, as a process of its own."""
        request = {"command": [*map(str, command)], "env": dict(env), "cwd": str(cwd)}
        own, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server_end:
            fds = [server_end.fileno(), output.fileno()]
            socket.send_fds(self._control, [json.dumps(request).encode()], fds)
        return ForkedProcess(own)

    def close(self) -> None:
        self._control.close()
        self._process.wait()


class ForkedProcess:
    """A process that a `ForkServer` started, with the methods of `subprocess.Popen`."""

    def __init__(self, status: socket.socket) -> None:
        self._status = status
        self.returncode: int | None = None
        self.pid = self._receive()

    def poll(self) -> int | None:
        """The exit code, negative after a signal, or None while the process runs."""
        if self.returncode is None and select.select([self._status], [], [], 0.0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _end(self) -> None:
        self.returncode = self._receive()
        self._status.close()

    def _receive(self) -> int:
        message = self._status.recv(64)
        assert message, "the fork server has ended: its output names the reason"
        return int(message)


def main() -> None:
    """Serve requests until the other end closes; in a fork, run the script that it is for."""
    control = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        import_module(name)
    threads = [*Path("/proc/self/task").iterdir()]
    assert len(threads) == 1, "a fork would lack the other threads"
    # Else a fork examines the imported objects at its exit, and copies their pages, in 0.7 s.
    gc.collect()
    gc.freeze()
    _run(_serve(control))


def _serve(control: socket.socket) -> Path:
    """Returns in each fork, with the script that it has to run."""
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        ready, _, _ = select.select([control, *running], [], [])
        for pidfd in ready:
            if pidfd is control:
                continue
            pid, status = running.pop(pidfd)
            _, code = os.waitpid(pid, 0)
            with suppress(OSError), status:
                status.send(str(os.waitstatus_to_exitcode(code)).encode())
            os.close(pidfd)
        if control not in ready:
            continue
        message, fds, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, 2)
        if not message:
            # Without what frameworks do at exit, which takes a second.
            os._exit(0)
        status = socket.socket(fileno=fds[0])
        pid = os.fork()
        if pid == 0:
            for inherited in (control, status, *(other for _, other in running.values())):
                inherited.close()
            for pidfd in running:
                os.close(pidfd)
            return _become(json.loads(message), fds[1])
        os.close(fds[1])
        running[os.pidfd_open(pid)] = pid, status
        status.send(str(pid).encode())


def _become(request: Mapping[str, Any], output: int) -> Path:
    """Take output, environment, directory and arguments of the request; return its script."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = request["command"]
    script = Path(sys.argv[0])
    paths = request["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [str(script.parent), *filter(None, paths)]
    return script


def _run(script: Path) -> None:
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__file__ = str(script)
    exec(compile(script.read_bytes(), script, "exec"), module.__dict__)


if __name__ == "__main__":
    main()
