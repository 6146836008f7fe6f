"""Tests of the line on how far a run came."""

from sentinel.report.run_report import results_text

RESULTS = [
    {"signal": "loss", "label": "Loss", "better": "lower", "first": 4.0, "last": 1.25},
    {"signal": "kl_ref", "label": "KL", "better": "", "first": 0.0, "last": 1.0},
]
STATE = {"run": "r", "state": "finished", "step": 1200, "started": 100.0, "ended": 7300.0}


def test_it_names_the_last_step_the_time_and_the_main_metrics():
    text = "It ended at step 1,200 after 2 h. Loss from 4 to 1.25."

    assert results_text(STATE, RESULTS) == text


def test_a_run_whose_end_is_not_known_names_where_its_record_ends():
    state = {**STATE, "state": "unfinished", "ended": float("nan"), "last_step_time": 160.0}

    assert results_text(state, []) == (
        "Its end was not recorded; its last record is at step 1,200 after 1 min."
    )


def test_there_is_none_without_a_step():
    assert not results_text({"state": "starting", "step": None}, [])
