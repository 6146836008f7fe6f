"""Spawn: starts this node's agent and sees that it stays up, without ever waiting for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from sentinel.transport.paths import is_agent_running, run_dir

if TYPE_CHECKING:
    import subprocess

AGENT_POLL_INTERVAL_SECONDS = 0.5
"""Seconds between looks at the agent's process."""
MAX_RESTART_DELAY_SECONDS = 60.0
"""Seconds between two starts of an agent that keeps falling, at most."""
EXIT_BAD_SETTINGS = 2
"""Exit status of an agent whose settings are wrong: starting it again would not help."""
_SOURCE_ROOT = Path(__file__).resolve().parents[2]


@dataclass
class AgentSupervisor:
    """Keeps an agent running for `run`; `config` is its settings file, if one was given."""

    run: str
    config: Path | None = None
    child: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    restart_delay: float = 0.0
    next_poll_at: float = 0.0
    next_start_at: float | None = None
    warned: bool = False

    def start(self) -> None:
        """Start the agent, unless one is there; says so once on stderr if it cannot be."""
        self.next_start_at = None
        self.next_poll_at = monotonic() + AGENT_POLL_INTERVAL_SECONDS
        try:
            if is_agent_running(run_dir(self.run)):
                # Whose place ours takes once it is gone.
                self.next_start_at = monotonic()
                return
            # One rank of a node needs it, once: the others need not import it.
            import subprocess  # noqa: PLC0415

            with (run_dir(self.run) / "agent.log").open("ab") as log:
                self.child = subprocess.Popen(  # noqa: S603 - our own command line
                    agent_command(self.run),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=agent_environment(os.environ, self.config),
                    start_new_session=True,
                )
        except OSError as error:
            self._warn(f"the agent cannot be started ({error}).")

    def poll(self) -> None:
        """Start the agent again if it fell; looks at most once every `LOOK_EVERY` seconds."""
        now = monotonic()
        if now < self.next_poll_at:
            return
        self.next_poll_at = now + AGENT_POLL_INTERVAL_SECONDS
        if self.child is not None and self.child.poll() is not None:
            self._on_exit(self.child.returncode, now)
        if self.next_start_at is not None and now >= self.next_start_at:
            self.start()

    def release(self) -> None:
        """The run is over. The agent outlives it: there may be something left to tell."""
        self.restart_delay, self.next_poll_at = 0.0, 0.0
        if self.next_start_at is not None:
            self.next_start_at = 0.0
        self.poll()
        if self.child is not None and self.child.returncode is None:
            # Nobody will wait for it any more, which Popen would complain about.
            self.child.returncode = 0

    def _on_exit(self, status: int, now: float) -> None:
        self.child = None
        if status == EXIT_BAD_SETTINGS:
            self._warn(f"the agent refuses its settings: {self._last_log_line()}")
            return
        if status > 0:
            self._warn(f"the agent failed and is tried again: {self._last_log_line()}")
        # With 0 it may have found the run served by another agent, whose place it takes if need be.
        self.next_start_at = now + self.restart_delay
        # At once the first time: a run may die soon after its agent did.
        self.restart_delay = min(max(1.0, 2 * self.restart_delay), MAX_RESTART_DELAY_SECONDS)

    def _last_log_line(self) -> str:
        text = (run_dir(self.run) / "agent.log").read_bytes()[-4096:].decode(errors="replace")
        lines = text.strip().splitlines()
        return lines[-1] if lines else "it gave no reason."

    def _warn(self, message: str) -> None:
        if not self.warned:
            self.warned = True
            sys.stderr.write(f"sentinel: {message} Training runs on, but nobody watches it.\n")


def agent_command(run: str) -> list[str]:
    """Command line of the agent. The trainer's working directory must not shadow our imports."""
    return [sys.executable, "-P", "-m", "sentinel", "agent", "--run", run]


def agent_environment(trainer: Mapping[str, str], config: Path | None) -> dict[str, str]:
    """The trainer's environment, with what the agent needs to find itself and its settings."""
    environ = dict(trainer)
    if _SOURCE_ROOT.name not in {"site-packages", "dist-packages"}:
        found = [str(_SOURCE_ROOT), environ.get("PYTHONPATH", "")]
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, found))
    if config is not None:
        environ["SENTINEL_CONFIG"] = str(config.resolve())
    return environ
