"""Tests of the detectors run_died, run_failed and run_stalled."""

from __future__ import annotations

import pytest

from sentinel.detectors.run_died import RunDied
from sentinel.detectors.run_failed import RunFailed
from sentinel.detectors.run_stalled import RunStalled
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.record import WHOLE_RUN, Event, Record


def tick(time=0.0, *, running=2, idle=0.0, step=812, **facts):
    """A tick as the live source makes it; `died_ranks` and `failed_ranks` list ranks."""
    values = {
        "ranks_running": float(running),
        "ranks_gone": float(facts.get("died_ranks", "").count(",") + ("died_ranks" in facts)),
        "ranks_failed": float(facts.get("failed_ranks", "").count(",") + ("failed_ranks" in facts)),
        "idle_seconds": idle,
    }
    return Record("run", WHOLE_RUN, step, time, Event.HEARTBEAT, values, facts)


def stepped(detector, intervals, start=0.0):
    """Steps at these intervals, in seconds; the time of the last."""
    time = start
    for i, interval in enumerate(intervals):
        time += interval
        assert detector.update(Record("run", WHOLE_RUN, i, time)) is None
    return time


@pytest.mark.parametrize("detector", [RunDied(), RunFailed()], ids=["died", "failed"])
def test_a_healthy_run_is_clear(detector):
    assert isinstance(detector.update(tick(state="running")), Clear)


def test_a_death_names_the_rank_and_the_last_step():
    detector = RunDied()

    assert detector.update(tick(0.0, running=1, died_ranks="1", cause="died")) is None
    finding = detector.update(tick(1.0, running=1, died_ranks="1", cause="died"))
    assert (
        finding.summary
        == "Rank 1 was killed at step 812 without an error message; 1 rank still runs."
    )
    assert (finding.rank, finding.evidence["last_step"]) == (1, 812)


@pytest.mark.parametrize("waits", [{"failure_origin": "undecided"}, {"elastic_restart": "yes"}])
def test_others_that_fell_with_it_show_while_it_is_open_why(waits):
    detector, died = RunDied(), {"died_ranks": "1", "cause": "died"}

    assert detector.update(tick(0.0, running=1, **died, **waits)) is None
    assert isinstance(detector.update(tick(1.0, running=1, **died)), Finding)


def test_the_final_heartbeat_reports_a_death_at_once():
    died = {"died_ranks": "1", "cause": "died", "launcher": "running"}

    assert RunDied().update(tick(0.0, running=1, **died)) is None
    assert isinstance(RunDied().update(tick(0.0, running=1, **died, final="yes")), Finding)


def test_a_clock_that_is_set_back_delays_no_death():
    detector, died = RunDied(), {"died_ranks": "1", "cause": "died"}
    found = [detector.update(tick(time, running=1, **died)) for time in (3600.0, 0.0, 1.0)]

    assert isinstance(found[-1], Finding)


def test_a_death_of_all_names_all():
    finding = RunDied().update(tick(running=0, died_ranks="0,1,2", cause="died"))

    assert finding.summary.startswith("Ranks 0, 1, 2 were killed at step 812")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"cause": "exception", "exception": "ValueError"},
            "Rank 1 raised ValueError at step 812.",
        ),
        ({"cause": "exit", "code": "3"}, "Rank 1 exited with code 3 at step 812."),
    ],
    ids=["exception", "exit"],
)
def test_a_failure_is_reported_with_its_error(facts, words):
    assert RunFailed().update(tick(running=1, failed_ranks="1", **facts)).summary == words


def test_ranks_ended_by_the_launcher_raise_no_second_incident():
    """Only the first to fall is the cause: launchers end the others, peers lose the connection."""
    error_first = tick(running=0, died_ranks="0", failed_ranks="1", cause="exception")
    death_first = tick(running=0, died_ranks="0", failed_ranks="1", cause="died")

    assert isinstance(RunDied().update(error_first), Clear)
    assert isinstance(RunFailed().update(death_first), Clear)


def test_the_stall_limit_follows_the_runs_step_time():
    detector = RunStalled()
    stepped(detector, [10.0] * 20)

    assert isinstance(detector.update(tick(idle=49.0)), Clear)
    finding = detector.update(tick(idle=51.0, straggler_ranks="1", straggler_step="811"))
    assert finding.rank == 1
    assert "Rank 1 is behind" in finding.summary
    assert finding.severity is Severity.WARNING


def test_a_rank_stopped_by_a_signal_is_named():
    """Under data parallelism all ranks are at the same step, so none is named."""
    detector = RunStalled()
    stepped(detector, [1.0] * 20)

    finding = detector.update(
        tick(idle=31.0, straggler_ranks="1", straggler_step="812", blocked_by="signal")
    )
    assert finding.summary.startswith("Rank 1 is stopped by a signal; no rank has passed step 812")


def test_a_lasting_stall_becomes_critical():
    detector = RunStalled()
    stepped(detector, [1.0] * 20)

    early, late = (
        detector.update(tick(idle=idle, straggler_ranks="0,1", all_behind="yes"))
        for idle in (31.0, 121.0)
    )
    assert (early.severity, late.severity) == (Severity.WARNING, Severity.CRITICAL)
    assert late.summary == "No rank has passed step 812 for 121 s (limit 30 s)."
    assert late.rank is None


def test_compilation_at_the_start_is_not_a_standstill():
    assert isinstance(RunStalled().update(tick(idle=600.0)), Clear)
    assert isinstance(
        RunStalled().update(tick(idle=1801.0, straggler_ranks="0", all_behind="y")), Finding
    )


def test_a_pause_that_recurs_is_learnt():
    detector = RunStalled()
    stepped(detector, ([1.0] * 49 + [20.0]) * 4)

    assert isinstance(detector.update(tick(idle=99.0)), Clear)


def test_a_declared_phase_may_take_its_time():
    detector = RunStalled()
    stepped(detector, [1.0] * 20)
    for edge, output in (("begin", Clear), ("end", Finding)):
        facts = {"name": "eval", "edge": edge}
        detector.update(Record("run", WHOLE_RUN, 20, 0.0, Event.PHASE, attributes=facts))
        assert isinstance(
            detector.update(tick(idle=300.0, straggler_ranks="0", all_behind="y")), output
        )


def test_a_restart_forgets_the_pace_of_the_start():
    """After START the first interval spans the outage and teaches nothing."""
    detector = RunStalled()
    stepped(detector, [1.0] * 20)
    detector.update(Record("run", WHOLE_RUN, 20, 30.0, Event.START))
    assert isinstance(detector.update(tick(idle=600.0)), Clear)
    stepped(detector, [1.0] * 20, start=9000.0)

    assert isinstance(
        detector.update(tick(idle=31.0, straggler_ranks="0", all_behind="y")), Finding
    )


def test_no_output_after_the_run_has_ended():
    assert RunStalled().update(tick(running=0, idle=1e6)) is None
