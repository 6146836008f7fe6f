"""First sign: a session opens by itself once this process trains, and not before.

For `sentinel run`. Launchers, data workers and servers load torch as well; who never computes a
gradient or takes an optimizer step claims no ring. A decorated function comes first, if there is
one: nothing is begun inside it. Where a rank that is watched starts other programs, their training
is none of the run's.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

from sentinel.client.auto_session import begin
from sentinel.client.import_hook import Arrival
from sentinel.client.session import current
from sentinel.transport.process import Process

WITHIN = "SENTINEL_WITHIN"
"""Environment variable that a watched rank leaves to its children: its process and its start."""


class FirstSign:
    """Waits for torch, then for its first backward pass or optimizer step."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        # The second is added by the first, which acts at once where torch is there already.
        self._arrivals: list[Arrival] = []
        self._arrivals.insert(0, Arrival("torch", self._arm))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """What the one who waits for torch makes of an import that is under way already."""
        return self._arrivals[0].find_spec(name, path, target)

    def _arm(self) -> None:
        """Torch is there."""
        self._watch(lambda function: function)
        # Loading the compiler to be kept out of it would cost every process its second.
        if "torch._dynamo" not in sys.modules:
            self._arrivals.append(Arrival("torch._dynamo", self._keep_out))

    def _keep_out(self) -> None:
        """The compiler is there: it must not trace us."""
        if self._disarm():
            torch = sys.modules["torch"]
            self._watch(functools.partial(torch.compiler.disable, recursive=False))

    def _watch(self, kept: Callable[[Any], Any]) -> None:
        try:
            torch = sys.modules["torch"]
            from torch.optim import optimizer as optim  # noqa: PLC0415 - it has been imported

            for owner in (torch.Tensor, torch.autograd):
                self._replace(owner, "backward", kept)
            hook = optim.register_optimizer_step_pre_hook(kept(self._stepping))
            self._undo.append(hook.remove)
        except Exception:
            # A torch that lacks what we need: nobody is watched, and nothing else changes.
            self._disarm()

    def _replace(self, owner: Any, name: str, kept: Callable[[Any], Any]) -> None:
        original = vars(owner)[name]

        @functools.wraps(original)
        def first(*args: Any, **kwargs: Any) -> Any:
            outermost = vars(owner)[name] is ours
            if self._undo and self._begin() and outermost:
                # The session's own taps stand there now: they are to see this very call.
                return vars(owner)[name](*args, **kwargs)
            return original(*args, **kwargs)

        def undo() -> None:
            if vars(owner)[name] is ours:
                setattr(owner, name, original)

        ours = kept(first)
        setattr(owner, name, ours)
        self._undo.append(undo)

    def _stepping(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        """A step without a backward pass that was seen: begin behind it.

        Hooks for all optimizers cannot be added while they are being called. This optimizer's own
        are called ahead of them: from there they can.
        """
        if self._undo and current() is None:
            optimizer.register_step_post_hook(lambda *_: self._begin() and None)

    def _begin(self) -> bool:
        """Open a session, unless one is open; whether that was done. Never raises."""
        if current() is not None or not self._disarm():
            return False
        try:
            if _belongs_to_another():
                return False
            me = Process.me()
            os.environ[WITHIN] = f"{me.pid} {me.started}"
            begin()
        except Exception:
            return False
        return True

    def _disarm(self) -> bool:
        """Put everything back; whether there was anything."""
        undo, self._undo = self._undo, []
        for each in reversed(undo):
            each()
        return bool(undo)


def _belongs_to_another() -> bool:
    """Whether a watched rank started this program."""
    pid, _, started = os.environ.get(WITHIN, "").partition(" ")
    if not (pid.isdecimal() and started.isdecimal()):
        return False
    rank = Process(int(pid), int(started))
    return rank.pid != os.getpid() and rank.alive()
