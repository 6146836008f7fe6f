"""Tests of the cause disk_runs_out."""

from __future__ import annotations

from support.diagnoses import diagnose, diagnose_run, make_context

from sentinel.causes.disk_runs_out import DiskRunsOut
from sentinel.causes.step_counted_twice import StepCountedTwice
from sentinel.model.record import Event
from sentinel.testing import event

GIB = 2.0**30
TRL = {"framework": "trl", "algorithm": "sft", "save_steps": 50.0}
BOTH = {"disk_runs_out": DiskRunsOut(), "step_counted_twice": StepCountedTwice()}


def saving(kept, every=50, saves=12, initial_free=115.0):
    """Steps of 10 s with a save of 10 GiB every `every` steps; the disk holds eleven saves."""
    for step in range(1, every * saves + 1):
        free = (initial_free - 10 * min(kept, step // every)) * GIB
        yield event(Event.STEP, step, time=10.0 * step)
        disk = {"disk_free": free, "disk_free_output": free}
        yield event(Event.HEARTBEAT, step, time=10.0 * step, **disk)
        if step % every == 0:
            yield event(Event.SAVE, step, time=10.0 * step)


def test_a_disk_filled_by_saves_is_diagnosed_before_it_is_full():
    replay = diagnose_run(saving(kept=99), TRL)

    assert replay.causes == ["disk_runs_out"]
    assert replay.notifications[0].step < 575
    (case,) = replay.cases.values()
    assert "every 50 steps" in case.diagnosis.evidence[-1].text
    assert "`save_total_limit`" in case.diagnosis.remedy


def test_saves_whose_oldest_are_removed_are_no_case():
    assert diagnose_run(saving(kept=3), TRL).causes == []


def test_saves_that_are_too_frequent_are_diagnosed():
    assert diagnose_run(saving(kept=99, every=5, saves=12), TRL).causes == ["disk_runs_out"]


def test_a_step_counted_twice_takes_precedence():
    context = make_context(TRL, step_stride=1700, checkpoint_cadence=1702, disk_filling=1720)

    assert diagnose(context, BOTH).cause == "step_counted_twice"
    assert diagnose(make_context(TRL, checkpoint_cadence=1702), BOTH) is None


def test_the_remedy_checks_the_newest_save_before_it_deletes_others():
    remedy = DiskRunsOut().remedy(make_context(TRL, disk_filling=100))

    assert remedy.index("complete") < remedy.index("delete")
    assert "the last before any other incident" in remedy
