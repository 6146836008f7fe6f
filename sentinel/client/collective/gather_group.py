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

GROUP_TIMEOUT_SECONDS = 5.0
"""How long making the group may block, at most, where a rank died just before."""
_GLOO_TIMEOUT = timedelta(minutes=30)
"""Gloo's own deadline, by which it closes every connection: ours comes first."""
_FINAL_TAG, _DISMISS_TAG, _PROBE_TAG = 71, 72, 73
"""Tags of single messages."""
_MESSAGE_BYTES = 8
"""Bytes of the word that rank 0 left."""


class GatherGroupError(Exception):
    """The group is of no use any more."""


class GatherGroup:
    """The group of one attempt; `world` ranks make it at the same time.

    `chunk` is where the next chunk is to be written, while `busy` is not.
    """

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        """Blocks until all ranks have come, some milliseconds, or raises Broken."""
        self._torch = torch = sys.modules["torch"]
        group = torch.distributed
        self.rank, self.world_size = rank, world_size
        self._kept_alive: list[Any] = [None]
        """The gather under way, and all that is never freed."""
        _keep_alive_forever(self._kept_alive)
        try:
            meeting = group.PrefixStore("gathering", store)
            seconds = timedelta(seconds=GROUP_TIMEOUT_SECONDS)
            self._group = group.ProcessGroupGloo(meeting, rank, world_size, seconds)
            self._kept_alive.append(self._group)
            self._post_receives()
        except RuntimeError as error:
            raise GatherGroupError(f"its group could not be made ({_first_line(error)})") from None
        self._options = group.GatherOptions()
        self._options.rootRank, self._options.timeout = 0, _GLOO_TIMEOUT
        self.send_buffer, self._send_tensor = self._allocate(chunk.CHUNK_BYTES)
        self._receive_buffers = [
            self._allocate(chunk.CHUNK_BYTES) for _ in (range(world_size) if rank == 0 else ())
        ]
        self._work: Any = None
        self._final_chunks: dict[int, Chunk] = {}
        self._lost_ranks: set[int] = set()

    @property
    def busy(self) -> bool:
        """Whether a gather is under way."""
        return self._work is not None

    @property
    def dismissed(self) -> bool:
        """Whether rank 0 said that it gathers no more."""
        return self._dismissal[0] != 0

    def start_gather(self) -> None:
        """Hand over what is in `chunk`. Raises Broken."""
        theirs = [[tensor for _, tensor in self._receive_buffers]] if self.rank == 0 else []
        try:
            self._work = self._group.gather(theirs, [self._send_tensor], self._options)
        except RuntimeError as error:
            raise GatherGroupError(_first_line(error)) from None
        self._kept_alive[0] = self._work

    def poll_gather(self) -> bool:
        """Whether the gather that was begun is over. Raises Broken."""
        work = self._work
        if not work.is_completed():
            return False
        self._work = self._kept_alive[0] = None
        try:
            # It is over, so this does not wait; it says how.
            work.wait()
        except RuntimeError as error:
            raise GatherGroupError(_first_line(error)) from None
        return True

    def received_chunks(self) -> list[tuple[int, Chunk]]:
        """On rank 0, what the gather that is over brought, by rank."""
        found = (
            (rank, chunk.decode(memory)) for rank, (memory, _) in enumerate(self._receive_buffers)
        )
        return [(rank, each) for rank, each in found if each is not None]

    def final_chunks(self) -> dict[int, Chunk]:
        """On rank 0, the last chunks of ranks that have left."""
        for rank, memory in [*self._final_buffers.items()]:
            word = chunk.decode(memory)
            if word is not None:
                self._final_chunks[rank] = word
                del self._final_buffers[rank]
        return self._final_chunks

    def send_final_chunk(self, buffer: bytearray) -> None:
        """Hand rank 0 that chunk, the last one; the memory is kept."""
        self._send(buffer, 0, _FINAL_TAG)

    def dismiss_peers(self) -> None:
        """On rank 0, say that it gathers no more."""
        for other in range(1, self.world_size):
            self._send(bytearray(b"\1" * _MESSAGE_BYTES), other, _DISMISS_TAG)

    def has_live_peers(self) -> bool:
        """On rank 0, whether anybody has neither left nor is gone.

        One who is there is answer enough: of a thousand ranks, each is not looked at each time.
        """
        words = self.final_chunks()
        return any(
            other not in words and not self._is_gone(other) for other in range(1, self.world_size)
        )

    def lost_ranks(self, ranks: Iterable[int]) -> list[int]:
        """Those of the ranks to which there is no connection any more: their process is gone."""
        return [other for other in ranks if self._is_gone(other)]

    def _post_receives(self) -> None:
        """Open the receipts of single messages. Raises RuntimeError where a rank is gone again."""
        others = range(1, 1 if self.rank else self.world_size)
        self._final_buffers = {
            other: self._post_receive(other, chunk.CHUNK_BYTES, _FINAL_TAG) for other in others
        }
        self._dismissal = (
            self._post_receive(0, _MESSAGE_BYTES, _DISMISS_TAG)
            if self.rank
            else bytearray(_MESSAGE_BYTES)
        )

    def _is_gone(self, rank: int) -> bool:
        """Of whoever is there, one more receipt is open from then on, to the end."""
        if rank not in self._lost_ranks:
            try:
                self._post_receive(rank, _MESSAGE_BYTES, _PROBE_TAG)
            except RuntimeError:
                self._lost_ranks.add(rank)
        return rank in self._lost_ranks

    def _send(self, buffer: bytearray, rank: int, tag: int) -> None:
        tensor = self._torch.frombuffer(buffer, dtype=self._torch.float64)
        try:
            self._kept_alive += [tensor, self._group.send([tensor], rank, tag)]
        except RuntimeError:
            # It is gone as well.
            return

    def _post_receive(self, rank: int, size: int, tag: int) -> bytearray:
        """Memory into which a message comes once it is sent."""
        memory, tensor = self._allocate(size)
        self._kept_alive.append(self._group.recv([tensor], rank, tag))
        return memory

    def _allocate(self, size: int) -> tuple[bytearray, Any]:
        memory = bytearray(size)
        # A tensor of inference mode may not be written to outside of it, as gloo's threads do.
        with self._torch.inference_mode(mode=False):
            tensor = self._torch.frombuffer(memory, dtype=self._torch.float64)
        self._kept_alive += [memory, tensor]
        return memory, tensor


def _keep_alive_forever(thing: object) -> None:
    """Keep that object, and what it holds, to the very end of the process, on purpose."""
    import ctypes  # noqa: PLC0415 - few runs need it

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _first_line(error: Any) -> str:
    """What gloo says, without the place in its own source."""
    text = str(error).partition("\n")[0].partition("] ")
    return (text[2] or text[0])[:120]
