"""Tests of the cause memory_runs_out."""

from __future__ import annotations

from support.diagnoses import diagnose, diagnose_run, make_context

from sentinel.causes.memory_runs_out import MemoryRunsOut
from sentinel.model.record import Event
from sentinel.testing import event

GIB = 2.0**30
METADATA = {"framework": "transformers"}


def records(used, seconds=6900):
    """Steps of ten seconds, each with a heartbeat; `used` maps the time to GiB used of 100."""
    for step in range(1, seconds // 10 + 1):
        time = 10.0 * step
        memory = {"host_memory_used": used(time) * GIB, "host_memory_total": 100 * GIB}
        yield event(Event.STEP, step, time=time, step_time=10.0)
        yield event(Event.HEARTBEAT, step, time=time, **memory)


def test_a_leak_is_diagnosed_with_the_time_left():
    replay = diagnose_run(records(lambda time: 50 + time / 144), METADATA)

    assert replay.causes == ["memory_runs_out"]
    assert len(replay.notifications) == 1
    (case,) = replay.cases.values()
    left = case.incident.finding.evidence["seconds_until_full"]
    assert f"within {left / 60:.0f} min" in case.diagnosis.remedy
    assert "`save_steps`" in case.diagnosis.remedy


def test_a_cache_that_levels_off_is_no_case():
    assert diagnose_run(records(lambda time: min(85.0, time / 40)), METADATA).causes == []


def test_a_slower_run_alone_has_no_cause():
    assert diagnose(make_context(throughput_drop=100), {"it": MemoryRunsOut()}) is None
