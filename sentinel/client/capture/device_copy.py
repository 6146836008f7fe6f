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
from sentinel.transport.record_codec import Moment

ROWS = 64
"""Moments that may be under way at once; beyond that, values are dropped and counted."""
WIDTH = 16
"""Scalars of one row; of more, a moment takes several."""


@dataclass(slots=True)
class Row:
    """Scalars of one moment under way; `moment` is filled in once its step number is settled."""

    names: tuple[str, ...]
    host: Any
    event: Any
    moment: Moment | None = None
    told_as: Event = Event.STEP
    """What happened at that moment."""


@dataclass
class Lane:
    """One device's rows: free ones with their events, and those under way, oldest first."""

    stream: Callable[[], Any]
    free: list[tuple[Any, Any]]
    under_way: deque[Row] = field(default_factory=deque)


@dataclass
class Stash:
    """Device scalars on their way. `drop` counts those there was no room for, by reason."""

    drop: Callable[[str, int], None]
    make_lane: Callable[[Any], Lane]
    lanes: dict[Any, Lane] = field(default_factory=dict)

    def put(
        self,
        tensors: Mapping[str, Any],
        moment: Moment | None = None,
        told_as: Event = Event.STEP,
    ) -> list[Row]:
        """Start fetching scalars; returns the rows whose `moment` the caller still owes."""
        rows: list[Row] = []
        by_device: dict[Any, dict[str, Any]] = {}
        for name, tensor in tensors.items():
            by_device.setdefault(tensor.device, {})[name] = tensor
        for device, group in _rows_of(by_device):
            row = self._start(device, group)
            if row is None:
                self.drop("pending", len(group))
            else:
                row.moment, row.told_as = moment, told_as
                rows.append(row)
        return rows

    def harvest(self) -> Iterator[tuple[Event, Moment, tuple[str, ...], list[float]]]:
        """Events and moments whose scalars have arrived, oldest first for each device."""
        for lane in self.lanes.values():
            if lane.under_way and capturing():
                return
            while lane.under_way:
                row = lane.under_way[0]
                if row.moment is None or not row.event.query():
                    break
                lane.under_way.popleft()
                values = row.host[: len(row.names)].tolist()
                lane.free.append((row.host, row.event))
                yield row.told_as, row.moment, row.names, values

    def waiting(self) -> int:
        """Scalars that have not arrived."""
        return sum(len(row.names) for lane in self.lanes.values() for row in lane.under_way)

    def _start(self, device: Any, group: Mapping[str, Any]) -> Row | None:
        # While a graph is recorded, our copies would become part of it.
        if capturing():
            return None
        if device not in self.lanes:
            self.lanes[device] = self.make_lane(device)
        lane = self.lanes[device]
        if not lane.free:
            return None
        host, event = lane.free.pop()
        for at, tensor in enumerate(group.values()):
            # Converted on the device: a copy that converts is staged through pageable memory.
            host[at].copy_(tensor.detach().to(host.dtype).reshape(()), non_blocking=True)
        event.record(lane.stream())
        row = Row(tuple(group), host, event)
        lane.under_way.append(row)
        return row


def cuda_lane(device: Any) -> Lane:
    """Rows for a CUDA, ROCm or XPU device."""
    torch = sys.modules["torch"]
    kind = getattr(torch, device.type)
    host = torch.empty(ROWS, WIDTH, dtype=torch.float64, device="cpu", pin_memory=True)
    free = [(host[row], kind.Event()) for row in range(ROWS)]
    return Lane(lambda: kind.current_stream(device), free)


def _rows_of(by_device: Mapping[Any, Mapping[str, Any]]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each device's scalars, as many at a time as a row takes."""
    for device, group in by_device.items():
        items = iter(group.items())
        while part := dict(islice(items, WIDTH)):
            yield device, part


def capturing() -> bool:
    """Whether a CUDA graph is being recorded: whatever is computed now becomes a part of it."""
    cuda = sys.modules.get("torch.cuda")
    return bool(cuda and cuda.is_initialized() and cuda.is_current_stream_capturing())
