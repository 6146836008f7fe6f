"""A rank that can be asked for something, without an agent."""

from __future__ import annotations

from contextlib import closing

from support.recorders import Told

from sentinel.client.capture.loop import Loop
from sentinel.client.control.commands import errands
from sentinel.transport.command_page import Request, Requests, page_beside
from sentinel.transport.identity import Identity

ALL = frozenset({"checkpoint", "stop", "call"})


class Asking(Told):
    """A recorder whose rank can be asked for something, and the loop that drives it."""

    def __init__(self, path, call=None, strict=False, place=0, ranks=1):
        super().__init__(path, strict)
        recorder = self.recorder
        guard = recorder.gate.guard
        identity = Identity("run", 0, place, place, ranks, ranks)
        recorder.errands = errands(path, identity, call, recorder.say, guard)
        self.loop = Loop(recorder)
        self.page = page_beside(path, 0)

    def ask(self, since, beat, deeds=ALL, number=1):
        with closing(Requests(self.page)) as page:
            page.write(Request(number, since, beat, deeds, "run/kl_blowup#1", "Too high a rate"))

    def step(self):
        self.recorder.begins()
        self.loop.step({})
        return self.recorder.errands.requested(self.recorder.errands.steps)
