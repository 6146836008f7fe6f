"""Gathering: a gloo group of our own, over which rank 0 is handed the chunks of all ranks.

Its rules are what proved safe beside training. It has a store connection of its own; it is begun
from the training's thread, and only ever asked whether it is done; nobody waits. Its parts are
never freed: a group that is torn down waits for its threads, and a thread of gloo's that frees a
Python object while the interpreter ends takes the process down with it. The store is not used once
the group stands, since one that is gone is complained of on the standard error.

Beside the gathers, rank 0 has a receipt open for the one last chunk of every rank, which so reaches
it whenever that rank leaves, and every rank has one open for the word that rank 0 left.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from sentinel.client.collective import chunk
from sentinel.client.collective.chunk import Chunk

MEETING_SECONDS = 5.0
"""How long making the group may block, at most, where a rank died just before."""
_NEVER = timedelta(minutes=30)
"""Gloo's own deadline, by which it closes every connection: ours comes first."""
_LAST, _LEFT, _PROBE = 71, 72, 73
"""Tags of single messages."""
_WORD = 8
"""Bytes of the word that rank 0 left."""


class Broken(Exception):  # noqa: N818 - an answer, with the reason
    """The group is of no use any more."""


class Gathering:
    """The group of one attempt; `world` ranks make it at the same time.

    `chunk` is where the next chunk is to be written, while `busy` is not.
    """

    def __init__(self, store: Any, rank: int, world: int) -> None:
        """Blocks until all ranks have come, some milliseconds, or raises Broken."""
        self._torch = torch = sys.modules["torch"]
        group = torch.distributed
        self.rank, self.world = rank, world
        self._kept: list[Any] = [None]
        """The gather under way, and all that is never freed."""
        _leak(self._kept)
        try:
            meeting = group.PrefixStore("gathering", store)
            seconds = timedelta(seconds=MEETING_SECONDS)
            self._group = group.ProcessGroupGloo(meeting, rank, world, seconds)
            self._kept.append(self._group)
            self._await_messages()
        except RuntimeError as error:
            raise Broken(f"its group could not be made ({_first_line(error)})") from None
        self._options = group.GatherOptions()
        self._options.rootRank, self._options.timeout = 0, _NEVER
        self.chunk, self._mine = self._memory(chunk.SIZE)
        self._theirs = [self._memory(chunk.SIZE) for _ in (range(world) if rank == 0 else ())]
        self._work: Any = None
        self._words: dict[int, Chunk] = {}
        self._lost: set[int] = set()

    @property
    def busy(self) -> bool:
        """Whether a gather is under way."""
        return self._work is not None

    @property
    def left(self) -> bool:
        """Whether rank 0 said that it gathers no more."""
        return self._left[0] != 0

    def begin(self) -> None:
        """Hand over what is in `chunk`. Raises Broken."""
        theirs = [[tensor for _, tensor in self._theirs]] if self.rank == 0 else []
        try:
            self._work = self._group.gather(theirs, [self._mine], self._options)
        except RuntimeError as error:
            raise Broken(_first_line(error)) from None
        self._kept[0] = self._work

    def done(self) -> bool:
        """Whether the gather that was begun is over. Raises Broken."""
        work = self._work
        if not work.is_completed():
            return False
        self._work = self._kept[0] = None
        try:
            # It is over, so this does not wait; it says how.
            work.wait()
        except RuntimeError as error:
            raise Broken(_first_line(error)) from None
        return True

    def gathered(self) -> list[tuple[int, Chunk]]:
        """On rank 0, what the gather that is over brought, by rank."""
        found = ((rank, chunk.read(memory)) for rank, (memory, _) in enumerate(self._theirs))
        return [(rank, each) for rank, each in found if each is not None]

    def last_words(self) -> dict[int, Chunk]:
        """On rank 0, the last chunks of ranks that have left."""
        for rank, memory in [*self._last.items()]:
            word = chunk.read(memory)
            if word is not None:
                self._words[rank] = word
                del self._last[rank]
        return self._words

    def leave(self, memory: bytearray) -> None:
        """Hand rank 0 that chunk, the last one; the memory is kept."""
        self._send(memory, 0, _LAST)

    def dismiss(self) -> None:
        """On rank 0, say that it gathers no more."""
        for other in range(1, self.world):
            self._send(bytearray(b"\1" * _WORD), other, _LEFT)

    def accompanied(self) -> bool:
        """On rank 0, whether anybody has neither left nor is gone.

        One who is there is answer enough: of a thousand ranks, each is not looked at each time.
        """
        words = self.last_words()
        return any(other not in words and not self._gone(other) for other in range(1, self.world))

    def lost(self, others: Iterable[int]) -> list[int]:
        """Those of the ranks to which there is no connection any more: their process is gone."""
        return [other for other in others if self._gone(other)]

    def _await_messages(self) -> None:
        """Open the receipts of single messages. Raises RuntimeError where a rank is gone again."""
        others = range(1, 1 if self.rank else self.world)
        self._last = {other: self._open(other, chunk.SIZE, _LAST) for other in others}
        self._left = self._open(0, _WORD, _LEFT) if self.rank else bytearray(_WORD)

    def _gone(self, other: int) -> bool:
        """Of whoever is there, one more receipt is open from then on, to the end."""
        if other not in self._lost:
            try:
                self._open(other, _WORD, _PROBE)
            except RuntimeError:
                self._lost.add(other)
        return other in self._lost

    def _send(self, memory: bytearray, other: int, tag: int) -> None:
        tensor = self._torch.frombuffer(memory, dtype=self._torch.float64)
        try:
            self._kept += [tensor, self._group.send([tensor], other, tag)]
        except RuntimeError:
            # It is gone as well.
            return

    def _open(self, other: int, size: int, tag: int) -> bytearray:
        """Memory into which a message comes once it is sent."""
        memory, tensor = self._memory(size)
        self._kept.append(self._group.recv([tensor], other, tag))
        return memory

    def _memory(self, size: int) -> tuple[bytearray, Any]:
        memory = bytearray(size)
        # A tensor of inference mode may not be written to outside of it, as gloo's threads do.
        with self._torch.inference_mode(mode=False):
            tensor = self._torch.frombuffer(memory, dtype=self._torch.float64)
        self._kept += [memory, tensor]
        return memory, tensor


def _leak(thing: object) -> None:
    """Keep that object, and what it holds, to the very end of the process, on purpose."""
    import ctypes  # noqa: PLC0415 - few runs need it

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _first_line(error: Any) -> str:
    """What gloo says, without the place in its own source."""
    text = str(error).partition("\n")[0].partition("] ")
    return (text[2] or text[0])[:120]
