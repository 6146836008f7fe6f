"""Copies device scalars to pinned host memory without waiting, and reads them once they arrive.

Each row of a pinned host buffer holds the scalars of one record: they are copied without blocking,
and an event follows. Rows are read in order, after their event has completed. Nothing here waits
for the device, and nothing is allocated after the first use of a device, since allocating pinned
memory may wait. A vector, such as the statistics of all layers, has a buffer of its own; one per
device is in flight at a time.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from sentinel.model.record import Event
from sentinel.transport.record_codec import StepStamp

ROWS_PER_DEVICE = 64
"""Rows in flight at once; further values are dropped and counted."""
MAX_VECTOR_SIZES = 16
"""Sizes of vectors of a device; others are dropped."""
SCALARS_PER_ROW = 16
"""A record with more scalars uses several rows."""


@dataclass(slots=True)
class CopyRow:
    """Scalars in flight; `stamp` is set once the step number of their record is known."""

    names: tuple[str, ...]
    host_buffer: Any
    ready_event: Any
    stamp: StepStamp | None = None
    record_kind: Event = Event.STEP
    """The event of the record."""


@dataclass(slots=True)
class VectorCopy:
    """A vector in flight: `deliver` receives its numbers."""

    host_buffer: Any
    ready_event: Any
    deliver: Callable[[list[float]], None]


@dataclass
class DeviceQueue:
    """The rows of one device: free ones with their events, and those in flight, oldest first.

    `make_buffer` makes a host buffer for a vector of that size, and its event.
    """

    current_stream: Callable[[], Any]
    free: list[tuple[Any, Any]]
    make_buffer: Callable[[int], tuple[Any, Any]] | None = None
    in_flight: deque[CopyRow] = field(default_factory=deque)
    vector_buffers: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """Host buffers of vectors with their events, by size."""
    vector: VectorCopy | None = None


@dataclass
class DeviceCopies:
    """The device scalars in flight. `count_drop` counts those that found no free row."""

    count_drop: Callable[[str, int], None]
    make_queue: Callable[[Any], DeviceQueue]
    queues: dict[Any, DeviceQueue] = field(default_factory=dict)

    def start_copies(
        self,
        tensors: Mapping[str, Any],
        stamp: StepStamp | None = None,
        record_kind: Event = Event.STEP,
    ) -> list[CopyRow]:
        """Start copying scalars. Returns the rows; without `stamp`, the caller sets it later."""
        rows: list[CopyRow] = []
        by_device: dict[Any, dict[str, Any]] = {}
        for name, tensor in tensors.items():
            by_device.setdefault(tensor.device, {})[name] = tensor
        for device, group in _split_into_rows(by_device):
            row = self._start_row(device, group)
            if row is None:
                self.count_drop("pending", len(group))
            else:
                row.stamp, row.record_kind = stamp, record_kind
                rows.append(row)
        return rows

    def pop_arrived(self) -> Iterator[tuple[Event, StepStamp, tuple[str, ...], list[float]]]:
        """Event, stamp, names and values of the rows that have arrived, oldest first per device."""
        for queue in self.queues.values():
            if queue.in_flight and is_capturing_graph():
                return
            while queue.in_flight:
                row = queue.in_flight[0]
                if row.stamp is None or not row.ready_event.query():
                    break
                queue.in_flight.popleft()
                values = row.host_buffer[: len(row.names)].tolist()
                queue.free.append((row.host_buffer, row.ready_event))
                yield row.record_kind, row.stamp, row.names, values

    def start_vector(self, vector: Any, deliver: Callable[[list[float]], None]) -> bool:
        """Start copying a flat float32 tensor; whether it will be delivered by `deliver_vectors`.

        It is not while another one of its device is in flight.
        """
        if is_capturing_graph():
            return False
        self.deliver_vectors()
        queue = self._queue(vector.device)
        if queue.vector is not None or queue.make_buffer is None:
            return False
        size = vector.numel()
        if size not in queue.vector_buffers:
            if len(queue.vector_buffers) >= MAX_VECTOR_SIZES:
                return False
            queue.vector_buffers[size] = queue.make_buffer(size)
        host, event = queue.vector_buffers[size]
        host.copy_(vector, non_blocking=True)
        event.record(queue.current_stream())
        queue.vector = VectorCopy(host, event, deliver)
        return True

    def deliver_vectors(self) -> None:
        """Deliver the vectors that have arrived."""
        for queue in self.queues.values():
            copy = queue.vector
            if copy is None or is_capturing_graph() or not copy.ready_event.query():
                continue
            queue.vector = None
            copy.deliver(copy.host_buffer.tolist())

    def pending_count(self) -> int:
        """Scalars that have not arrived."""
        return sum(len(row.names) for queue in self.queues.values() for row in queue.in_flight)

    def _queue(self, device: Any) -> DeviceQueue:
        if device not in self.queues:
            self.queues[device] = self.make_queue(device)
        return self.queues[device]

    def _start_row(self, device: Any, group: Mapping[str, Any]) -> CopyRow | None:
        # While a graph is captured, the copies would become part of it.
        if is_capturing_graph():
            return None
        queue = self._queue(device)
        if not queue.free:
            return None
        host, event = queue.free.pop()
        for index, tensor in enumerate(group.values()):
            # Converted on the device: a copy that converts is staged through pageable memory.
            host[index].copy_(tensor.detach().to(host.dtype).reshape(()), non_blocking=True)
        event.record(queue.current_stream())
        row = CopyRow(tuple(group), host, event)
        queue.in_flight.append(row)
        return row


def cuda_queue(device: Any) -> DeviceQueue:
    """A queue with rows for a CUDA, ROCm or XPU device."""
    torch = sys.modules["torch"]
    kind = getattr(torch, device.type)
    host = torch.empty(
        ROWS_PER_DEVICE, SCALARS_PER_ROW, dtype=torch.float64, device="cpu", pin_memory=True
    )
    free = [(host[row], kind.Event()) for row in range(ROWS_PER_DEVICE)]

    def make_buffer(size: int) -> tuple[Any, Any]:
        buffer = torch.empty(size, dtype=torch.float32, device="cpu", pin_memory=True)
        return buffer, kind.Event()

    return DeviceQueue(lambda: kind.current_stream(device), free, make_buffer)


def _split_into_rows(
    by_device: Mapping[Any, Mapping[str, Any]],
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The scalars of each device, in groups of at most `SCALARS_PER_ROW`."""
    for device, group in by_device.items():
        items = iter(group.items())
        while part := dict(islice(items, SCALARS_PER_ROW)):
            yield device, part


def is_capturing_graph() -> bool:
    """Whether a CUDA graph is being captured: operations run now become part of it."""
    cuda = sys.modules.get("torch.cuda")
    return bool(cuda and cuda.is_initialized() and cuda.is_current_stream_capturing())
