"""A rank that can be asked for something, without an agent."""

from __future__ import annotations

from contextlib import closing

from support.recorders import Told

from sentinel.client.capture.loop import TrainingLoop
from sentinel.client.control.command_executor import make_executor
from sentinel.transport.command_page import Command, CommandPage, command_page_path
from sentinel.transport.identity import Identity

ALL = frozenset({"checkpoint", "stop", "call"})


class Asking(Told):
    """A recorder whose rank can be asked for something, and the loop that drives it."""

    def __init__(self, path, call=None, strict=False, place=0, ranks=1):
        super().__init__(path, strict)
        recorder = self.recorder
        guard = recorder.try_lock.guard
        identity = Identity("run", 0, place, place, ranks, ranks)
        recorder.commands = make_executor(path, identity, call, recorder.record_event, guard)
        self.loop = TrainingLoop(recorder)
        self.page = command_page_path(path, 0)

    def ask(self, since, beat, deeds=ALL, number=1):
        with closing(CommandPage(self.page)) as page:
            page.write(Command(number, since, beat, deeds, "run/kl_blowup#1", "Too high a rate"))

    def step(self):
        self.recorder.begin_backward()
        self.loop.complete_step({})
        return self.recorder.commands.requested(self.recorder.commands.optimizer_steps)
