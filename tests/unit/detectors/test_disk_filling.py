"""Tests of the detector disk_filling."""

import pytest

from sentinel.detectors.disk_filling import DiskFilling
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.record import Event
from sentinel.testing import event, first_finding, update_detector

GIB = 2.0**30


def heartbeats(free, seconds, every=10.0, begins=0.0):
    """A heartbeat every ten seconds; `free` maps the time to the free bytes of the disk."""
    for index in range(int(seconds / every)):
        time = begins + index * every
        yield event(
            Event.HEARTBEAT, index, time=time, disk_free=free(time), disk_free_output=free(time)
        )


def test_a_steadily_filling_disk_is_found_in_time():
    """Full after two hours."""
    record, finding = first_finding(
        DiskFilling(), heartbeats(lambda t: 100 * GIB * (1 - t / 7200), 7200)
    )

    assert record.time < 4500
    assert finding.severity is None
    assert "The checkpoint disk will be full in" in finding.summary
    assert finding.evidence["seconds_until_full"] == pytest.approx(7200 - record.time, rel=0.05)


def test_an_unchanged_disk_is_clear():
    assert {
        update_detector(DiskFilling(), heartbeat)
        for heartbeat in heartbeats(lambda _: 10 * GIB, 7200)
    } == {Clear()}


def test_saves_whose_oldest_is_removed_do_not_fill_a_disk():
    free = lambda t: (100 - min(30, 10 * (t // 600)) - 10 * (t % 600 > 570)) * GIB  # noqa: E731

    assert first_finding(DiskFilling(), heartbeats(free, 20_000)) == (None, None)


def test_a_disk_filled_by_saves_is_info_while_more_saves_fit():
    """The number of kept checkpoints is known only to the trainer."""
    detector, first_free = DiskFilling(), {}
    for heartbeat in heartbeats(lambda t: (100 - 5 * (t // 200)) * GIB, 3980):
        output = update_detector(detector, heartbeat)
        if isinstance(output, Finding):
            first_free.setdefault(output.severity, heartbeat.values["disk_free"] / GIB)
        if heartbeat.time % 200 == 100:
            update_detector(detector, event(Event.SAVE, heartbeat.step))

    assert first_free[Severity.INFO] > 20
    assert first_free[None] == 5


def test_a_full_disk_is_critical():
    _, finding = first_finding(DiskFilling(), heartbeats(lambda _: 1e6, 10))

    assert finding.severity is Severity.CRITICAL


def test_a_disk_without_space_for_a_save_is_found():
    """Each save takes 10 GiB; another process takes the rest."""
    detector, free = DiskFilling(), 48.0
    for save in range(5):
        for heartbeat in heartbeats(lambda _, free=free: free * GIB, 60, begins=save * 200.0):
            output = update_detector(detector, heartbeat)
        free -= 10
        for heartbeat in heartbeats(lambda _, free=free: free * GIB, 60, begins=save * 200.0 + 60):
            output = update_detector(detector, heartbeat)
        if save < 3:
            assert output == Clear()
        update_detector(detector, event(Event.SAVE, save))
        if free < 10:
            break
    output = update_detector(
        detector, event(Event.HEARTBEAT, 9, time=1000.0, disk_free_output=free * GIB)
    )

    assert isinstance(output, Finding)
    assert output.summary == ("The checkpoint disk has 8 GiB free; a save needs 10 GiB.")


def test_the_worst_disk_is_reported():
    heartbeat = event(Event.HEARTBEAT, 1, disk_free_output=50 * GIB, disk_free_state=1e5)

    assert (
        "sentinel's state directory is almost full"
        in update_detector(DiskFilling(), heartbeat).summary
    )
