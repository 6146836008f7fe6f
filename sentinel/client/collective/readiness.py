"""Quorum: whether every rank is ready to gather, and from which step on; nobody ever waits for it.

Ranks leave word in the store of the training's own process group, through a connection of ours.
Rank 0 sees when all have come, and names a step some seconds ahead. Whoever hears of it in time
says so; at that step all ranks count who did. Ranks that take their steps together then come to one
and the same answer, since the last word was left a step earlier; where somebody missed it, rank 0
names another step.
"""

from __future__ import annotations

import json
import sys
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from sentinel.client.collective import chunk
from sentinel.transport.ring_layout import VERSION

PAUSE = 0.25
"""Seconds between two looks into the store."""
DEADLINE = 60.0
"""Seconds after which, and looks without which, there is no quorum."""
FEWEST_LOOKS = 8
AHEAD = 2.0
"""Seconds that the named step is ahead."""
ROUNDS = 10
"""Steps that are named until it is given up."""
EVERY_SECONDS, MOST_STEPS = 1.0, 10
"""How often is gathered: about once a second, and at least every so many steps."""
_NAMED = 16
"""Ranks that are told by number at most."""


class NoQuorum(Exception):  # noqa: N818 - an answer, with the reason
    """The ranks will not gather; the text says why."""


class Start(NamedTuple):
    """From which step (beat) on, every how many, is gathered; and on which node rank 0 is."""

    beat: int
    every: int
    node: int


class Quorum:
    """One rank's part in the agreement. `word` must be the same on all, `node` names this node.

    `store` is that of torch.distributed.
    """

    def __init__(self, store: Any, rank: int, world: int, word: str, node: int) -> None:
        self.store, self.rank, self.world, self.word, self.node = store, rank, world, word, node
        self.start: Start | None = None
        self.looks = self.round = 0
        self._began: float | None = None
        self._asks_at = 0.0
        self._seen = (0, 0.0)
        self._pace = 0.0
        """Seconds from one beat to the next, lately; 0 while that is not known."""
        self._heard = (0, 0.0)
        """Beat, and time, at which the step was named to us."""

    def look(self, beat: int, now: float) -> Start | None:
        """What was agreed, once its step has come. `now` is in seconds of any clock.

        Raises NoQuorum.
        """
        try:
            return self._look(beat, now)
        except RuntimeError as error:
            # As all errors of stores are, those of a host that is gone as well.
            raise NoQuorum(f"its store does not answer ({type(error).__name__})") from None

    def _look(self, beat: int, now: float) -> Start | None:
        if self._began is None:
            self._began = now
            self.store.set(f"here/{self.rank}", self.word)
            self.store.add(f"hello/{self.word}", 1)
        if self.start is not None:
            return self._awaited(self.start, beat, now)
        if now < self._asks_at:
            return None
        # A thousand ranks ask one store.
        self._asks_at = now + max(PAUSE, self.world / 1024)
        self._measure(beat, now)
        self.looks += 1
        if self.rank == 0:
            self._name_a_step(beat)
        else:
            self._listen(beat)
        late = now - self._began > DEADLINE and self.looks >= FEWEST_LOOKS
        if self.start is not None:
            self._heard = beat, now
        elif late:
            raise NoQuorum(self._missing("here"))
        return None

    def _measure(self, beat: int, now: float) -> None:
        before, when = self._seen
        if when and beat > before:
            self._pace = max(1e-6, (now - when) / (beat - before))
        self._seen = beat, now

    def _name_a_step(self, beat: int) -> None:
        if not self._pace or self.store.add(f"hello/{self.word}", 0) < self.world:
            return
        ahead = 4 if self._pace > 2 * PAUSE else ceil(AHEAD / self._pace) + 4
        every = min(MOST_STEPS, max(1, int(EVERY_SECONDS / self._pace)))
        self.start = Start(beat + ahead, every, self.node)
        self.store.set(f"start/{self.round}", json.dumps(self.start))
        self._say_ready()

    def _listen(self, beat: int) -> None:
        key = f"start/{self.round}"
        if not self.store.check([key]):
            return
        start = Start(*map(int, json.loads(self.store.get(key))))
        if beat > start.beat - 2:
            # Too late for this one: others may be counting already.
            self._next_round()
        else:
            self.start = start
            self._say_ready()

    def _say_ready(self) -> None:
        self.store.set(f"ready/{self.round}/{self.rank}", b"1")
        self.store.add(f"ready/{self.round}", 1)

    def _awaited(self, start: Start, beat: int, now: float) -> Start | None:
        """What the ranks came to, at the named step. One that does not come is taken back.

        Steps may turn slow, or beats have leapt when their pace was taken; meanwhile other nodes
        have no agent. Whoever comes to that step later counts too few.
        """
        if beat >= start.beat:
            return self._counted(start, beat)
        since, when = self._heard
        if now - when > DEADLINE and beat - since >= FEWEST_LOOKS:
            self.store.add(f"ready/{self.round}", -self.world)
            raise NoQuorum("no quorum: the step to begin at did not come in time")
        return None

    def _counted(self, start: Start, beat: int) -> Start | None:
        if self.store.add(f"ready/{self.round}", 0) >= self.world:
            return start._replace(beat=beat)
        missing = f"ready/{self.round}"
        self._next_round()
        if self.round >= ROUNDS:
            raise NoQuorum(self._missing(missing))
        return None

    def _next_round(self) -> None:
        self.round, self.start = self.round + 1, None

    def _missing(self, where: str) -> str:
        if self.rank:
            return "no quorum"
        others = range(1, self.world)
        absent = [rank for rank in others if not self.store.check([f"{where}/{rank}"])]
        if where != "here":
            return f"no quorum: {named(absent)} did not agree in time"
        if absent:
            return f"no quorum: {named(absent)} without sentinel, or without the collective"
        return "no quorum: ranks of another version of sentinel"


