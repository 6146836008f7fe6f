"""Tests of the detector gpu_underuse."""

from sentinel.detectors.gpu_underuse import GpuUnderuse
from sentinel.model.finding import Clear, Severity
from sentinel.model.record import Event
from sentinel.testing import event, first_finding, update_detector


def heartbeats(share, minutes, *, ranks=4.0, idle=0.0, begins=0.0, cpu=0.3):
    for index in range(minutes * 12):
        time = begins + index * 5.0
        yield event(
            Event.HEARTBEAT, index, time=time,
            gpu_utilisation=share(time), gpu_ranks=ranks, idle_seconds=idle, host_cpu=cpu,
        )  # fmt: skip


def test_gpus_idle_for_half_an_hour_are_info():
    record, finding = first_finding(GpuUnderuse(), heartbeats(lambda _: 0.2, 60))

    assert 1800 <= record.time <= 1900
    assert finding.severity is None
    assert finding.summary == "The GPUs were busy for 20% of the last 30 minutes."


def test_busy_gpus_and_single_evaluations_are_clear():
    busy = lambda t: 0.05 if t % 600 < 120 else 0.95  # noqa: E731
    outputs = [
        update_detector(detector, r) for detector in [GpuUnderuse()] for r in heartbeats(busy, 90)
    ]

    assert set(outputs[400:]) == {Clear()}


def test_gpus_of_other_jobs_are_not_evaluated():
    assert first_finding(GpuUnderuse(), heartbeats(lambda _: 0.0, 90, ranks=0.0)) == (None, None)


def test_a_stalled_run_is_not_evaluated():
    assert first_finding(GpuUnderuse(), heartbeats(lambda _: 0.0, 90, idle=600.0)) == (None, None)


def test_a_gap_resets_the_window():
    detector = GpuUnderuse()
    for record in heartbeats(lambda _: 0.1, 29):
        update_detector(detector, record)

    assert first_finding(detector, heartbeats(lambda _: 0.1, 20, begins=9000.0)) == (None, None)


def test_gpus_that_wait_for_busy_processors_are_a_warning():
    _, finding = first_finding(GpuUnderuse(), heartbeats(lambda _: 0.2, 60, cpu=0.97))

    assert finding.severity is Severity.WARNING
    assert finding.summary.endswith("30 minutes, and the CPUs of the hosts for 97%.")
    assert "more processors per GPU" in finding.remedy
