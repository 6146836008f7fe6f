"""One node: rings of its ranks, moved by hand, and who asks something of them."""

from __future__ import annotations

from contextlib import ExitStack, closing

from sentinel.actions.planner import Requesting
from sentinel.store.database import connect
from sentinel.store.silences import Quiet
from sentinel.transport.command_page import Requests, made, page_beside
from sentinel.transport.identity import Identity
from sentinel.transport.ring import RingReader, RingWriter


class Node:
    """Rings of some ranks, their page, and one who asks; beats and clocks are moved by hand."""

    def __init__(self, folder, ranks=1, world=None, deeds=("checkpoint",), paged=True):
        self.folder, self.deeds, self.quiet = folder, deeds, Quiet()
        self.stack = ExitStack()
        self.writers, self.readers = [], []
        for rank in range(ranks):
            identity = Identity("run", 0, rank, rank, world or ranks, ranks)
            path = folder / f"0-{rank}.ring"
            self.writers.append(RingWriter(path, identity, 1 << 16))
            self.readers.append(RingReader(path))
            self.stack.callback(self.readers[-1].close)
        self.page = page_beside(folder / "0-0.ring", 0)
        if paged:
            made(self.page).close()
        self.connection = self.stack.enter_context(closing(connect(folder / "sentinel.db")))
        self.begin()

    def begin(self):
        """An agent takes over."""
        self.asks = Requesting(
            self.connection, self.deeds, lambda: self.readers, lambda: self.quiet
        )

    def run(self, beats, seconds, rank=None):
        """Steps, evenly over that time, seen by the agent one by one."""
        for _ in range(beats):
            for writer in self.writers if rank is None else [self.writers[rank]]:
                writer.note(writer.step + 1, writer.beat + 1, writer.time + seconds / beats)
            self.asks.turn()

    def asked(self):
        with closing(Requests(self.page)) as page:
            return page.read()

    def rows(self):
        return self.connection.execute("select incident, number, step from request").fetchall()
