"""Starts a session automatically when this process begins to train, for `sentinel run`.

Launchers, data workers and servers import torch too, so a session starts only at the first backward
pass or optimizer step. Inside a decorated function no second session starts. Programs that a
monitored rank starts are not part of its run.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import ModuleSpec
from typing import Any

from sentinel.client.auto_session import begin_auto_session
from sentinel.client.capture.owned_modules import SeenModules
from sentinel.client.checks.loaded_weights import Loads
from sentinel.client.import_hook import ImportHook
from sentinel.client.session import current_session
from sentinel.transport.process import Process

PARENT_RANK_VARIABLE = "SENTINEL_PARENT_RANK"
"""Environment variable of a monitored rank's children: the rank's pid and start time in ticks."""


class AutoStart:
    """Waits for torch, then for its first backward pass or optimizer step."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._seen_modules, self._loads = SeenModules(), Loads()
        # The hook for torch appends the second one, immediately if torch is already imported.
        self._import_hooks: list[ImportHook] = []
        self._import_hooks.insert(0, ImportHook("torch", self._on_torch_imported))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Forward an import of torch that is already in progress to the hook that waits for it."""
        return self._import_hooks[0].find_spec(name, path, target)

    def _on_torch_imported(self) -> None:
        """Called when torch has been imported."""
        self._install(lambda function: function)
        # Importing the compiler only to be excluded from it would take about a second.
        if "torch._dynamo" not in sys.modules:
            self._import_hooks.append(ImportHook("torch._dynamo", self._on_dynamo_imported))

    def _on_dynamo_imported(self) -> None:
        """Called when the compiler has been imported: it must not trace our functions."""
        if self._uninstall():
            torch = sys.modules["torch"]
            self._install(functools.partial(torch.compiler.disable, recursive=False))

    def _install(self, decorate: Callable[[Any], Any]) -> None:
        try:
            torch = sys.modules["torch"]
            from torch.optim import optimizer as optim  # noqa: PLC0415 - it has been imported

            for owner in (torch.Tensor, torch.autograd):
                self._patch(owner, "backward", decorate)
            self._observe(torch.nn.Module, "named_parameters")
            self._observe(torch.nn.parallel.DistributedDataParallel, "__init__")
            self._observe_loads(torch.nn.Module)
            handle = optim.register_optimizer_step_pre_hook(decorate(self._before_optimizer_step))
            self._undo.append(handle.remove)
        except Exception:
            # This torch lacks a function that is needed: the process is not monitored.
            self._uninstall()

    def _patch(self, owner: Any, name: str, decorate: Callable[[Any], Any]) -> None:
        original = vars(owner)[name]

        @functools.wraps(original)
        def starting(*args: Any, **kwargs: Any) -> Any:
            is_outermost = vars(owner)[name] is patched
            if self._undo and self._start_session() and is_outermost:
                # The session has patched the function: its patches observe this call too.
                return vars(owner)[name](*args, **kwargs)
            return original(*args, **kwargs)

        patched = decorate(starting)
        self._replace(owner, name, patched)

    def _replace(self, owner: Any, name: str, patched: Any) -> None:
        """Replace a function until the patches are undone, if no other one has replaced it then."""
        original = vars(owner)[name]

        def undo() -> None:
            if vars(owner)[name] is patched:
                setattr(owner, name, original)

        setattr(owner, name, patched)
        self._undo.append(undo)

    def _observe(self, owner: Any, name: str) -> None:
        """Remember modules of which that method is called: a model is made before it trains."""
        original, seen = vars(owner)[name], self._seen_modules
        is_compiling = sys.modules["torch"].compiler.is_compiling

        @functools.wraps(original)
        def observing(module: Any, *args: Any, **kwargs: Any) -> Any:
            if id(module) not in seen.references and not is_compiling():
                with suppress(Exception):
                    seen.add(module)
            return original(module, *args, **kwargs)

        self._replace(owner, name, observing)

    def _observe_loads(self, owner: Any) -> None:
        """Remember what a checkpoint gave a module: it is loaded before the model trains."""
        original, loads = owner.load_state_dict, self._loads

        @functools.wraps(original)
        def loading(module: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            keys = original(module, state_dict, *args, **kwargs)
            # Modules that override the method may return no keys.
            with suppress(Exception):
                loads.add_state_dict(module, state_dict, keys)
            return keys

        self._replace(owner, "load_state_dict", loading)

    def _before_optimizer_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        """Start after a step whose backward pass was not observed.

        Global optimizer hooks cannot be added while they run. The optimizer's own post hooks run
        before the global ones, so the session starts there.
        """
        if self._undo and current_session() is None:
            optimizer.register_step_post_hook(lambda *_: self._start_session() and None)

    def _start_session(self) -> bool:
        """Start a session unless one is active. Returns whether it did. Never raises."""
        if current_session() is not None or not self._uninstall():
            return False
        try:
            if _is_child_of_monitored_rank():
                return False
            process = Process.current()
            os.environ[PARENT_RANK_VARIABLE] = f"{process.pid} {process.start_ticks}"
            begin_auto_session()
            self._pass_observations()
        except Exception:
            return False
        return True

    def _pass_observations(self) -> None:
        """Give the checks of the session the modules and loads that were seen before it."""
        session = current_session()
        if session is not None and session.loop is not None:
            for module in self._seen_modules.modules():
                session.loop.seen_modules.add(module)
            if session.loop.checks is not None:
                session.loop.checks.process.loads.found |= self._loads.found

    def _uninstall(self) -> bool:
        """Undo all patches. Returns whether there were any."""
        undo, self._undo = self._undo, []
        for each in reversed(undo):
            each()
        return bool(undo)


def _is_child_of_monitored_rank() -> bool:
    """Whether a monitored rank started this program."""
    pid, _, started = os.environ.get(PARENT_RANK_VARIABLE, "").partition(" ")
    if not (pid.isdecimal() and started.isdecimal()):
        return False
    rank = Process(int(pid), int(started))
    return rank.pid != os.getpid() and rank.is_alive()
