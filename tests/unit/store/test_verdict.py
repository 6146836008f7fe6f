"""Tests of the verdict on a run."""

import json

import pytest

from sentinel.store.verdict import STATUSES, health, verdict_text

NOW = 1_000_000.0
STATE = {
    "run": "r",
    "state": "running",
    "is_live": True,
    "step": 1200,
    "started": NOW - 7200.0,
    "ended": None,
    "last_step_time": NOW - 12.34,
    "monitored": ["loss"],
}
DIAGNOSIS = {
    "cause": "learning_rate_too_high",
    "title": "learning rate too high",
    "confidence": 0.84,
    "confidence_text": "high (84%)",
}


def case(onset=812, severity="critical", resolved=None, subject="Learning rate too high", **fields):
    return {
        "name": f"r/kl_blowup#{onset}",
        "subject": subject,
        "severity": severity,
        "onset_step": onset,
        "opened_step": onset + 3,
        "opened_time": NOW - 600.0,
        "resolved_step": resolved,
        "resolved_time": None if resolved is None else NOW - 60.0,
        "lasted_until": None,
        "remedy": "Lower the learning rate.",
        "last_good_step": 800,
        "diagnosis": DIAGNOSIS,
        "message": {
            "subject": subject,
            "facts": ["KL rose to 9 nats"] * 5,
            "checkpoint": "step 800, /out/checkpoint-800",
        },
        **fields,
    }


def judge(*open_cases, over=(), **changes):
    state = {**STATE, "cases": list(open_cases), "incidents": [], **changes}
    return health(state, [*open_cases, *over], NOW)


@pytest.mark.parametrize(
    ("changes", "severities", "status"),
    [
        ({}, [], "healthy"),
        ({}, ["info"], "healthy"),
        ({}, ["warning"], "warning"),
        ({}, ["warning", "critical"], "critical"),
        ({"step": None}, [], "unknown"),
        ({"monitored": [], "coverage": "nothing"}, [], "unknown"),
        ({"monitored": [], "coverage": "nothing"}, ["critical"], "critical"),
        ({"state": "finished"}, [], "ended_well"),
        ({"state": "finished"}, ["warning"], "ended_well"),
        ({"state": "finished"}, ["critical"], "ended_badly"),
        ({"state": "failed"}, [], "ended_badly"),
        ({"state": "died"}, ["warning"], "ended_badly"),
        ({"state": "unfinished", "is_live": False}, [], "unknown"),
        ({"state": "unfinished", "is_live": False}, ["warning"], "warning"),
        ({"state": "unfinished", "is_live": False, "is_log": True}, [], "healthy"),
        ({"state": "unknown", "is_log": True}, [], "unknown"),
        ({"cluster": {"role": "follower"}}, [], "unknown"),
        ({"cluster": {"role": "head"}}, [], "healthy"),
    ],
)
def test_the_status_is_by_the_state_and_the_worst_problem(changes, severities, status):
    verdict = judge(*(case(severity=each) for each in severities), **changes)

    assert verdict["status"] == status
    assert status in STATUSES
    assert verdict["sentence"].endswith(".")


def test_every_verdict_has_the_same_keys_and_is_json():
    verdicts = [
        judge(),
        judge(case()),
        judge(step=None, last_step_time=float("nan"), started=float("nan")),
        health({"run": "r"}, [], NOW),
    ]

    assert len({tuple(each) for each in verdicts}) == 1
    for each in verdicts:
        assert json.loads(json.dumps(each, allow_nan=False)) == each


def test_a_problem_has_its_onset_cause_evidence_remedy_and_checkpoint():
    verdict = judge(case())

    assert verdict["sentence"] == "Learning rate too high; critical since step 812."
    assert (verdict["since_step"], verdict["since_time"]) == (812, NOW - 600.0)
    assert verdict["cause"] == {
        "name": "learning_rate_too_high",
        "title": "learning rate too high",
        "confidence": 0.84,
        "confidence_text": "high (84%)",
    }
    assert verdict["evidence"] == ["KL rose to 9 nats"] * 3
    assert verdict["remedy"] == "Lower the learning rate."
    assert verdict["last_good_checkpoint"] == {"step": 800, "path": "/out/checkpoint-800"}
    assert verdict["age_seconds"] == 12.0


