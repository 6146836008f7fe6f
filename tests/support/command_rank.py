"""A rank that receives commands without an agent."""

from __future__ import annotations

from contextlib import closing

from support.recorders import RecordedRank

from sentinel.client.capture.loop import TrainingLoop
from sentinel.transport.command_page import Command, CommandPage, command_page_path
from sentinel.transport.identity import Identity

ALL_ACTIONS = frozenset({"checkpoint", "stop", "call"})


class CommandRank(RecordedRank):
    """A recorder with a command page, and the training loop that drives it."""

    def __init__(self, path, callback=None, strict=False, local_rank=0, ranks=1):
        super().__init__(path, strict)
        identity = Identity("run", 0, local_rank, local_rank, ranks, ranks)
        self.recorder.commands.open(path, identity, callback)
        self.loop = TrainingLoop(self.recorder)
        self.page = command_page_path(path, 0)

    def send(self, ready_from_index, due_step_index, actions=ALL_ACTIONS, number=1):
        command = Command(
            number, ready_from_index, due_step_index, actions, "run/kl_blowup#1", "Too high a rate"
        )
        with closing(CommandPage(self.page)) as page:
            page.write(command)

    def step(self):
        """One optimizer step; returns the actions that the loop is asked to take."""
        self.recorder.begin_backward()
        self.loop.complete_step({})
        return self.recorder.commands.requested(self.recorder.commands.optimizer_steps)
