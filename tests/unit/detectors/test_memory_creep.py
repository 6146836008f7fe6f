"""Tests of the detector memory_creep."""

from math import exp

import pytest

from sentinel.detectors.memory_creep import MemoryCreep
from sentinel.model.finding import Clear, Severity
from sentinel.model.record import Event
from sentinel.testing import event, first_finding, update_detector

GIB = 2.0**30


def heartbeats(used, seconds, device="host", every=10.0):
    """A heartbeat every ten seconds; `used` maps the time to the GiB used of 100."""
    for index in range(int(seconds / every)):
        values = {f"{device}_memory_used": used(index * every) * GIB}
        values[f"{device}_memory_total"] = 100 * GIB
        yield event(Event.HEARTBEAT, index, time=index * every, **values)


def test_a_leak_is_found_in_time():
    """Half full, and full after two hours."""
    record, finding = first_finding(MemoryCreep(), heartbeats(lambda t: 50 + t / 144, 7200))

    assert record.time < 6000
    assert finding.severity is None
    assert finding.evidence["seconds_until_full"] == pytest.approx(7200 - record.time, rel=0.05)
    assert "growing by 25 GiB per hour" in finding.summary


def test_a_gpu_leak_is_info():
    _, finding = first_finding(MemoryCreep(), heartbeats(lambda t: 50 + t / 144, 7200, "gpu"))

    assert finding.severity is Severity.INFO


@pytest.mark.parametrize(
    "used",
    [
        lambda _: 97.0,
        lambda t: min(85.0, t / 40),
        lambda t: 95 * (1 - exp(-t / 1000)),
        lambda t: 70 + 20 * (t % 1200) / 1200,
    ],
    ids=["nearly full", "a dataset read", "a cache that levels off", "garbage collected"],
)
def test_growth_that_ends_is_clear(used):
    assert {
        update_detector(MemoryCreep(), heartbeat) for heartbeat in heartbeats(used, 20_000)
    } == {Clear()}


def test_a_new_start_resets_the_trend():
    detector = MemoryCreep()
    for heartbeat in heartbeats(lambda t: 50 + t / 144, 6000):
        update_detector(detector, heartbeat)
    update_detector(detector, event(Event.START, 0))

    heartbeat = event(
        Event.HEARTBEAT, 1, time=6000.0, host_memory_used=95.0, host_memory_total=100.0
    )
    assert update_detector(detector, heartbeat) == Clear()


def test_no_output_without_measurements():
    assert update_detector(MemoryCreep(), event(Event.HEARTBEAT, 1, host_cpu=0.5)) is None


@pytest.mark.parametrize(("device", "severity"), [("host", None), ("gpu", Severity.INFO)])
def test_memory_that_is_full_without_a_leak_is_found(device, severity):
    record, finding = first_finding(MemoryCreep(), heartbeats(lambda _: 99.0, 600, device))

    assert record.time <= 60
    assert finding.severity is severity
    assert "nearly exhausted: 99 of 100 GiB are used" in finding.summary
