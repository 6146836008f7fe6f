"""Tests of feedback on the notification of a case."""

from contextlib import closing

import pytest
from support.notifications import make_notification

from sentinel.store.cases import all_cases, store_case
from sentinel.store.database import connect
from sentinel.store.feedback import (
    Feedback,
    UnknownCaseError,
    find_case,
    load_feedback,
    store_feedback,
)

NOW = 1_700_000_000.0
CASE = make_notification()
NAME = CASE.incident.name
RUN, _, SHORT = NAME.partition("/")


@pytest.fixture
def connection(tmp_path):
    with closing(connect(tmp_path / "sentinel.db")) as opened:
        store_case(opened, CASE)
        yield opened


def test_a_case_has_the_last_feedback(connection):
    assert all_cases(connection, NOW, pytest.fail)[0]["feedback"] is None
    store_feedback(connection, NAME, Feedback("useful", NOW, "bo", "found it"))
    store_feedback(
        connection, NAME, Feedback("false", NOW + 1, "ana", "a\x1b[2J test\n" + "x" * 999)
    )

    (case,) = all_cases(connection, NOW, pytest.fail)
    assert case["feedback"] == load_feedback(connection)[NAME].to_dict()
    assert (case["feedback"]["mark"], case["feedback"]["author"]) == ("false", "ana")
    assert case["feedback"]["comment"].startswith("a[2J test x")
    assert len(case["feedback"]["comment"]) == 500


def test_a_case_is_found_with_and_without_its_run(connection):
    assert find_case(connection, RUN, NAME) == find_case(connection, RUN, SHORT) == NAME


@pytest.mark.parametrize("name", ["kl_blowp#1", "x", "", "\x1b[2J" * 1000])
def test_an_unknown_case_names_the_nearest(connection, name):
    with pytest.raises(UnknownCaseError, match="Did you mean 'kl_blowup#1'") as caught:
        find_case(connection, RUN, name)
    assert str(caught.value).isprintable()


def test_a_run_without_a_case_says_so(tmp_path):
    with (
        closing(connect(tmp_path / "empty.db")) as connection,
        pytest.raises(UnknownCaseError, match="has no case"),
    ):
        find_case(connection, "r", "x")
