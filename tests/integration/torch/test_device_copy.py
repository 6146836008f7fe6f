"""Stash: device scalars arrive when the device says so, and nobody ever waits for them.

The rows here are host memory and the events are pretended, so that the rules are tested where
there is no device. That copies and events of a real device do not wait is not shown by this.
"""

from dataclasses import dataclass, field

import pytest
import torch

from sentinel.client.capture.device_copy import ROWS, WIDTH, Lane, Stash
from sentinel.client.guard import Guard
from sentinel.client.recorder import Recorder
from sentinel.model.record import Event as Kind
from sentinel.transport.identity import Identity
from sentinel.transport.record_codec import Moment, Unpacker
from sentinel.transport.ring import DROP_REASONS, Cursor, RingReader, RingWriter

NOW = Moment(5, 1, 2.0)


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
        host = torch.empty(ROWS, WIDTH, dtype=torch.float64)
        self.events = [Event() for _ in range(ROWS)]
        return Lane(lambda: device, list(zip(host, self.events, strict=True)))

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
    return Stash(lambda reason, count: drops.append((reason, count)), device.lane)


def test_nothing_arrives_before_its_event(stash, device):
    stash.put({"loss": torch.tensor(0.5)}, NOW)
    assert list(stash.harvest()) == []

    device.done()
    assert list(stash.harvest()) == [(Kind.STEP, NOW, ("loss",), [0.5])]
    assert list(stash.harvest()) == []


def test_nothing_arrives_before_its_step_number_is_settled(stash, device):
    (row,) = stash.put({"loss": torch.tensor(0.5)})
    device.done()
    assert list(stash.harvest()) == []

    row.moment = NOW
    assert len(list(stash.harvest())) == 1


def test_what_is_stashed_does_not_change_with_the_trainers_tensor(stash, device):
    loss = torch.tensor(0.5)
    stash.put({"loss": loss}, NOW)
    loss.mul_(100)
    device.done()

    assert list(stash.harvest()) == [(Kind.STEP, NOW, ("loss",), [0.5])]


def test_values_of_every_kind_arrive(stash, device):
    tensors = {
        "half": torch.tensor(0.5, dtype=torch.bfloat16),
        "one": torch.tensor([2.0]),
        "graph": torch.tensor(3.0, requires_grad=True) * 1,
        "whole": torch.tensor(4),
    }
    stash.put(tensors, NOW)
    device.done()

    ((_, _, names, values),) = stash.harvest()
    assert dict(zip(names, values, strict=True)) == {"half": 0.5, "one": 2, "graph": 3, "whole": 4}


def test_a_full_stash_drops_and_counts_and_recovers(stash, device, drops):
    for _ in range(ROWS + 3):
        stash.put({"a": torch.tensor(1.0), "b": torch.tensor(2.0)}, NOW)
    assert drops == [("pending", 2)] * 3
    assert stash.waiting() == 2 * ROWS

    device.done()
    assert len(list(stash.harvest())) == ROWS
    stash.put({"a": torch.tensor(1.0)}, NOW)
    assert len(drops) == 3


def test_more_scalars_than_a_row_holds_take_another(stash, drops, device):
    given = {f"x{n}": float(n) for n in range(WIDTH + 1)}
    stash.put({name: torch.tensor(value) for name, value in given.items()}, NOW)
    device.done()

    rows = list(stash.harvest())
    assert [(moment, len(names)) for _, moment, names, _ in rows] == [(NOW, WIDTH), (NOW, 1)]
    assert {
        n: v for _, _, names, values in rows for n, v in zip(names, values, strict=True)
    } == given
    assert not drops


def test_nothing_is_touched_while_a_graph_is_recorded(stash, monkeypatch, drops):
    monkeypatch.setattr("sentinel.client.capture.device_copy.capturing", lambda: True)
    stash.put({"loss": torch.tensor(0.5)}, NOW)

    assert stash.lanes == {}
    assert drops == [("pending", 1)]


def test_nothing_is_allocated_after_the_first_use(stash, device):
    for _ in range(3 * ROWS):
        stash.put({"loss": torch.tensor(0.5)}, NOW)
        device.done()
        list(stash.harvest())

    assert len(stash.lanes) == 1
    assert sum(len(event.recorded) for event in device.events) == 3 * ROWS


def test_late_values_carry_the_number_of_their_own_step(tmp_path, device):
    """The log leaves at once; what was on the device follows under the same step and beat."""
    ring = RingWriter(tmp_path / "0-0.ring", Identity("run"), 1 << 20)
    recorder = Recorder(ring, Guard(ring.fail), lambda: None)
    recorder.stash.make_lane = device.lane
    recorder.stepped({"learning_rate": 0.1}, {"loss": torch.tensor(0.5)})
    recorder.log({"kl": 0.25}, step=70)
    recorder.stepped({"learning_rate": 0.1}, {"loss": torch.tensor(0.75)})
    device.done()
    recorder.log({"kl": 0.5}, step=71)
    recorder.stepped({}, {"loss": torch.tensor(9.0)})
    recorder.close({})

    reader, unpacker = RingReader(ring.path), Unpacker("run", 0, 0)
    records = [r for r in map(unpacker.unpack, reader.read(Cursor()).payloads) if r is not None]
    losses = [(r.step, r.beat, r.values["loss"]) for r in records if "loss" in r.values]
    assert losses == [(70, 1, 0.5), (71, 2, 0.75)]
    assert dict(zip(DROP_REASONS, reader.header().drops, strict=True))["pending"] == 1
