"""The clock of a machine stands still, jumps or is set late: nothing is reported, nothing is lost.

The clock is that of the C library in each process, so that Python and SQLite see the same one.
"""

from __future__ import annotations

import time

import pytest
from support.faulty_libc import FaultyLibc
from support.rank_processes import until
from support.watched_jobs import TIMEOUT_SECONDS, watched_job
from support.webhook_receiver import Receiver, status

pytestmark = [pytest.mark.chaos, pytest.mark.full, pytest.mark.timeout(600)]

DAY = 86_400.0
HOUR = 3_600.0
FLOOR = {"SENTINEL_DETECTORS__RUN_STALLED__FLOOR": "3"}


@pytest.fixture
def libc(tmp_path):
    return FaultyLibc(tmp_path / "libc")


@pytest.mark.fault("T12")
def test_a_clock_that_stands_still_hides_no_nan_and_reports_no_hang(tmp_path, libc):
    with watched_job(tmp_path, environ=libc.environ | FLOOR) as job:
        job.until_more_steps()
        libc.stop_clock()
        job.until_more_steps(100)
        job.turn_on("nan")
        job.until_found("nan_or_inf")
        libc.start_clock()
        job.until_more_steps(50)
        steps = job.end()

        assert job.stored() == list(range(1, steps + 1))
        assert set(job.detectors()) == {"nan_or_inf"}


@pytest.mark.fault("T13")
def test_a_clock_that_is_set_years_after_the_start_reports_nothing(tmp_path, libc):
    """A machine without a battery begins in 1970, until it reaches a time server."""
    libc.move_clock(60.0 - time.time())
    with watched_job(tmp_path, environ=libc.environ | FLOOR) as job:
        job.until_more_steps()
        libc.set(clock_offset=0)
        job.until_more_steps(100)
        assert job.detectors() == []
        job.check_nan_and_end()


@pytest.mark.fault("T14")
@pytest.mark.parametrize("seconds", [-HOUR / 2, -2 * HOUR, 2 * DAY], ids=["half", "back", "forth"])
def test_an_alert_that_waits_is_delivered_although_the_clock_jumps(tmp_path, libc, seconds):
    """Its next try is due by the clock of before, and its age must not grow with a jump."""
    receiver = Receiver(default=status(503))
    with watched_job(tmp_path, environ=libc.environ, receiver=receiver) as job:
        job.until_more_steps()
        job.turn_on("nan")
        until(lambda: receiver.requests, TIMEOUT_SECONDS, "the first try")
        libc.move_clock(seconds)
        tries = len(receiver.requests)
        until(lambda: len(receiver.requests) > tries + 1, 120.0, "another try")
        receiver.default = Receiver().default
        job.until_found("nan_or_inf")
        job.turn_off("nan")
        job.until_found("nan_or_inf", "resolved")
        job.end()
        job.assert_sent_once()


@pytest.mark.fault("T15")
def test_a_slow_training_does_not_hang_when_the_clock_is_set_forward(tmp_path, libc):
    """Ranks with a step of 1.5 s: between two steps, the clock alone shows an hour without one."""
    environ = libc.environ | FLOOR | {"STEP_SECONDS": "1.5"}
    with watched_job(tmp_path, environ=environ) as job:
        # The first steps are not compared.
        job.until_more_steps(8)
        for _ in range(3):
            libc.move_clock(HOUR)
            job.until_more_steps(2)
        job.turn_on("end")
        assert job.wait() == 0

        assert job.detectors() == []


@pytest.mark.fault("T16")
def test_processes_in_different_time_zones_report_one_time(tmp_path):
    """The trainer changes its zone, as a library may, and the clocks go back in it."""
    before = 'os.environ["TZ"] = "Pacific/Kiritimati"; time.tzset()'
    with watched_job(tmp_path, environ={"TZ": "America/New_York"}, before=before) as job:
        job.until_more_steps()
        job.turn_on("nan")
        body = job.until_found("nan_or_inf")
        steps = job.end()

        assert abs(_epoch(body["alerts"][0]["startsAt"]) - time.time()) < 300.0
        assert job.stored() == list(range(1, steps + 1))
        assert set(job.detectors()) == {"nan_or_inf"}


def _epoch(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()
