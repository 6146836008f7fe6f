"""Tests of the detectors run_died, run_failed and run_stalled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentinel.detectors.run_died import RunDied
from sentinel.detectors.run_failed import RunFailed
from sentinel.detectors.run_stalled import SINGLE_PROCESS_REMEDY, RunStalled
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.rank_stack import Frame, RankStack, serialize_stacks
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.signals.setting_names import with_setting_names


def count_ranks(ranks):
    """The number of ranks in a comma-separated list."""
    return float(len(ranks.split(","))) if ranks else 0.0


def heartbeat(time=0.0, *, running=2, idle=0.0, step=812, **attributes):
    """A heartbeat as `LiveRings` yields it; `died_ranks` and `failed_ranks` list ranks."""
    values = {
        "ranks_running": float(running),
        "ranks_gone": count_ranks(attributes.get("died_ranks", "")),
        "ranks_failed": count_ranks(attributes.get("failed_ranks", "")),
        "idle_seconds": idle,
    }
    return Record("run", WHOLE_RUN, step, time, Event.HEARTBEAT, values, attributes)


def update_steps(detector, intervals, start=0.0):
    """Update with steps at these intervals, in seconds; return the time of the last one."""
    time = start
    for i, interval in enumerate(intervals):
        time += interval
        assert detector.update(Record("run", WHOLE_RUN, i, time)) is None
    return time


def stalled_finding(**attributes):
    """The finding of a run with steps of 1 s that has been idle for 31 s."""
    detector = RunStalled()
    update_steps(detector, [1.0] * 20)
    return detector.update(heartbeat(idle=31.0, **attributes))


@pytest.mark.parametrize("detector", [RunDied(), RunFailed()], ids=["died", "failed"])
def test_a_healthy_run_is_clear(detector):
    assert isinstance(detector.update(heartbeat(state="running")), Clear)


def test_a_death_names_the_rank_and_the_last_step():
    detector = RunDied()

    assert detector.update(heartbeat(0.0, running=1, died_ranks="1", cause="died")) is None
    finding = detector.update(heartbeat(1.0, running=1, died_ranks="1", cause="died"))
    assert (
        finding.summary
        == "Rank 1 was killed at step 812 without an error message; 1 rank still runs."
    )
    assert (finding.rank, finding.evidence["last_step"]) == (1, 812)


@pytest.mark.parametrize("waits", [{"failure_origin": "undecided"}, {"elastic_restart": "yes"}])
def test_a_death_waits_while_its_origin_is_undecided(waits):
    detector, died = RunDied(), {"died_ranks": "1", "cause": "died"}

    assert detector.update(heartbeat(0.0, running=1, **died, **waits)) is None
    assert isinstance(detector.update(heartbeat(1.0, running=1, **died)), Finding)


def test_the_final_heartbeat_reports_a_death_at_once():
    died = {"died_ranks": "1", "cause": "died", "launcher": "running"}

    assert RunDied().update(heartbeat(0.0, running=1, **died)) is None
    assert isinstance(RunDied().update(heartbeat(0.0, running=1, **died, final="yes")), Finding)


@pytest.mark.fault("T6")
def test_a_clock_that_is_set_back_delays_no_death():
    detector, died = RunDied(), {"died_ranks": "1", "cause": "died"}
    found = [detector.update(heartbeat(time, running=1, **died)) for time in (3600.0, 0.0, 1.0)]

    assert isinstance(found[-1], Finding)


def test_a_death_of_all_ranks_names_all():
    finding = RunDied().update(heartbeat(running=0, died_ranks="0,1,2", cause="died"))

    assert finding.summary.startswith("Ranks 0-2 were killed at step 812")


DIED_OF = {
    "sigkill": ({"signal": "SIGKILL"}, "Rank 1 was killed by SIGKILL at step 812; "),
    "oom": (
        {"signal": "SIGKILL", "oom_kill": "yes", "memory_limit": "64 GiB"},
        "Rank 1 was killed by the out-of-memory killer (limit 64 GiB) at step 812; ",
    ),
    "crash": (
        {"signal": "SIGSEGV"},
        "Rank 1 ended by SIGSEGV (segmentation fault) at step 812; ",
    ),
    "exit": (
        {"code": "3"},
        "Rank 1 ended with exit code 3 at step 812 without an error message; ",
    ),
}


JOB_ENDS = {
    "TIMEOUT": ("reached its time limit", Severity.WARNING, "`--time`"),
    "DEADLINE": ("reached its deadline", Severity.WARNING, "`--time`"),
    "OUT_OF_MEMORY": ("ran out of memory", Severity.CRITICAL, "`--mem`"),
    "NODE_FAIL": ("lost a node", Severity.CRITICAL, "`--exclude`"),
    "PREEMPTED": ("was preempted", Severity.WARNING, "`--requeue`"),
    "CANCELLED": ("was cancelled", Severity.INFO, "`sacct"),
    "REQUEUED": ("was put back into the queue", Severity.INFO, "`squeue"),
}


@pytest.mark.parametrize("cause", ["died", "stopped"])
@pytest.mark.parametrize("state", JOB_ENDS)
def test_the_job_of_slurm_decides_the_severity_and_the_remedy(cause, state):
    text, severity, remedy = JOB_ENDS[state]
    attributes = {"died_ranks": "1", "cause": cause, "culprit_ranks": "1", "final": "yes"}
    job = {"job_id": "7", "job_state": state, "stop_requested_by": "sentinel run"}
    finding = RunDied().update(heartbeat(running=0, **attributes, **job))

    assert finding.summary.endswith(f". Slurm job 7 {text} ({state}).")
    assert (finding.severity, finding.evidence["job_state"]) == (severity, state)
    assert remedy in finding.remedy


@pytest.mark.parametrize("how", ["oom", "crash", "exit"])
def test_a_job_that_requeues_itself_after_a_crash_is_still_critical(how):
    attributes = {"died_ranks": "1", "cause": "died", "culprit_ranks": "1", **DIED_OF[how][0]}
    job = {"job_id": "7", "job_state": "REQUEUED", "final": "yes"}
    finding = RunDied().update(heartbeat(running=0, **attributes, **job))

    assert finding.severity is None
    assert "squeue" not in (finding.remedy or "")
    assert finding.summary.endswith(" Slurm job 7 was put back into the queue (REQUEUED).")


@pytest.mark.parametrize(
    ("attributes", "severity"),
    [
        ({"cause": "stopped", "stop_requested_by": "sentinel run"}, Severity.INFO),
        ({"cause": "stopped"}, Severity.WARNING),
        ({"cause": "died"}, None),
    ],
)
def test_a_job_that_ends_for_a_hidden_reason_changes_no_severity(attributes, severity):
    job = {"job_id": "7", "job_state": "COMPLETING", "final": "yes", "culprit_ranks": "1"}
    finding = RunDied().update(heartbeat(running=0, died_ranks="1", **attributes, **job))

    assert "Slurm job 7 is being ended: it was cancelled, or" in finding.summary
    assert finding.severity is severity


@pytest.mark.parametrize("cause", ["died", "stopped"])
def test_a_death_waits_for_the_answer_of_slurm(cause):
    detector, died = RunDied(), {"died_ranks": "1", "cause": cause, "culprit_ranks": "1"}
    pending = heartbeat(9.0, running=0, **died, job_state_pending="yes")

    assert detector.update(replace(pending, time=0.0)) is None
    assert detector.update(pending) is None
    assert isinstance(detector.update(heartbeat(9.1, running=0, **died)), Finding)


@pytest.mark.parametrize(("attributes", "text"), DIED_OF.values(), ids=DIED_OF)
def test_what_is_known_of_a_death_is_said(attributes, text):
    died = {"died_ranks": "1", "cause": "died", "culprit_ranks": "1", "following_ranks": "0,2,3"}
    finding = RunDied().update(heartbeat(running=0, **died, **attributes))

    assert finding.summary == f"{text}ranks 0, 2-3 failed after it."
    assert finding.rank == 1


def test_only_the_rank_that_died_first_is_named_as_the_cause():
    died = {"died_ranks": "2,3", "cause": "died", "culprit_ranks": "3", "signal": "SIGKILL"}
    finding = RunDied().update(heartbeat(running=0, following_ranks="0,1,2", **died))

    assert finding.rank == 3
    assert finding.summary == (
        "Rank 3 was killed by SIGKILL at step 812; ranks 0-2 failed after it."
    )


@pytest.mark.parametrize(
    ("requested_by", "severity"),
    [({}, Severity.WARNING), ({"stop_requested_by": "agent"}, Severity.WARNING),
     ({"stop_requested_by": "sentinel run"}, Severity.INFO)],
)  # fmt: skip
def test_an_end_by_sigterm_is_a_warning_at_most(requested_by, severity):
    detector = RunDied()
    stopped = {"died_ranks": "0,1", "culprit_ranks": "0,1", "cause": "stopped", "signal": "SIGTERM"}

    assert detector.update(heartbeat(0.0, running=0, **stopped, **requested_by)) is None
    finding = detector.update(heartbeat(2.0, running=0, **stopped, **requested_by))
    assert finding.summary == "Ranks 0-1 were ended by SIGTERM at step 812."
    assert finding.severity is severity


RAISED = {"cause": "exception", "exception": "ValueError", "failed_ranks": "1"}


@pytest.mark.parametrize(
    ("attributes", "summary"),
    [
        (RAISED, "Rank 1 raised ValueError at step 812."),
        (
            RAISED | {"message": "bad sample in shard 7", "location": "train.py:88 in step"},
            "Rank 1 raised ValueError at step 812 (train.py:88 in step): bad sample in shard 7.",
        ),
        (
            {"cause": "exit", "code": "3", "failed_ranks": "1"},
            "Rank 1 exited with code 3 at step 812.",
        ),
        (
            {"cause": "exit", "code": "137", "failed_ranks": "1"},
            "Rank 1 exited with code 137 (SIGKILL) at step 812.",
        ),
        (
            RAISED | {"culprit_ranks": "0,1", "following_ranks": "2"},
            "Ranks 0-1 raised ValueError at step 812. Rank 2 failed after it.",
        ),
    ],
    ids=["exception", "message", "exit", "signal", "followers"],
)
def test_a_failure_is_reported_with_its_error(attributes, summary):
    assert RunFailed().update(heartbeat(running=0, **attributes)).summary == summary


@pytest.mark.parametrize(("kind", "held"), [("own", 1.0), ("consequence", 3.0)])
def test_a_failure_is_held_while_another_rank_may_prove_to_be_the_cause(kind, held):
    detector = RunFailed()
    times = [0.0, held - 0.1, held]
    outputs = [detector.update(heartbeat(t, running=1, **RAISED, end_kind=kind)) for t in times]

    assert [isinstance(each, Finding) for each in outputs] == [False, False, True]


def test_a_failure_that_another_rank_caused_is_withdrawn():
    detector = RunFailed()
    assert isinstance(detector.update(heartbeat(running=0, **RAISED)), Finding)

    assert detector.update(heartbeat(running=0, died_ranks="0", cause="died")).withdraws
    assert not detector.update(heartbeat(running=0)).withdraws


def test_ranks_ended_by_the_launcher_raise_no_second_incident():
    """Only the first end is a cause: launchers end the others, peers lose the connection."""
    error_first = heartbeat(running=0, died_ranks="0", failed_ranks="1", cause="exception")
    death_first = heartbeat(running=0, died_ranks="0", failed_ranks="1", cause="died")

    assert isinstance(RunDied().update(error_first), Clear)
    assert isinstance(RunFailed().update(death_first), Clear)


def test_the_stall_limit_follows_the_runs_step_time():
    detector = RunStalled()
    update_steps(detector, [10.0] * 20)

    assert isinstance(detector.update(heartbeat(idle=49.0)), Clear)
    finding = detector.update(heartbeat(idle=51.0, straggler_ranks="1", straggler_step="811"))
    assert finding.rank == 1
    assert "rank 1 is behind" in finding.summary
    assert finding.severity is Severity.WARNING


def test_a_rank_stopped_by_a_signal_is_named():
    """Under data parallelism all ranks are at the same step, so none is named."""
    finding = stalled_finding(
        straggler_ranks="1",
        straggler_step="812",
        blocked_by="signal",
        suspended_processes="1:4242:gpu-3",
    )
    assert finding.summary == (
        "No rank has passed step 812 for 31 s (limit 30 s): rank 1 is suspended by SIGSTOP."
    )
    assert finding.severity is Severity.CRITICAL
    assert finding.remedy.startswith("Continue it: `kill -CONT 4242` on gpu-3. Then find out who")


def test_a_rank_that_hangs_after_the_others_have_ended_waits_for_nobody():
    detector = RunStalled()
    detector.update(Record("run", WHOLE_RUN, 0, 0.0, Event.START, {"world_size": 2.0}))
    update_steps(detector, [1.0] * 20)

    finding = detector.update(heartbeat(idle=31.0, running=1, straggler_ranks="1"))
    assert finding.summary.endswith("rank 1 is behind; the other rank has ended.")
    assert "wait for them" not in (finding.remedy or RunStalled.remedy)


def test_several_suspended_ranks_are_continued_on_their_nodes():
    finding = stalled_finding(
        straggler_ranks="0,1,2",
        blocked_by="signal",
        suspended_processes="0:41:gpu-3,1:42:gpu-3,2:7:gpu-4",
    )
    assert "`kill -CONT 41 42` on gpu-3, `kill -CONT 7` on gpu-4." in finding.remedy


def test_a_rank_in_a_debugger_is_continued_there():
    finding = stalled_finding(
        straggler_ranks="1",
        blocked_by="debugger",
        suspended_processes="1:4242:gpu-3",
    )
    assert "rank 1 is held by a debugger" in finding.summary
    assert finding.severity is Severity.WARNING
    assert "(4242 on gpu-3)" in finding.remedy
    assert "kill -CONT" not in finding.remedy


def test_a_rank_in_a_frozen_control_group_is_thawed():
    finding = stalled_finding(
        straggler_ranks="1",
        blocked_by="freezer",
        suspended_processes="1:4242:gpu-3",
    )
    assert "rank 1 is in a frozen control group" in finding.summary
    assert finding.severity is Severity.CRITICAL
    assert "(process 4242 on gpu-3)" in finding.remedy
    assert "kill -CONT" not in finding.remedy


def test_a_lasting_stall_becomes_critical():
    detector = RunStalled()
    update_steps(detector, [1.0] * 20)

    early, late = (
        detector.update(heartbeat(idle=idle, straggler_ranks="0,1", all_behind="yes"))
        for idle in (31.0, 121.0)
    )
    assert (early.severity, late.severity) == (Severity.WARNING, Severity.CRITICAL)
    assert late.summary == "No rank has passed step 812 for 121 s (limit 30 s)."
    assert late.rank is None


@pytest.mark.fault("R12")
def test_compilation_at_the_start_is_not_a_standstill():
    assert isinstance(RunStalled().update(heartbeat(idle=600.0)), Clear)
    assert isinstance(
        RunStalled().update(heartbeat(idle=1801.0, straggler_ranks="0", all_behind="y")), Finding
    )


@pytest.mark.fault("R12")
def test_a_recurring_pause_raises_the_limit():
    detector = RunStalled()
    update_steps(detector, ([1.0] * 49 + [20.0]) * 4)

    assert isinstance(detector.update(heartbeat(idle=99.0)), Clear)


@pytest.mark.fault("R12")
def test_no_stall_is_found_within_a_declared_phase():
    detector = RunStalled()
    update_steps(detector, [1.0] * 20)
    for edge, output in (("begin", Clear), ("end", Finding)):
        attributes = {"name": "eval", "edge": edge}
        detector.update(Record("run", WHOLE_RUN, 20, 0.0, Event.PHASE, attributes=attributes))
        assert isinstance(
            detector.update(heartbeat(idle=300.0, straggler_ranks="0", all_behind="y")), output
        )


def test_a_restart_resets_the_limit():
    """The first interval after START spans the outage and is not a step time."""
    detector = RunStalled()
    update_steps(detector, [1.0] * 20)
    detector.update(Record("run", WHOLE_RUN, 20, 30.0, Event.START))
    assert isinstance(detector.update(heartbeat(idle=600.0)), Clear)
    update_steps(detector, [1.0] * 20, start=9000.0)

    assert isinstance(
        detector.update(heartbeat(idle=31.0, straggler_ranks="0", all_behind="y")), Finding
    )


def test_no_output_after_the_run_has_ended():
    assert RunStalled().update(heartbeat(running=0, idle=1e6)) is None


STACKS = serialize_stacks([
    RankStack((0,), (Frame("_engine_run_backward", "/v/site-packages/torch/autograd/graph.py", 1),
                     Frame("train", "/me/train.py", 91))),
    RankStack((1,), (Frame("load_batch", "/me/train.py", 88),)),
])  # fmt: skip


def stalled_detector(world_size=2.0):
    detector = RunStalled()
    detector.update(Record("run", WHOLE_RUN, 0, 0.0, Event.START, {"world_size": world_size}))
    update_steps(detector, [1.0] * 20)
    return detector


def test_stacks_name_the_rank_that_the_others_wait_for():
    finding = stalled_detector().update(
        heartbeat(idle=31.0, straggler_ranks="0,1", all_behind="yes", stacks=STACKS)
    )

    assert finding.summary == (
        "No rank has passed step 812 for 31 s (limit 30 s): rank 1 is in load_batch (train.py:88); "
        "rank 0 waits in the backward pass (train.py:91)."
    )
    assert finding.rank == 1
    assert finding.evidence["stack_of_rank_1"] == "load_batch (train.py:88)"


def test_a_finding_waits_briefly_for_stacks():
    detector = stalled_detector()
    attributes = {"straggler_ranks": "0,1", "all_behind": "yes", "stacks_pending": "yes"}

    assert detector.update(heartbeat(idle=39.9, **attributes)) is None
    assert isinstance(detector.update(heartbeat(idle=40.1, **attributes)), Finding)


def inactive_heartbeat(seconds, idle, **attributes):
    record = heartbeat(idle=idle, straggler_ranks="0,1", all_behind="yes", **attributes)
    return replace(record, values={**record.values, "inactive_seconds": seconds})


def test_signs_of_life_are_no_hang():
    detector = stalled_detector()

    assert isinstance(detector.update(inactive_heartbeat(5.0, 300.0)), Clear)
    assert isinstance(detector.update(inactive_heartbeat(31.0, 300.0)), Finding)


@pytest.mark.fault("R12")
@pytest.mark.parametrize("activity", ["evaluation", "save", "load", "compiling", "computing"])
def test_a_noticed_phase_has_the_patience_of_a_declared_one(activity):
    detector = stalled_detector()

    assert isinstance(detector.update(heartbeat(idle=900.0, activity=activity)), Clear)
    assert isinstance(
        detector.update(heartbeat(idle=1801.0, activity=activity, straggler_ranks="0")), Finding
    )


@pytest.mark.fault("R5")
def test_a_busy_rank_in_a_collective_is_no_sign_of_life():
    """A collective that spins uses the CPU too."""
    detector = stalled_detector()
    busy = {"activity": "computing", "straggler_ranks": "0,1", "all_behind": "yes"}

    assert isinstance(detector.update(heartbeat(idle=31.0, **busy, stacks=STACKS)), Finding)


def test_no_phase_counts_for_a_stopped_rank():
    finding = stalled_detector().update(
        heartbeat(idle=31.0, straggler_ranks="1", blocked_by="signal", activity="evaluation")
    )

    assert finding.summary == (
        "No rank has passed step 812 for 31 s (limit 30 s): rank 1 is suspended by SIGSTOP."
    )


def test_the_remedy_of_one_process_is_a_sentence_with_the_name_of_the_setting():
    remedy = with_setting_names(SINGLE_PROCESS_REMEDY, {"framework": "transformers"})

    assert "try 0 for the number of data loader workers (`dataloader_num_workers`)." in remedy


def test_a_run_of_one_process_has_no_collective_to_look_for():
    stack = RankStack((0,), (Frame("acquire", "/me/train.py", 7),))
    finding = stalled_detector(world_size=1.0).update(
        heartbeat(
            running=1,
            idle=31.0,
            straggler_ranks="0",
            all_behind="yes",
            stacks=serialize_stacks([stack]),
        )
    )

    assert finding.summary == (
        "No step has followed step 812 for 31 s (limit 30 s): the process is in acquire "
        "(train.py:7)."
    )
    assert "collective" not in finding.remedy


UNREPORTED = "Nothing was ever received from ranks 2-3: check their nodes first."
"""Of a node that died before its agent connected."""


def test_a_hang_names_the_ranks_that_have_sent_nothing():
    attributes = {"straggler_ranks": "0,1", "all_behind": "yes"}
    finding = stalled_detector(4.0).update(
        heartbeat(idle=31.0, unreported_ranks="2-3", **attributes)
    )

    assert finding.summary.endswith(f". {UNREPORTED}")
    assert finding.evidence["ranks_without_data"] == "2-3"
    stopped = heartbeat(idle=31.0, unreported_ranks="2-3", straggler_ranks="1", blocked_by="signal")
    assert UNREPORTED not in stalled_detector(4.0).update(stopped).summary


@pytest.mark.parametrize(("kind", "is_named"), [("own", False), ("consequence", True)])
def test_a_failure_that_another_rank_caused_names_the_ranks_that_have_sent_nothing(kind, is_named):
    failed = heartbeat(running=0, **RAISED, end_kind=kind, unreported_ranks="2-3")

    assert (UNREPORTED in RunFailed().update(failed).summary) == is_named


@pytest.mark.parametrize(
    ("idle", "activity", "is_found"),
    [
        (7100.0, "", False),
        (7300.0, "", True),
        (7300.0, "computing", True),
        (7300.0, "evaluation", False),
    ],
)
def test_batches_without_a_step_are_no_sign_of_life_for_ever(idle, activity, is_found):
    detector = RunStalled()
    now = update_steps(detector, [1.0] * 20)
    record = heartbeat(now + idle, idle=idle, activity=activity)
    found = detector.update(replace(record, values={**record.values, "inactive_seconds": 0.5}))

    assert isinstance(found, Finding) == is_found
    if is_found:
        assert found.severity is Severity.WARNING
        assert "for 7300 s (limit 7200 s)" in found.summary
