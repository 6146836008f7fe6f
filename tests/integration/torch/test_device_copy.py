"""Stash: device scalars arrive when the device says so, and nobody ever waits for them.

The rows here are host memory and the events are pretended, so that the rules are tested where
there is no device. That copies and events of a real device do not wait is not shown by this.
"""

from dataclasses import dataclass, field

import pytest
import torch

from sentinel.client.capture.device_copy import (
    ROWS_PER_DEVICE,
    SCALARS_PER_ROW,
    DeviceCopies,
    DeviceQueue,
)
from sentinel.client.guard import ErrorGuard
from sentinel.client.recorder import Recorder
from sentinel.model.record import Event as Kind
from sentinel.transport.identity import Identity
from sentinel.transport.record_codec import RecordDecoder, StepStamp
from sentinel.transport.ring import DROP_REASONS, RingCursor, RingReader, RingWriter

NOW = StepStamp(5, 1, 2.0)


@dataclass
class Event:
    """Passes when told to."""

    passed: bool = False
    recorded: list = field(default_factory=list)

    def record(self, stream):
        self.recorded.append(stream)
        self.passed = False

    def query(self):
        return self.passed


@dataclass
class Device:
    """Rows in host memory, and their events."""

    events: list = field(default_factory=list)

    def lane(self, device):
        host = torch.empty(ROWS_PER_DEVICE, SCALARS_PER_ROW, dtype=torch.float64)
        self.events = [Event() for _ in range(ROWS_PER_DEVICE)]
        return DeviceQueue(lambda: device, list(zip(host, self.events, strict=True)))

    def done(self):
        for event in self.events:
            event.passed = True


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def drops():
    return []


@pytest.fixture
def stash(device, drops):
    return DeviceCopies(lambda reason, count: drops.append((reason, count)), device.lane)


def test_nothing_arrives_before_its_event(stash, device):
    stash.start_copies({"loss": torch.tensor(0.5)}, NOW)
    assert list(stash.pop_arrived()) == []

    device.done()
    assert list(stash.pop_arrived()) == [(Kind.STEP, NOW, ("loss",), [0.5])]
    assert list(stash.pop_arrived()) == []


def test_nothing_arrives_before_its_step_number_is_settled(stash, device):
    (row,) = stash.start_copies({"loss": torch.tensor(0.5)})
    device.done()
    assert list(stash.pop_arrived()) == []

    row.stamp = NOW
    assert len(list(stash.pop_arrived())) == 1


def test_what_is_stashed_does_not_change_with_the_trainers_tensor(stash, device):
    loss = torch.tensor(0.5)
    stash.start_copies({"loss": loss}, NOW)
    loss.mul_(100)
    device.done()

    assert list(stash.pop_arrived()) == [(Kind.STEP, NOW, ("loss",), [0.5])]


def test_values_of_every_kind_arrive(stash, device):
    tensors = {
        "half": torch.tensor(0.5, dtype=torch.bfloat16),
        "one": torch.tensor([2.0]),
        "graph": torch.tensor(3.0, requires_grad=True) * 1,
        "whole": torch.tensor(4),
    }
    stash.start_copies(tensors, NOW)
    device.done()

    ((_, _, names, values),) = stash.pop_arrived()
    assert dict(zip(names, values, strict=True)) == {"half": 0.5, "one": 2, "graph": 3, "whole": 4}


def test_a_full_stash_drops_and_counts_and_recovers(stash, device, drops):
    for _ in range(ROWS_PER_DEVICE + 3):
        stash.start_copies({"a": torch.tensor(1.0), "b": torch.tensor(2.0)}, NOW)
    assert drops == [("pending", 2)] * 3
    assert stash.pending_count() == 2 * ROWS_PER_DEVICE

    device.done()
    assert len(list(stash.pop_arrived())) == ROWS_PER_DEVICE
    stash.start_copies({"a": torch.tensor(1.0)}, NOW)
    assert len(drops) == 3


def test_more_scalars_than_a_row_holds_take_another(stash, drops, device):
    given = {f"x{n}": float(n) for n in range(SCALARS_PER_ROW + 1)}
    stash.start_copies({name: torch.tensor(value) for name, value in given.items()}, NOW)
    device.done()

    rows = list(stash.pop_arrived())
    assert [(moment, len(names)) for _, moment, names, _ in rows] == [
        (NOW, SCALARS_PER_ROW),
        (NOW, 1),
    ]
    assert {
        n: v for _, _, names, values in rows for n, v in zip(names, values, strict=True)
    } == given
    assert not drops


def test_nothing_is_touched_while_a_graph_is_recorded(stash, monkeypatch, drops):
    monkeypatch.setattr("sentinel.client.capture.device_copy.is_capturing_graph", lambda: True)
    stash.start_copies({"loss": torch.tensor(0.5)}, NOW)

    assert stash.queues == {}
    assert drops == [("pending", 1)]


def test_nothing_is_allocated_after_the_first_use(stash, device):
    for _ in range(3 * ROWS_PER_DEVICE):
        stash.start_copies({"loss": torch.tensor(0.5)}, NOW)
        device.done()
        list(stash.pop_arrived())

    assert len(stash.queues) == 1
    assert sum(len(event.recorded) for event in device.events) == 3 * ROWS_PER_DEVICE


def test_late_values_carry_the_number_of_their_own_step(tmp_path, device):
    """The log leaves at once; what was on the device follows under the same step and beat."""
    ring = RingWriter(tmp_path / "0-0.ring", Identity("run"), 1 << 20)
    recorder = Recorder(ring, ErrorGuard(ring.count_error), lambda: None)
    recorder.device_copies.make_queue = device.lane
    recorder.record_step({"learning_rate": 0.1}, {"loss": torch.tensor(0.5)})
    recorder.log({"kl": 0.25}, step=70)
    recorder.record_step({"learning_rate": 0.1}, {"loss": torch.tensor(0.75)})
    device.done()
    recorder.log({"kl": 0.5}, step=71)
    recorder.record_step({}, {"loss": torch.tensor(9.0)})
    recorder.close({})

    reader, unpacker = RingReader(ring.path), RecordDecoder("run", 0, 0)
    records = [r for r in map(unpacker.decode, reader.read(RingCursor()).payloads) if r is not None]
    losses = [(r.step, r.step_index, r.values["loss"]) for r in records if "loss" in r.values]
    assert losses == [(70, 1, 0.5), (71, 2, 0.75)]
    assert dict(zip(DROP_REASONS, reader.read_header().drop_counts, strict=True))["pending"] == 1
