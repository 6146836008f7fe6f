"""The session of this process in a run, from the first decorated call to the last.

There is at most one at a time. Decorated calls inside a decorated call, in any thread, join it.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from sentinel.client.arguments import MonitorArguments
from sentinel.client.capture.drawn_rows import DrawnRows
from sentinel.client.capture.loop import TrainingLoop
from sentinel.client.capture.patcher import Patcher
from sentinel.client.checks.training_checks import TrainingChecks
from sentinel.client.guard import ErrorGuard
from sentinel.client.import_hook import ImportHook
from sentinel.client.job_end import JobEnd, await_reports
from sentinel.client.outcome import outcome_attributes
from sentinel.client.process_group import rank_environment
from sentinel.client.recorder import Recorder
from sentinel.client.spawn import AgentSupervisor
from sentinel.client.stack_thread import StackThread
from sentinel.model.record import Event
from sentinel.transport import paths
from sentinel.transport.identity import Identity
from sentinel.transport.launch_environment import identify
from sentinel.transport.ring import RingWriter, fitting_capacity
from sentinel.transport.ring_layout import NORMAL_OUTCOMES
from sentinel.transport.slurm_job import slurm_metadata

if TYPE_CHECKING:
    from sentinel.client.capture.gradient_flow import GradientFlow

NAME_KEY, TIER_KEY, ON_CRITICAL_KEY = "monitor/name", "monitor/tier", "monitor/on_critical"
"""Metadata keys of arguments that are settings of the agent."""
CHECKS_KEY = "monitor/checks"
"""Metadata key that is present if the checks are switched off."""
_MAX_CLAIM_TRIES = 8
"""Number of attempts that other processes may claim first before `claim_ring` gives up."""


class Session:
    """Ring, recorder, agent and patches of one attempt of this rank."""

    def __init__(self, arguments: MonitorArguments) -> None:
        """Raises OSError or ValueError if no ring can be created."""
        self.arguments = arguments
        self.ring, self.identity = claim_ring(arguments.run)
        self.guard = ErrorGuard(self.ring.count_error, arguments.strict)
        starts_agent = arguments.agent and self.identity.local_rank == 0
        self.agent_supervisor = (
            AgentSupervisor(self.identity.run, arguments.config) if starts_agent else None
        )
        self.job_end = self._make_job_end()
        self.recorder = self._make_recorder()
        self.recorder.commands.open(self.ring.path, self.identity, arguments.callback)
        self._undo_patches: list[Callable[[], None]] = []
        self.stack_thread: StackThread | None = None
        self.loop: TrainingLoop | None = None

    def open(self) -> None:
        """Record START, start the agent, and attach the integrations."""
        # `sentinel.log` loads it: a signal handler may call that while it is being loaded.
        import_module("sentinel.client.api")
        self.recorder.record_event(
            Event.START, None, start_attributes(self.identity, self.arguments)
        )
        if not self.uses_collective or self.identity.rank == 0:
            self._start_agent()
        loop = self.loop = TrainingLoop(self.recorder)
        recorder = self.recorder
        loop.rows = DrawnRows(
            self.ring.path,
            recorder.activity,
            recorder.commands,
            recorder.device_copies,
            self.guard.count_error,
        )
        if self.arguments.checks:
            loop.checks = TrainingChecks(
                self.recorder,
                loop.trained.optimizers_in_use,
                loop.seen_modules,
                self.identity.rank,
            )
        if "gradient_flow" in self.arguments.insight:
            self.measure_gradient_flow()
        self.stack_thread = StackThread(self.ring.path, lambda: loop.training_thread_id)
        self.stack_thread.open()
        for name in integration_names():
            patcher = Patcher(name, self.recorder, loop)
            self._undo_patches.append(patcher.undo)
            self._attach_on_import(patcher)

    def measure_gradient_flow(self) -> GradientFlow | None:
        """Measure the gradient of each layer from now on; None before the run is open."""
        from sentinel.client.capture.gradient_flow import GradientFlow  # noqa: PLC0415 - few runs need it

        if self.loop is not None and self.loop.gradient_flow is None:
            self.loop.gradient_flow = GradientFlow(
                self.recorder, self.loop.grad_norm, self.identity.rank
            )
        return None if self.loop is None else self.loop.gradient_flow

    def _attach_on_import(self, patcher: Patcher) -> None:
        """Attach the integration as soon as its framework is imported."""
        try:
            integration = import_module(f"sentinel.integrations.{patcher.name}")
            framework, attach = integration.FRAMEWORK, partial(patcher.attach, integration.attach)
        except Exception as error:
            patcher.disable(error, "import")
        else:
            self._undo_patches.append(ImportHook(framework, attach).remove)

    def close(self, error: BaseException | None) -> None:
        """Record STOP with the outcome, and undo every patch."""
        attributes = outcome_attributes(error)
        if self.stack_thread is not None:
            self.stack_thread.close()
        self._remove_patches()
        if self.loop is not None and self.loop.gradient_flow is not None:
            self.loop.gradient_flow.flush()
        self._close_rows()
        self.recorder.close(attributes)
        self.ring.close(attributes["outcome"])
        self.recorder.commands.close()
        if self.agent_supervisor is not None:
            self.agent_supervisor.release()
        if self.job_end is not None and attributes["outcome"] not in NORMAL_OUTCOMES:
            self.job_end.note_failure()

    def abandon(self) -> None:
        """Leave the run in a forked child: it belongs to the parent."""
        self.guard.disabled = True
        if self.stack_thread is not None:
            self.stack_thread.abandon()
        self.recorder.commands.close()
        self.recorder.abandon()
        self._close_rows()
        self._remove_patches()

    def _close_rows(self) -> None:
        if self.loop is not None and self.loop.rows is not None:
            self.loop.rows.close()

    def _remove_patches(self) -> None:
        while self._undo_patches:
            try:
                self._undo_patches.pop()()
            except Exception as error:
                self.guard.handle_error(error)

    @property
    def uses_collective(self) -> bool:
        """Whether the agent of rank 0 serves all ranks."""
        return self.arguments.aggregate == "collective" and self.identity.world_size > 1

    def _make_recorder(self) -> Recorder:
        if not self.uses_collective:
            return Recorder(self.ring, self.guard, self._poll_agent)
        from sentinel.client.collective.aggregation import CollectiveRecorder  # noqa: PLC0415 - few runs need it

        return CollectiveRecorder(
            self.ring, self.guard, self._poll_agent, self.identity, self._start_agent
        )

    def _make_job_end(self) -> JobEnd | None:
        if self.agent_supervisor is not None:
            return self.agent_supervisor.job_end
        return await_reports(paths.ring_dir(self.identity.run)) if self.arguments.agent else None

    def _start_agent(self) -> None:
        if self.agent_supervisor is not None:
            self.agent_supervisor.start()

    def _poll_agent(self) -> None:
        if self.agent_supervisor is not None:
            self.agent_supervisor.poll()


def claim_ring(run_name: str | None) -> tuple[RingWriter, Identity]:
    """A new ring for this process, and the identity it is claimed for."""
    for tries_left in reversed(range(_MAX_CLAIM_TRIES)):
        identity = identify(run_name, rank_environment(os.environ))
        directory = paths.ring_dir(identity.run)
        capacity = fitting_capacity(directory, ring_count=identity.local_world_size)
        if not capacity and not paths.is_home_remote():
            # A ring on a file server could block or kill the trainer.
            directory = paths.run_dir(identity.run)
            paths.mark_home_rings(identity.run)
            capacity = fitting_capacity(directory, ring_count=identity.local_world_size)
        if not capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))
        path = directory / paths.ring_name(identity.attempt, identity.rank)
        try:
            return RingWriter(path, identity, capacity), identity
        except FileExistsError:
            if not tries_left:
                raise
    raise AssertionError


def integration_names() -> list[str]:
    """Names of the modules in `sentinel.integrations`.

    Each defines FRAMEWORK, the module to wait for, and `attach(patcher)`.
    """
    package = import_module("sentinel.integrations")
    return sorted(each.name for each in iter_modules(package.__path__) if not each.ispkg)


def start_attributes(identity: Identity, arguments: MonitorArguments) -> dict[str, Any]:
    """Attributes of the START record: size and limits of the run, its host, job and software."""
    torch = sys.modules.get("torch")
    known = {
        NAME_KEY: arguments.run if arguments.run != identity.run else None,
        "world_size": identity.world_size,
        "local_world_size": identity.local_world_size,
        TIER_KEY: arguments.tier,
        ON_CRITICAL_KEY: arguments.on_critical,
        CHECKS_KEY: None if arguments.checks else "off",
        "save_steps": arguments.save_steps,
        "max_steps": arguments.max_steps,
        "host": identity.host,
        "master_port": identity.rendezvous.port or None,
        "pid": str(os.getpid()),
        "script": sys.argv[0],
        "python": sys.version.split()[0],
        "framework": "torch",
        "torch": str(torch.__version__) if torch is not None else None,
        **slurm_metadata(os.environ),
    }
    known = {key: value for key, value in known.items() if value is not None}
    return {**arguments.metadata, **known}


class CurrentSession:
    """The session of this process, its recorder, and the number of decorated calls inside it."""

    session: Session | None = None
    recorder: Recorder | None = None
    depth: int = 0
    lock = threading.Lock()


def current_session() -> Session | None:
    """The session of this process, or None outside a run."""
    return CurrentSession.session


def enter_session(arguments: MonitorArguments) -> None:
    """Enter a decorated call. Never raises, unless strict."""
    with CurrentSession.lock:
        CurrentSession.depth += 1
        if CurrentSession.depth > 1 or os.environ.get("SENTINEL_OFF", "0") not in {"", "0"}:
            return
        try:
            session = Session(arguments)
        except BaseException as error:
            if arguments.strict or not isinstance(error, Exception):
                CurrentSession.depth -= 1
                raise
            message = f"{paths.describe_error(error)} Training continues without monitoring."
            sys.stderr.write(f"sentinel: {message}\n")
            return
        CurrentSession.session, CurrentSession.recorder = session, session.recorder
        try:
            session.open()
        except BaseException as error:
            if arguments.strict or not isinstance(error, Exception):
                CurrentSession.depth -= 1
                _close_session(session, error)
                raise
            session.guard.handle_error(error)


def leave_session(error: BaseException | None) -> None:
    """Leave a decorated call; `error` is what it raised, if anything."""
    with CurrentSession.lock:
        CurrentSession.depth = max(0, CurrentSession.depth - 1)
        if not CurrentSession.depth and CurrentSession.session is not None:
            _close_session(CurrentSession.session, error)


def _close_session(session: Session, error: BaseException | None) -> None:
    CurrentSession.session = CurrentSession.recorder = None
    try:
        session.close(error)
    except Exception as own_error:
        session.guard.handle_error(own_error)


def _reset_after_fork() -> None:
    """End the session in a forked child, whatever the parent was doing."""
    session, CurrentSession.session, CurrentSession.recorder = CurrentSession.session, None, None
    CurrentSession.depth, CurrentSession.lock = 0, threading.Lock()
    if session is not None:
        session.abandon()


os.register_at_fork(after_in_child=_reset_after_fork)
