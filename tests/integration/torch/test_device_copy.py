"""Device scalars are read after their event has completed, and never waited for.

The rows are host memory and the events are simulated, so the tests need no device. They do not show
that copies and events of a real device do not wait.
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
    """Completes when `passed` is set."""

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

    def queue(self, device):
        host = torch.empty(ROWS_PER_DEVICE, SCALARS_PER_ROW, dtype=torch.float64)
        self.events = [Event() for _ in range(ROWS_PER_DEVICE)]
        return DeviceQueue(lambda: device, list(zip(host, self.events, strict=True)))

    def complete_all(self):
        for event in self.events:
            event.passed = True


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def drops():
    return []


@pytest.fixture
def copies(device, drops):
    return DeviceCopies(lambda reason, count: drops.append((reason, count)), device.queue)


@pytest.mark.fault("I2")
def test_nothing_arrives_before_its_event(copies, device):
    copies.start_copies({"loss": torch.tensor(0.5)}, NOW)
    assert list(copies.pop_arrived()) == []

    device.complete_all()
    assert list(copies.pop_arrived()) == [(Kind.STEP, NOW, ("loss",), [0.5])]
    assert list(copies.pop_arrived()) == []


def test_nothing_arrives_before_its_step_number_is_known(copies, device):
    (row,) = copies.start_copies({"loss": torch.tensor(0.5)})
    device.complete_all()
    assert list(copies.pop_arrived()) == []

    row.stamp = NOW
    assert len(list(copies.pop_arrived())) == 1


def test_a_copied_value_does_not_change_with_the_tensor_of_the_trainer(copies, device):
    loss = torch.tensor(0.5)
    copies.start_copies({"loss": loss}, NOW)
    loss.mul_(100)
    device.complete_all()

    assert list(copies.pop_arrived()) == [(Kind.STEP, NOW, ("loss",), [0.5])]


def test_values_of_every_kind_arrive(copies, device):
    tensors = {
        "half": torch.tensor(0.5, dtype=torch.bfloat16),
        "one": torch.tensor([2.0]),
        "graph": torch.tensor(3.0, requires_grad=True) * 1,
        "integer": torch.tensor(4),
    }
    copies.start_copies(tensors, NOW)
    device.complete_all()

    ((_, _, names, values),) = copies.pop_arrived()
    assert dict(zip(names, values, strict=True)) == {
        "half": 0.5,
        "one": 2,
        "graph": 3,
        "integer": 4,
    }


def test_full_copies_drop_count_and_recover(copies, device, drops):
    for _ in range(ROWS_PER_DEVICE + 3):
        copies.start_copies({"a": torch.tensor(1.0), "b": torch.tensor(2.0)}, NOW)
    assert drops == [("pending", 2)] * 3
    assert copies.pending_count() == 2 * ROWS_PER_DEVICE

    device.complete_all()
    assert len(list(copies.pop_arrived())) == ROWS_PER_DEVICE
    copies.start_copies({"a": torch.tensor(1.0)}, NOW)
    assert len(drops) == 3


def test_more_scalars_than_a_row_holds_use_another_row(copies, drops, device):
    given = {f"x{n}": float(n) for n in range(SCALARS_PER_ROW + 1)}
    copies.start_copies({name: torch.tensor(value) for name, value in given.items()}, NOW)
    device.complete_all()

    rows = list(copies.pop_arrived())
    assert [(stamp, len(names)) for _, stamp, names, _ in rows] == [
        (NOW, SCALARS_PER_ROW),
        (NOW, 1),
    ]
    assert {
        n: v for _, _, names, values in rows for n, v in zip(names, values, strict=True)
    } == given
    assert not drops


@pytest.mark.fault("T10")
def test_nothing_is_copied_while_a_graph_is_captured(copies, monkeypatch, drops):
    monkeypatch.setattr("sentinel.client.capture.device_copy.is_capturing_graph", lambda: True)
    copies.start_copies({"loss": torch.tensor(0.5)}, NOW)

    assert copies.queues == {}
    assert drops == [("pending", 1)]


def test_nothing_is_allocated_after_the_first_use(copies, device):
    for _ in range(3 * ROWS_PER_DEVICE):
        copies.start_copies({"loss": torch.tensor(0.5)}, NOW)
        device.complete_all()
        list(copies.pop_arrived())

    assert len(copies.queues) == 1
    assert sum(len(event.recorded) for event in device.events) == 3 * ROWS_PER_DEVICE


def test_late_values_carry_the_number_of_their_own_step(tmp_path, device):
    """The log is written at once; device values follow under the same step and step index."""
    ring = RingWriter(tmp_path / "0-0.ring", Identity("run"), 1 << 20)
    recorder = Recorder(ring, ErrorGuard(ring.count_error), lambda: None)
    recorder.device_copies.make_queue = device.queue
    recorder.record_step({"learning_rate": 0.1}, {"loss": torch.tensor(0.5)})
    recorder.log({"kl": 0.25}, step=70)
    recorder.record_step({"learning_rate": 0.1}, {"loss": torch.tensor(0.75)})
    device.complete_all()
    recorder.log({"kl": 0.5}, step=71)
    recorder.record_step({}, {"loss": torch.tensor(9.0)})
    recorder.close({})

    reader, decoder = RingReader(ring.path), RecordDecoder("run", 0, 0)
    records = [r for r in map(decoder.decode, reader.read(RingCursor()).payloads) if r is not None]
    losses = [(r.step, r.step_index, r.values["loss"]) for r in records if "loss" in r.values]
    assert losses == [(70, 1, 0.5), (71, 2, 0.75)]
    assert dict(zip(DROP_REASONS, reader.read_header().drop_counts, strict=True))["pending"] == 1
