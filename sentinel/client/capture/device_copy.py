"""Stash: numbers that are still being computed on a device, picked up once they are there.

Each row of a pinned host buffer takes the scalars of one moment: copied without blocking, followed
by an event. Rows are read in order, and only when the device says that the event has passed.
Nothing here ever waits for the device, and nothing is allocated after the first use of a device,
since allocating pinned memory may wait.
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
"""Moments that may be under way at once; beyond that, values are dropped and counted."""
SCALARS_PER_ROW = 16
"""Scalars of one row; of more, a moment takes several."""


@dataclass(slots=True)
class CopyRow:
    """Scalars of one moment under way; `moment` is filled in once its step number is settled."""

    names: tuple[str, ...]
    host_buffer: Any
    ready_event: Any
    stamp: StepStamp | None = None
    record_kind: Event = Event.STEP
    """What happened at that moment."""


@dataclass
class DeviceQueue:
    """One device's rows: free ones with their events, and those under way, oldest first."""

    current_stream: Callable[[], Any]
    free: list[tuple[Any, Any]]
    in_flight: deque[CopyRow] = field(default_factory=deque)


@dataclass
class DeviceCopies:
    """Device scalars on their way. `drop` counts those there was no room for, by reason."""

    count_drop: Callable[[str, int], None]
    make_queue: Callable[[Any], DeviceQueue]
    queues: dict[Any, DeviceQueue] = field(default_factory=dict)

    def start_copies(
        self,
        tensors: Mapping[str, Any],
        stamp: StepStamp | None = None,
        record_kind: Event = Event.STEP,
    ) -> list[CopyRow]:
        """Start fetching scalars; returns the rows whose `moment` the caller still owes."""
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
        """Events and moments whose scalars have arrived, oldest first for each device."""
        for lane in self.queues.values():
            if lane.in_flight and is_capturing_graph():
                return
            while lane.in_flight:
                row = lane.in_flight[0]
                if row.stamp is None or not row.ready_event.query():
                    break
                lane.in_flight.popleft()
                values = row.host_buffer[: len(row.names)].tolist()
                lane.free.append((row.host_buffer, row.ready_event))
                yield row.record_kind, row.stamp, row.names, values

    def pending_count(self) -> int:
        """Scalars that have not arrived."""
        return sum(len(row.names) for lane in self.queues.values() for row in lane.in_flight)

    def _start_row(self, device: Any, group: Mapping[str, Any]) -> CopyRow | None:
        # While a graph is recorded, our copies would become part of it.
        if is_capturing_graph():
            return None
        if device not in self.queues:
            self.queues[device] = self.make_queue(device)
        lane = self.queues[device]
        if not lane.free:
            return None
        host, event = lane.free.pop()
        for at, tensor in enumerate(group.values()):
            # Converted on the device: a copy that converts is staged through pageable memory.
            host[at].copy_(tensor.detach().to(host.dtype).reshape(()), non_blocking=True)
        event.record(lane.current_stream())
        row = CopyRow(tuple(group), host, event)
        lane.in_flight.append(row)
        return row


def cuda_queue(device: Any) -> DeviceQueue:
    """Rows for a CUDA, ROCm or XPU device."""
    torch = sys.modules["torch"]
    kind = getattr(torch, device.type)
    host = torch.empty(
        ROWS_PER_DEVICE, SCALARS_PER_ROW, dtype=torch.float64, device="cpu", pin_memory=True
    )
    free = [(host[row], kind.Event()) for row in range(ROWS_PER_DEVICE)]
    return DeviceQueue(lambda: kind.current_stream(device), free)


def _split_into_rows(
    by_device: Mapping[Any, Mapping[str, Any]],
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each device's scalars, as many at a time as a row takes."""
    for device, group in by_device.items():
        items = iter(group.items())
        while part := dict(islice(items, SCALARS_PER_ROW)):
            yield device, part


def is_capturing_graph() -> bool:
    """Whether a CUDA graph is being recorded: whatever is computed now becomes a part of it."""
    cuda = sys.modules.get("torch.cuda")
    return bool(cuda and cuda.is_initialized() and cuda.is_current_stream_capturing())
