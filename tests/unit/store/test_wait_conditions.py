"""Tests of the conditions for which a process waits."""

import pytest

from sentinel.store.wait_conditions import Outcome, WaitEnd, check_conditions, find_end


def verdict(status="healthy", step=40, case=None):
    return {"status": status, "step": step, "case": case}


@pytest.mark.parametrize(
    ("conditions", "of", "end"),
    [
        (["unhealthy"], verdict(), None),
        (["unhealthy"], verdict("unknown", step=None), None),
        (["unhealthy"], verdict("warning"), (Outcome.REACHED, "unhealthy")),
        (["unhealthy"], verdict("ended_well"), (Outcome.ENDED, "")),
        (["finished"], verdict("critical"), None),
        (["finished"], verdict("ended_well"), (Outcome.REACHED, "finished")),
        (["finished"], verdict("ended_badly"), (Outcome.UNHEALTHY, "finished")),
        (["finished", "unhealthy"], verdict("critical"), (Outcome.UNHEALTHY, "unhealthy")),
        (["unhealthy", "unhealthy"], verdict("critical"), (Outcome.REACHED, "unhealthy")),
        (["case-resolved"], verdict("critical", case="r/x#1"), None),
        (["case-resolved"], verdict("ended_badly", case="r/x#1"), (Outcome.ENDED, "")),
        (["case-resolved"], verdict(), (Outcome.REACHED, "case-resolved")),
        (["step=41"], verdict(), None),
        (["step=40"], verdict(), (Outcome.REACHED, "step=40")),
        (["step=1"], verdict("critical", case="r/x#1"), (Outcome.REACHED, "step=1")),
        (["step=41"], verdict("ended_well"), (Outcome.ENDED, "")),
        (["step=41"], verdict("unknown", step=None), None),
    ],
)
def test_a_wait_ends_with_the_first_condition_that_holds(conditions, of, end):
    assert find_end(conditions, of) == (None if end is None else WaitEnd(*end))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("finshed", "Did you mean 'finished'?"),
        ("step", "Did you mean 'step=N'?"),
        ("step=", "Valid: unhealthy, finished, case-resolved, step=N."),
        ("step=-1", "step=N"),
        ("step=" + "9" * 19, "step=N"),
        ("step=²", "step=N"),
        ("", "step=N"),
        ("a\x1b[2J\n" * 1000, "step=N"),
    ],
)
def test_another_condition_is_refused_and_the_nearest_named(text, hint):
    with pytest.raises(ValueError, match="is no condition") as caught:
        check_conditions([text])
    assert hint in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


def test_the_number_of_conditions_is_bounded():
    for conditions in ([], ["finished"] * 9):
        with pytest.raises(ValueError, match="1 to 8"):
            check_conditions(conditions)
    check_conditions(["finished", "unhealthy", "case-resolved", "step=0"])
