"""A separate gloo group over which rank 0 gathers the chunks of all ranks.

The following rules keep training safe. The group has its own store connection. Gathers start in
the training thread and are only polled; nothing waits. The parts of the group are never freed:
tearing a group down waits for its threads, and a gloo thread that frees a Python object while the
interpreter exits crashes the process. The store is not used once the group exists, since torch logs
an error if the store is gone.

Beside the gathers, rank 0 posts a receive for the final chunk of every rank, so it arrives whenever
that rank leaves. Every other rank posts a receive for the dismissal by rank 0.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from sentinel.client.collective import chunk
from sentinel.client.collective.chunk import Chunk

GROUP_TIMEOUT_SECONDS = 5.0
"""Maximum time that creating the group may block, if a rank died just before."""
_GLOO_TIMEOUT = timedelta(minutes=30)
"""Gloo's own timeout, after which it closes every connection. Ours is shorter."""
_FINAL_TAG, _DISMISS_TAG, _PROBE_TAG = 71, 72, 73
"""Tags of point-to-point messages."""
_MESSAGE_BYTES = 8
"""Bytes of a dismissal."""


class GatherGroupError(Exception):
    """The group cannot be used any more."""


class GatherGroup:
    """The group of one attempt; its `world_size` ranks create it at the same time.

    The next chunk is written into `send_buffer` while `busy` is False.
    """

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        """Blocks for some milliseconds, until all ranks have joined. Raises GatherGroupError."""
        self._torch = torch = sys.modules["torch"]
        group = torch.distributed
        self.rank, self.world_size = rank, world_size
        self._kept_alive: list[Any] = [None]
        """The gather in progress, and all objects that are never freed."""
        _keep_alive_forever(self._kept_alive)
        try:
            group_store = group.PrefixStore("gather", store)
            timeout = timedelta(seconds=GROUP_TIMEOUT_SECONDS)
            self._group = group.ProcessGroupGloo(group_store, rank, world_size, timeout)
            self._kept_alive.append(self._group)
            self._post_receives()
        except RuntimeError as error:
            reason = _first_line(error)
            raise GatherGroupError(f"cannot create the gather group ({reason})") from None
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
        """Whether a gather is in progress."""
        return self._work is not None

    @property
    def dismissed(self) -> bool:
        """Whether rank 0 has announced that it stops gathering."""
        return self._dismissal[0] != 0

    def start_gather(self) -> None:
        """Start to send the chunk in `send_buffer`. Raises GatherGroupError."""
        outputs = [[tensor for _, tensor in self._receive_buffers]] if self.rank == 0 else []
        try:
            self._work = self._group.gather(outputs, [self._send_tensor], self._options)
        except RuntimeError as error:
            raise GatherGroupError(_first_line(error)) from None
        self._kept_alive[0] = self._work

    def poll_gather(self) -> bool:
        """Whether the gather that was started has completed. Raises GatherGroupError."""
        work = self._work
        if not work.is_completed():
            return False
        self._work = self._kept_alive[0] = None
        try:
            # The gather has completed, so this does not wait; it raises the error, if any.
            work.wait()
        except RuntimeError as error:
            raise GatherGroupError(_first_line(error)) from None
        return True

    def received_chunks(self) -> list[tuple[int, Chunk]]:
        """On rank 0, the chunks of the completed gather, by rank."""
        decoded = (
            (rank, chunk.decode(memory)) for rank, (memory, _) in enumerate(self._receive_buffers)
        )
        return [(rank, each) for rank, each in decoded if each is not None]

    def final_chunks(self) -> dict[int, Chunk]:
        """On rank 0, the final chunks of ranks that have left."""
        for rank, memory in [*self._final_buffers.items()]:
            final = chunk.decode(memory)
            if final is not None:
                self._final_chunks[rank] = final
                del self._final_buffers[rank]
        return self._final_chunks

    def send_final_chunk(self, buffer: bytearray) -> None:
        """Send the final chunk to rank 0; the buffer stays allocated."""
        self._send(buffer, 0, _FINAL_TAG)

    def dismiss_peers(self) -> None:
        """On rank 0, announce that it stops gathering."""
        for other in range(1, self.world_size):
            self._send(bytearray(b"\1" * _MESSAGE_BYTES), other, _DISMISS_TAG)

    def has_live_peers(self) -> bool:
        """On rank 0, whether any rank has neither left nor lost its connection.

        The search stops at the first such rank, so that it stays fast with a thousand ranks.
        """
        left = self.final_chunks()
        return any(
            other not in left and not self._is_gone(other) for other in range(1, self.world_size)
        )

    def lost_ranks(self, ranks: Iterable[int]) -> list[int]:
        """The ranks whose connection is closed, since their process is gone."""
        return [other for other in ranks if self._is_gone(other)]

    def _post_receives(self) -> None:
        """Post the receives of point-to-point messages. Raises RuntimeError if a rank is gone."""
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
        """Whether posting one more receive from that rank fails."""
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
            # The receiver is gone.
            return

    def _post_receive(self, rank: int, size: int, tag: int) -> bytearray:
        """The buffer into which a message will be received."""
        memory, tensor = self._allocate(size)
        self._kept_alive.append(self._group.recv([tensor], rank, tag))
        return memory

    def _allocate(self, size: int) -> tuple[bytearray, Any]:
        memory = bytearray(size)
        # Gloo's threads may not write to an inference-mode tensor.
        with self._torch.inference_mode(mode=False):
            tensor = self._torch.frombuffer(memory, dtype=self._torch.float64)
        self._kept_alive += [memory, tensor]
        return memory, tensor


def _keep_alive_forever(value: object) -> None:
    """Leak a reference on purpose, so that the object is never freed."""
    import ctypes  # noqa: PLC0415 - few runs need it

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _first_line(error: Any) -> str:
    """The first line of a gloo error, without the source location."""
    text = str(error).partition("\n")[0].partition("] ")
    return (text[2] or text[0])[:120]
