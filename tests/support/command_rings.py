"""The rings of one node, advanced by hand, and the planner of its commands."""

from __future__ import annotations

from contextlib import ExitStack, closing

from sentinel.actions.planner import ActionPlanner
from sentinel.store.database import connect
from sentinel.store.silences import Suppression
from sentinel.transport.command_page import CommandPage, command_page_path, open_or_create
from sentinel.transport.identity import Identity
from sentinel.transport.ring import RingReader, RingWriter


class Node:
    """Rings of some ranks, their command page and a planner; the test advances the clocks."""

    def __init__(
        self,
        folder,
        ranks=1,
        world=None,
        actions=("checkpoint",),
        *,
        has_page=True,
        is_shadow=False,
        command_problem="",
    ):
        self.folder, self.actions, self.suppression = folder, actions, Suppression()
        self.is_shadow, self.command_problem = is_shadow, command_problem
        self.stack = ExitStack()
        self.writers, self.readers = [], []
        for rank in range(ranks):
            identity = Identity("run", 0, rank, rank, world or ranks, ranks)
            path = folder / f"0-{rank}.ring"
            self.writers.append(RingWriter(path, identity, 1 << 16))
            self.readers.append(RingReader(path))
            self.stack.callback(self.readers[-1].close)
        self.page = command_page_path(folder / "0-0.ring", 0)
        if has_page:
            open_or_create(self.page).close()
        self.connection = self.stack.enter_context(closing(connect(folder / "sentinel.db")))
        self.begin()

    def begin(self, firing_incidents=int):
        """Start a new planner, as the agent that takes over does."""
        self.planner = ActionPlanner(
            self.connection,
            self.actions,
            lambda: self.readers,
            lambda: self.suppression,
            firing_incidents=firing_incidents,
            command_problem=lambda: self.command_problem,
            is_shadow=self.is_shadow,
        )

    def run(self, steps, seconds, rank=None):
        """Publish steps, evenly over that time; the planner polls after each."""
        for _ in range(steps):
            for writer in self.writers if rank is None else [self.writers[rank]]:
                writer.publish_step(
                    writer.step + 1, writer.step_index + 1, writer.time + seconds / steps
                )
            self.planner.poll()

    def read_commands(self):
        with closing(CommandPage(self.page)) as page:
            return page.read()

    def rows(self):
        return self.connection.execute("select incident, number, step from command").fetchall()
