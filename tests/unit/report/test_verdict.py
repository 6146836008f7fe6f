"""Tests of the verdict on a run."""

from sentinel.report.verdict import judge

RESULTS = [
    {"signal": "loss", "label": "Loss", "better": "lower", "first": 4.0, "last": 1.25},
    {"signal": "kl_ref", "label": "KL", "better": "", "first": 0.0, "last": 1.0},
]
STATE = {"run": "r", "state": "finished", "step": 1200, "started": 100.0, "ended": 7300.0}


def case(onset=812, severity="critical", resolved=None, subject="Learning rate too high", **fields):
    return {
        "name": "r/kl_blowup#1",
        "subject": subject,
        "severity": severity,
        "onset_step": onset,
        "opened_step": onset + 3,
        "resolved_step": resolved,
        "remedy": "Lower the learning rate.",
        "last_good_step": 800,
        "message": {"subject": subject, "facts": ["KL rose to 9 nats"], "checkpoint": ""},
        **fields,
    }


def test_a_healthy_run_says_how_far_it_came():
    verdict = judge(STATE, [], RESULTS)

    assert verdict.health == "ok"
    assert verdict.text == (
        "No incident was found. It ended at step 1,200 after 2 h. Loss from 4 to 1.25."
    )


def test_a_sick_run_says_what_when_why_and_what_to_do():
    text = judge(STATE, [case()], RESULTS).text

    assert text.startswith(
        "Critical: Learning rate too high. It began at step 812 and was found at step 815, and is "
        "open. Evidence: KL rose to 9 nats. What to do: Lower the learning rate. "
        "Last good checkpoint: step 800."
    )


def test_the_most_severe_case_leads_and_others_are_named():
    cases = [
        case(5, "warning", subject="Slow rank"),
        case(900, subject="Later"),
        case(850, subject="First"),
    ]
    verdict = judge(STATE, cases, [])

    assert verdict.what == "Critical: First."
    assert verdict.others == (
        "2 further cases: Later (critical, step 900); Slow rank (warning, step 5)."
    )


def test_a_case_that_is_over_says_until_when():
    assert "and lasted until step 830." in judge(STATE, [case(resolved=830)], []).when


def test_a_run_without_a_step_is_not_called_healthy():
    verdict = judge({"run": "r", "state": "starting", "step": None}, [], [])

    assert (verdict.health, verdict.text) == ("unknown", "Sentinel has no record of a step.")


def test_what_is_not_monitored_is_part_of_the_verdict():
    state = {**STATE, "coverage": 'no detector reads "my/loss"'}

    assert judge(state, [], []).text.endswith('No detector reads "my/loss".')


def test_text_of_the_run_is_on_one_line_and_visible():
    verdict = judge(STATE, [case(subject="a\u2028b\u202e\n</script>")], [])

    assert verdict.what == "Critical: a b </script>."


def test_a_run_whose_end_is_not_known_says_where_its_record_ends():
    state = {**STATE, "state": "unfinished", "ended": float("nan"), "last_step_time": 160.0}

    assert judge(state, [], []).run == (
        "Its end was not recorded; its last record is at step 1,200 after 1 min."
    )
