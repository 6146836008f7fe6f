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

from sentinel.client.auto_session import begin_auto_session
from sentinel.client.import_hook import ImportHook
from sentinel.client.session import current_session
from sentinel.transport.process import Process

PARENT_RANK_VARIABLE = "SENTINEL_PARENT_RANK"
"""Environment variable that a watched rank leaves to its children: its process and its start."""


class AutoStart:
    """Waits for torch, then for its first backward pass or optimizer step."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        # The second is added by the first, which acts at once where torch is there already.
        self._import_hooks: list[ImportHook] = []
        self._import_hooks.insert(0, ImportHook("torch", self._on_torch_imported))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """What the one who waits for torch makes of an import that is under way already."""
        return self._import_hooks[0].find_spec(name, path, target)

    def _on_torch_imported(self) -> None:
        """Torch is there."""
        self._install(lambda function: function)
        # Loading the compiler to be kept out of it would cost every process its second.
        if "torch._dynamo" not in sys.modules:
            self._import_hooks.append(ImportHook("torch._dynamo", self._on_dynamo_imported))

    def _on_dynamo_imported(self) -> None:
        """The compiler is there: it must not trace us."""
        if self._uninstall():
            torch = sys.modules["torch"]
            self._install(functools.partial(torch.compiler.disable, recursive=False))

    def _install(self, decorate: Callable[[Any], Any]) -> None:
        try:
            torch = sys.modules["torch"]
            from torch.optim import optimizer as optim  # noqa: PLC0415 - it has been imported

            for owner in (torch.Tensor, torch.autograd):
                self._patch(owner, "backward", decorate)
            hook = optim.register_optimizer_step_pre_hook(decorate(self._before_optimizer_step))
            self._undo.append(hook.remove)
        except Exception:
            # A torch that lacks what we need: nobody is watched, and nothing else changes.
            self._uninstall()

    def _patch(self, owner: Any, name: str, decorate: Callable[[Any], Any]) -> None:
        original = vars(owner)[name]

        @functools.wraps(original)
        def first(*args: Any, **kwargs: Any) -> Any:
            outermost = vars(owner)[name] is ours
            if self._undo and self._start_session() and outermost:
                # The session's own taps stand there now: they are to see this very call.
                return vars(owner)[name](*args, **kwargs)
            return original(*args, **kwargs)

        def undo() -> None:
            if vars(owner)[name] is ours:
                setattr(owner, name, original)

        ours = decorate(first)
        setattr(owner, name, ours)
        self._undo.append(undo)

    def _before_optimizer_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        """A step without a backward pass that was seen: begin behind it.

        Hooks for all optimizers cannot be added while they are being called. This optimizer's own
        are called ahead of them: from there they can.
        """
        if self._undo and current_session() is None:
            optimizer.register_step_post_hook(lambda *_: self._start_session() and None)

    def _start_session(self) -> bool:
        """Open a session, unless one is open; whether that was done. Never raises."""
        if current_session() is not None or not self._uninstall():
            return False
        try:
            if _is_child_of_monitored_rank():
                return False
            me = Process.current()
            os.environ[PARENT_RANK_VARIABLE] = f"{me.pid} {me.start_ticks}"
            begin_auto_session()
        except Exception:
            return False
        return True

    def _uninstall(self) -> bool:
        """Put everything back; whether there was anything."""
        undo, self._undo = self._undo, []
        for each in reversed(undo):
            each()
        return bool(undo)


def _is_child_of_monitored_rank() -> bool:
    """Whether a watched rank started this program."""
    pid, _, started = os.environ.get(PARENT_RANK_VARIABLE, "").partition(" ")
    if not (pid.isdecimal() and started.isdecimal()):
        return False
    rank = Process(int(pid), int(started))
    return rank.pid != os.getpid() and rank.is_alive()
