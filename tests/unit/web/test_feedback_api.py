"""Requests that store what a person thinks of a case, of a run that is over."""

import json
from contextlib import closing

import pytest
from support.notifications import make_notification

from sentinel.store.cases import store_case
from sentinel.store.database import connect
from sentinel.store.run_reader import RunReader
from sentinel.web.responses import RequestError
from sentinel.web.run_routes import RunView

CASE = make_notification()
NAME = CASE.incident.name
RUN = CASE.incident.key.run


@pytest.fixture
def view(tmp_path):
    path = tmp_path / "sentinel.db"
    with closing(connect(path)) as connection:
        store_case(connection, CASE)
    state = {"run": RUN, "state": "running", "is_live": True, "cases": [{"name": NAME}]}
    state["cases"][0] |= {"severity": "critical", "onset_step": 1, "subject": "x"}
    return RunView(RUN, RunReader(path), lambda: state, path)


def store(view, user="", **request):
    return view.store_feedback(json.dumps(request).encode(), user, "127.0.0.1")


def test_feedback_is_stored_and_shown_at_once(view):
    assert "feedback" not in view.read_state()["cases"][0]
    answer = store(view, case=NAME, mark="false", comment="a test", author="bo", user="ana")

    assert answer["case"] == NAME
    assert (answer["feedback"]["mark"], answer["feedback"]["author"]) == ("false", "ana")
    assert view.read_state()["cases"][0]["feedback"] == answer["feedback"]
    assert view.reader.cases()[0]["feedback"] == answer["feedback"]


@pytest.mark.parametrize(
    ("request_", "status", "text"),
    [
        ({"case": NAME, "mark": "bad"}, 400, "false or useful"),
        ({"case": NAME}, 400, "false or useful"),
        ({"case": "kl_blowp#1", "mark": "false"}, 404, "Did you mean 'kl_blowup#1'"),
        ({"case": NAME, "mark": "false", "comment": "x" * 501}, 400, "500"),
        ({"case": NAME, "marks": "false"}, 400, 'Did you mean "mark"'),
    ],
)
def test_another_request_is_refused(view, request_, status, text):
    with pytest.raises(RequestError, match=text) as caught:
        store(view, **request_)
    assert caught.value.status == status
    assert view.reader.cases()[0]["feedback"] is None
