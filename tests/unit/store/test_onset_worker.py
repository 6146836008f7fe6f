"""Dating: beside the loop, from the history, once; and nothing waits for it."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace

import pytest
from support.rank_processes import until
from support.results import NOW, incident, measured, said

from sentinel.model.finding import Severity
from sentinel.model.incident import Onset
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import Event
from sentinel.pipeline.onset import RecentSignals, estimate_incident_onset
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.store.onset_worker import OnsetWorker, load_onsets

PATIENCE = 60.0
SICK = replace(incident(), onset_step=122, opened_step=140, opened_time=NOW + 140)
VALUES = [0.1 + 0.01 * (at * 7 % 5) for at in range(120)] + [
    1.0 + 0.01 * (at % 3) for at in range(60)
]


@pytest.fixture
def path(tmp_path):
    """A history in which KL jumps at step 120; checkpoints every 50 steps."""
    path = tmp_path / "sentinel.db"
    with closing(connect(path)) as connection:
        history = History(connection)
        for step, value in enumerate(VALUES):
            history.update(measured(step, kl_ref=value, loss=float("nan")))
            if step % 50 == 49:
                history.update(said(Event.SAVE, step))
    return path


@pytest.fixture
def dating(path):
    found = {}
    dating = OnsetWorker(path, estimate_incident_onset, found.__setitem__)
    dating.found = found
    yield dating
    dating.stop(PATIENCE)


def opened(of=SICK, reason=NotificationReason.OPENED):
    return replace(measured(140), pages=(Notification(reason, of, 140, NOW),))


def store(path, of=SICK):
    with closing(connect(path)) as connection:
        History(connection).update(opened(of))


def test_it_is_dated_from_the_history_and_kept_there(path, dating):
    store(path)
    dating.update(opened())
    until(lambda: dating.found, PATIENCE, "it is dated")

    assert dating.found[SICK.name].step == 120
    assert dating.found[SICK.name].last_good_step == 99
    with closing(connect(path)) as connection:
        assert load_onsets(connection) == dating.found
        (shown,) = History(connection).incidents()
    assert shown["onset"]["step"] == 120


def test_what_happens_after_it_opened_changes_nothing(path, dating):
    """So live, however late the thread gets to it, equals replay."""
    past = RecentSignals({"kl_ref"})
    for step, value in enumerate(VALUES[:141]):
        past.update(measured(step, kl_ref=value).record)
        if step % 50 == 49:
            past.update(said(Event.SAVE, step).record)
    store(path)
    dating.update(opened())
    until(lambda: dating.found, PATIENCE, "it is dated")

    assert dating.found[SICK.name] == past.estimate_onset(SICK)


def test_it_waits_for_the_transaction_that_stores_the_incident(path, dating):
    dating.update(opened())
    with closing(connect(path)) as connection:
        connection.execute("begin")
        History(connection).update(opened())
        assert not dating.found
        connection.execute("commit")
    until(lambda: dating.found, PATIENCE, "it is dated")


def test_the_next_agent_dates_what_the_last_one_did_not_come_to(path, dating):
    store(path)
    dating.restore([SICK])
    until(lambda: dating.found, PATIENCE, "it is dated")

    known = {}
    again = OnsetWorker(path, lambda *_: pytest.fail("it was dated before"), known.__setitem__)
    again.restore([SICK])
    assert known == dating.found


def test_what_is_only_noted_costs_nothing(dating):
    # One of an agent that another test has just ended may still be at its last incident.
    before = threading.enumerate()
    dating.update(opened(replace(SICK, severity=Severity.INFO)))
    dating.update(opened(reason=NotificationReason.RESOLVED))

    begun = [each for each in threading.enumerate() if each not in before]
    assert not [thread for thread in begun if thread.name == "dating"]


@pytest.mark.quiet
def test_one_that_cannot_be_dated_does_not_keep_the_next_from_it(path):
    other = replace(SICK, key=replace(SICK.key, detector="loss_plateau"))
    found = {}

    def fails_once(which, *_):
        if which.key.detector == "kl_blowup":
            raise ValueError
        return Onset(1, 1, 1)

    dating = OnsetWorker(path, fails_once, found.__setitem__)
    for each in (SICK, other):
        store(path, each)
        dating.update(opened(each))
    until(lambda: found, PATIENCE, "the other is dated")
    dating.stop(PATIENCE)

    assert found == {other.name: Onset(1, 1, 1)}
