"""Session: this process's part in a run, from the first decorated call to the last.

There is at most one at a time. Decorated calls inside a decorated call, in any thread, join it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from sentinel.client.arguments import Arguments
from sentinel.client.capture.loop import Loop
from sentinel.client.capture.patcher import Tap
from sentinel.client.control.commands import errands
from sentinel.client.guard import Guard
from sentinel.client.import_hook import Arrival
from sentinel.client.recorder import Recorder
from sentinel.client.spawn import Keeper
from sentinel.model.record import Event
from sentinel.transport import paths
from sentinel.transport.identity import Identity, identify
from sentinel.transport.ring import RingWriter, fitting

TIER, ON_CRITICAL = "monitor/tier", "monitor/on_critical"
"""Facts by which the agent learns of arguments that are its own settings."""
_TRIES = 8
"""Attempts claimed by others under our hands before we give up."""


class Session:
    """Ring, recorder, agent and taps of one attempt of this rank."""

    def __init__(self, arguments: Arguments) -> None:
        """Raises OSError or ValueError where no ring can be made."""
        self.arguments = arguments
        self.ring, self.identity = claim(arguments.run)
        self.guard = Guard(self.ring.fail, arguments.strict)
        ours = arguments.agent and self.identity.local_rank == 0
        self.keeper = Keeper(self.identity.run, arguments.config) if ours else None
        self.recorder = self._recorder()
        self.recorder.errands = errands(
            self.ring.path, self.identity, arguments.call, self.recorder.say, self.guard
        )
        self._undo: list[Callable[[], None]] = []

    def open(self) -> None:
        """Say START, start the agent, and listen to the frameworks."""
        self.recorder.say(Event.START, None, start_facts(self.identity, self.arguments))
        if not self.gathers or self.identity.rank == 0:
            self._serve()
        loop = Loop(self.recorder)
        for name in integrations():
            tap = Tap(name, self.recorder, loop)
            self._undo.append(tap.undo)
            self._await(tap)

    def _await(self, tap: Tap) -> None:
        """Have the tap attached as soon as its framework is there."""
        try:
            integration = import_module(f"sentinel.integrations.{tap.name}")
            framework, attach = integration.FRAMEWORK, partial(tap.attach, integration.attach)
        except Exception as error:
            tap.give_up(error, "import")
        else:
            self._undo.append(Arrival(framework, attach).withdraw)

    def close(self, error: BaseException | None) -> None:
        """Say STOP and how it ended, and take every tap out again."""
        facts = ending(error)
        self._let_go()
        self.recorder.close(facts)
        self.ring.close(facts["outcome"])
        self.recorder.errands.abandon()
        if self.keeper is not None:
            self.keeper.let_go()

    def abandon(self) -> None:
        """In a forked child: the run is the parent's alone."""
        self.guard.off = True
        self.recorder.errands.abandon()
        self.recorder.abandon()
        self._let_go()

    def _let_go(self) -> None:
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as error:
                self.guard.caught(error)

    @property
    def gathers(self) -> bool:
        """Whether rank 0's agent speaks for all ranks."""
        return self.arguments.aggregate == "collective" and self.identity.world_size > 1

    def _recorder(self) -> Recorder:
        if not self.gathers:
            return Recorder(self.ring, self.guard, self._tick)
        from sentinel.client.collective.aggregation import CollectiveRecorder  # noqa: PLC0415 - few runs need it

        return CollectiveRecorder(self.ring, self.guard, self._tick, self.identity, self._serve)

    def _serve(self) -> None:
        if self.keeper is not None:
            self.keeper.start()

    def _tick(self) -> None:
        if self.keeper is not None:
            self.keeper.look()


def claim(name: str | None) -> tuple[RingWriter, Identity]:
    """A ring of our own, and who we are by it."""
    for last in reversed(range(_TRIES)):
        identity = identify(name, placed(os.environ))
        paths.own(identity.run, identity.host)
        directory = paths.ring_dir(identity.run)
        capacity = fitting(directory, sharers=identity.local_world_size)
        if not capacity:
            directory = paths.run_dir(identity.run)
            capacity = fitting(directory, sharers=identity.local_world_size)
        path = directory / paths.ring_name(identity.attempt, identity.rank)
        try:
            return RingWriter(path, identity, capacity), identity
        except FileExistsError:
            if not last:
                raise
    raise AssertionError


