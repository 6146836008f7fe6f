"""One node: rings of its ranks, moved by hand, and who asks something of them."""

from __future__ import annotations

from contextlib import ExitStack, closing

from sentinel.actions.planner import ActionPlanner
from sentinel.store.database import connect
from sentinel.store.silences import Suppression
from sentinel.transport.command_page import CommandPage, command_page_path, open_or_create
from sentinel.transport.identity import Identity
from sentinel.transport.ring import RingReader, RingWriter


class Node:
    """Rings of some ranks, their page, and one who asks; beats and clocks are moved by hand."""

    def __init__(self, folder, ranks=1, world=None, deeds=("checkpoint",), paged=True):
        self.folder, self.deeds, self.quiet = folder, deeds, Suppression()
        self.stack = ExitStack()
        self.writers, self.readers = [], []
        for rank in range(ranks):
            identity = Identity("run", 0, rank, rank, world or ranks, ranks)
            path = folder / f"0-{rank}.ring"
            self.writers.append(RingWriter(path, identity, 1 << 16))
            self.readers.append(RingReader(path))
            self.stack.callback(self.readers[-1].close)
        self.page = command_page_path(folder / "0-0.ring", 0)
        if paged:
            open_or_create(self.page).close()
        self.connection = self.stack.enter_context(closing(connect(folder / "sentinel.db")))
        self.begin()

    def begin(self):
        """An agent takes over."""
        self.asks = ActionPlanner(
            self.connection, self.deeds, lambda: self.readers, lambda: self.quiet
        )

    def run(self, beats, seconds, rank=None):
        """Steps, evenly over that time, seen by the agent one by one."""
        for _ in range(beats):
            for writer in self.writers if rank is None else [self.writers[rank]]:
                writer.publish_step(
                    writer.step + 1, writer.step_index + 1, writer.time + seconds / beats
                )
            self.asks.poll()

    def asked(self):
        with closing(CommandPage(self.page)) as page:
            return page.read()

    def rows(self):
        return self.connection.execute("select incident, number, step from request").fetchall()
