"""Ends a process and everything that it started, as a scheduler does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from time import monotonic, sleep

import psutil

GRACE_SECONDS = 30.0
"""Time from SIGTERM to SIGKILL, as in Slurm (`KillWait`) and Kubernetes."""
_POLL_INTERVAL_SECONDS = 0.2


def end_processes(command: psutil.Process, spared: list[str]) -> None:
    """End a process, then its descendants, by SIGTERM; what is left after the grace by SIGKILL.

    Descendants get no SIGTERM while the command runs: it may need them to end, such as the workers
    of a data loader to save a checkpoint. Those with the command line `spared` are not ended.
    """
    deadline, asked = monotonic() + GRACE_SECONDS, set[psutil.Process]()
    running = {command} if _is_running(command) else set()
    # A process that waits for a device does not end until the device answers.
    while running and monotonic() < deadline + GRACE_SECONDS:
        # Before any of them ends: afterwards their children have another parent.
        running = _tree(running, spared)
        number = signal.SIGTERM if monotonic() < deadline else signal.SIGKILL
        addressed = {command} if command in running and number == signal.SIGTERM else running
        _send(addressed - (asked if number == signal.SIGTERM else set()), number)
        asked |= addressed
        sleep(_POLL_INTERVAL_SECONDS)
        running = {each for each in running if _is_running(each)}


def end_group(group: int, spared: list[str]) -> bool:
    """End a process group and what its processes started; whether SIGKILL was needed for it.

    The group gets SIGTERM at once, as from Slurm, and what left it when the last of the group has
    ended: a launcher ends its ranks itself. Those with the command line `spared` are not ended.
    """
    deadline, asked, is_killed = monotonic() + GRACE_SECONDS, set[psutil.Process](), False
    running = _tree(_members(group), spared)
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        # One that a terminal stopped would not end.
        os.killpg(group, signal.SIGCONT)
    while running and monotonic() < deadline + GRACE_SECONDS:
        if monotonic() >= deadline:
            _send(running, signal.SIGKILL)
            is_killed = True
        elif not _members(group):
            _send(running - asked, signal.SIGTERM)
            asked |= running
        sleep(_POLL_INTERVAL_SECONDS)
        running = {each for each in _tree(running | _members(group), spared) if _is_running(each)}
    return is_killed


def _members(group: int) -> set[psutil.Process]:
    """The running processes of a group."""
    found = set[psutil.Process]()
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if os.getpgid(pid) == group and _is_running(process := psutil.Process(pid)):
                found.add(process)
    return found


def _tree(processes: Iterable[psutil.Process], spared: list[str]) -> set[psutil.Process]:
    """The processes and their descendants."""
    return {*processes, *(each for parent in processes for each in _descendants(parent, spared))}


def _send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for each in processes:
        with suppress(psutil.Error):
            each.send_signal(number)


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _descendants(process: psutil.Process, spared: list[str]) -> Iterator[psutil.Process]:
    """The children and their children, without those with that command line."""
    children: list[psutil.Process] = []
    with suppress(psutil.Error):
        children = process.children()
    for child in children:
        # One that has ended has no command line.
        with suppress(psutil.Error):
            # The interpreter may be another one.
            if child.cmdline()[1:] == spared[1:]:
                continue
        yield child
        yield from _descendants(child, spared)