def joined(group: Any, number: int, rank: int, world: int, directory: Path) -> Quorum:
    """A rank's part in the agreement of those of the process group.

    `group` is torch.distributed, `number` counts the runs of this process, `directory` is where our
    rings are. Raises NoQuorum.
    """
    return Quorum(_store_of(group, number), rank, world, _word(world), _node(directory))


def _store_of(group: Any, number: int) -> Any:
    """A connection of our own to the store of the process group, with keys of that run's own."""
    store = group.distributed_c10d._get_default_store()  # noqa: SLF001 - there is no other way
    if not hasattr(store, "clone"):
        raise NoQuorum("torch 2.8 or newer is needed")
    if not group.is_gloo_available():
        raise NoQuorum("this torch has no gloo")
    try:
        return group.PrefixStore(f"sentinel/{number}", store.clone())
    except RuntimeError as error:
        raise NoQuorum(f"its store cannot be shared ({type(error).__name__})") from None


def _word(world: int) -> str:
    """What must be the same on all ranks."""
    said = (chunk.VERSION, chunk.SIZE, VERSION, sys.byteorder, world)
    return f"{crc32(repr(said).encode()):08x}"


def _node(directory: Path) -> int:
    """The same number for ranks whose rings are in one directory, which one agent reads."""
    where = directory.stat()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = ""
    return crc32(repr((boot, where.st_dev, where.st_ino)).encode())


def named(ranks: list[int]) -> str:
    """Ranks as people read them.

    >>> named([3]), named([1, 3]), named([*range(40)])[-24:]
    ('rank 3', 'ranks 1 and 3', '13, 14, 15 and 24 others')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _NAMED:
        first = ", ".join(map(str, ranks[:_NAMED]))
        return f"ranks {first} and {len(ranks) - _NAMED} others"
    *most, last = map(str, ranks)
    return f"ranks {', '.join(most)} and {last}"