def placed(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The environment, with the rank's place where only its process group knows it.

    Children of `torch.multiprocessing.spawn` have no launcher that would have numbered them.
    """
    group = sys.modules.get("torch.distributed")
    if "RANK" in environ or group is None or not group.is_available():
        return environ
    if not group.is_initialized():
        return environ
    return {**environ, "RANK": str(group.get_rank()), "WORLD_SIZE": str(group.get_world_size())}


def integrations() -> list[str]:
    """The files of the integrations' room.

    Each has FRAMEWORK, the module to wait for, and `attach(tap)`.
    """
    room = import_module("sentinel.integrations")
    return sorted(each.name for each in iter_modules(room.__path__) if not each.ispkg)


def start_facts(identity: Identity, arguments: Arguments) -> dict[str, Any]:
    """What a START record says: numbers of the run, and where and by what it is run."""
    torch = sys.modules.get("torch")
    known = {
        "world_size": identity.world_size,
        "local_world_size": identity.local_world_size,
        TIER: arguments.tier,
        ON_CRITICAL: arguments.on_critical,
        "save_steps": arguments.save_steps,
        "max_steps": arguments.max_steps,
        "host": identity.host,
        "master_port": identity.meeting.port or None,
        "pid": str(os.getpid()),
        "script": sys.argv[0],
        "python": sys.version.split()[0],
        "framework": "torch",
        "torch": str(torch.__version__) if torch is not None else None,
    }
    return {**arguments.facts, **{key: fact for key, fact in known.items() if fact is not None}}


def ending(error: BaseException | None) -> dict[str, str]:
    """How a run ended, by what came out of it."""
    if error is None or isinstance(error, GeneratorExit):
        return {"outcome": "finished"}
    if isinstance(error, KeyboardInterrupt):
        return {"outcome": "interrupted"}
    if isinstance(error, SystemExit):
        if error.code in {None, 0}:
            return {"outcome": "finished"}
        return {"outcome": "exit", "code": str(error.code if type(error.code) is int else 1)}
    return {"outcome": "exception", "exception": type(error).__name__}


class Current:
    """The session of this process, its recorder, and how many decorated calls are in it."""

    session: Session | None = None
    recorder: Recorder | None = None
    depth: int = 0
    lock = threading.Lock()


def current() -> Session | None:
    """The session of this process, if a run is on."""
    return Current.session


def enter(arguments: Arguments) -> None:
    """A decorated call begins. Never raises, unless strict."""
    with Current.lock:
        Current.depth += 1
        if Current.depth > 1 or os.environ.get("SENTINEL_OFF", "0") not in {"", "0"}:
            return
        try:
            session = Session(arguments)
        except BaseException as error:
            if arguments.strict or not isinstance(error, Exception):
                Current.depth -= 1
                raise
            sys.stderr.write(f"sentinel: {error} Training runs on, but nobody watches it.\n")
            return
        Current.session, Current.recorder = session, session.recorder
        try:
            session.open()
        except BaseException as error:
            if arguments.strict or not isinstance(error, Exception):
                Current.depth -= 1
                _close(session, error)
                raise
            session.guard.caught(error)


def leave(error: BaseException | None) -> None:
    """A decorated call ended, with what it raised."""
    with Current.lock:
        Current.depth = max(0, Current.depth - 1)
        if not Current.depth and Current.session is not None:
            _close(Current.session, error)


def _close(session: Session, error: BaseException | None) -> None:
    Current.session = Current.recorder = None
    try:
        session.close(error)
    except Exception as ours:
        session.guard.caught(ours)


def _forget() -> None:
    """In a forked child: no run is on, whatever the parent was doing."""
    session, Current.session, Current.recorder = Current.session, None, None
    Current.depth, Current.lock = 0, threading.Lock()
    if session is not None:
        session.abandon()


os.register_at_fork(after_in_child=_forget)