def test_the_most_severe_problem_leads_and_the_others_are_listed():
    others = [case(5 + number, "warning", subject=f"Slow rank {number}") for number in range(5)]
    verdict = judge(*others, case(900, subject="Later"), case(850, subject="First"))

    assert verdict["case"] == "r/kl_blowup#850"
    assert [each["subject"] for each in verdict["others"]] == [
        "Later",
        "Slow rank 0",
        "Slow rank 1",
    ]
    assert verdict["other_count"] == 6
    assert "Further problems: Later (critical, step 900); " in verdict_text(verdict)


def test_a_healthy_run_is_so_since_its_last_problem_was_over():
    verdict = judge(over=[case(resolved=830)], last_checkpoint_step=1000, last_checkpoint_path="/c")

    assert verdict["status"] == "healthy"
    assert (verdict["since_step"], verdict["since_time"]) == (830, NOW - 60.0)
    assert [each["until_step"] for each in verdict["past"]] == [830]
    assert verdict["last_good_checkpoint"] == {"step": 1000, "path": "/c"}
    assert verdict_text(verdict) == (
        "No problem is open at step 1,200. "
        "Over: Learning rate too high (critical, steps 812 to 830)."
    )


def test_a_problem_that_lasted_to_the_end_is_one_of_the_end():
    lasted = case(resolved=1200, lasted_until="the run finished")
    verdict = judge(over=[lasted], state="finished", ended=NOW - 30.0)

    assert verdict["status"] == "ended_badly"
    assert verdict["sentence"] == (
        "Learning rate too high; critical since step 812, and the run finished at step 1,200."
    )
    assert (verdict["since_step"], verdict["since_time"]) == (812, NOW - 600.0)
    assert verdict["past_count"] == 0
    well = judge(state="finished", ended=NOW - 30.0)
    assert (well["since_step"], well["since_time"]) == (1200, NOW - 30.0)


@pytest.mark.parametrize(
    ("state", "severity", "subject"),
    [
        ("died", "warning", "Rank 0 was ended by SIGTERM"),
        ("died", "critical", "KL rose"),
        ("running", "warning", "KL rose"),
    ],
)
def test_the_end_of_a_run_that_failed_leads_among_problems_of_one_severity(
    state, severity, subject
):
    """The end is found before it closes the cases that are open."""
    of_end = case(1200, "warning", subject="Rank 0 was ended by SIGTERM", detector="run_died")
    verdict = judge(case(10, severity, subject="KL rose"), of_end, state=state)

    assert verdict["sentence"].startswith(subject)
    assert verdict["other_count"] == 1


def test_an_open_incident_of_no_case_counts():
    incident = {"name": "r/x#1", "severity": "warning", "summary": "x is high", "onset_step": 7}
    verdict = judge(incidents=[incident])

    assert verdict["sentence"] == "X is high; warning since step 7."
    assert judge(case(incidents=["r/x#1"]), incidents=[incident])["other_count"] == 0


def test_a_run_without_an_agent_says_so():
    (part,) = judge(state="unfinished", is_live=False)["not_monitored"]

    assert (part["what"], part["why"]) == ("the run since step 1,200", "no agent answers")
    assert "sentinel agent --run r" in part["remedy"]
    assert judge(state="unfinished", is_live=False, is_log=True)["not_monitored"] == []


def test_what_is_not_monitored_is_named_with_its_reason():
    verdict = judge(
        unmonitored=[{"key": f"ploss_{number}", "signal": "loss"} for number in range(5)],
        patches={"trl": {"on": [0], "off: KeyError": [1, 2]}},
        metadata={"world_size": 4.0},
        cluster={"role": "head", "nodes": [{"ranks": [0, 1, 2]}]},
    )

    assert [(each["what"], each["why"]) for each in verdict["not_monitored"]] == [
        ('key "ploss_0"', "no detector reads it"),
        ('key "ploss_1"', "no detector reads it"),
        ('key "ploss_2"', "no detector reads it"),
        ("2 further keys", "no detector reads them"),
        ("integration trl on ranks 1-2", "its patch is off: KeyError"),
        ("rank 3", "the head receives nothing from there"),
    ]


def test_text_of_the_run_is_on_one_line_visible_and_short():
    verdict = judge(case(subject="a\u2028b\u202e\n</script>" + "x" * 100_000), run="r")

    assert verdict["sentence"].startswith("A b </script>xxx")
    assert len(json.dumps(verdict)) < 3000
