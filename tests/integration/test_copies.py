"""Callbacks and decorated functions that are pickled or copied, as by Ray and Accelerate."""

from __future__ import annotations

import copy
import pickle
import subprocess

import pytest

import sentinel
from sentinel.client.session import current_session
from sentinel.integrations.callbacks.owned_session import OwnedSession
from sentinel.model.record import Event

SETTINGS = {"run": "copies", "agent": False, "strict": True}


PROGRAM = """
import multiprocessing, sys

import sentinel
from sentinel.client.session import current_session
from sentinel.integrations.callbacks.owned_session import OwnedSession

settings = {"run": "copies", "agent": False, "strict": True}
callback, monitor = OwnedSession(settings), sentinel.monitor(**settings)

@monitor
def train():
    sentinel.log({"x": 7.0}, step=1)

def use(copied):
    assert current_session() is None
    if isinstance(copied, OwnedSession):
        copied.end()
        copied.begin()
        train()
        copied.end()
    elif copied is train:
        train()
    else:
        with copied:
            train()
    assert current_session() is None

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=use, args=(globals()[sys.argv[1]],))
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.mark.fault("I8")
@pytest.mark.parametrize("name", ["callback", "monitor", "train"])
def test_a_copy_in_another_process_does_nothing_until_it_is_used(name, script, recorded):
    subprocess.run([*script(PROGRAM), name], check=True, timeout=240)
    (records,) = recorded().values()
    assert [r.event for r in records] == [Event.START, Event.STEP, Event.STOP]
    assert records[1].values["x"] == 7.0


@pytest.mark.fault("I8")
@pytest.mark.parametrize(
    "make_copy", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))]
)
def test_a_copy_of_an_active_callback_does_not_end_its_session(make_copy, recorded):
    callback = OwnedSession(SETTINGS)
    callback.begin()
    session = current_session()
    copied = make_copy(callback)
    copied.end()
    assert current_session() is session
    copied.begin()
    copied.end()
    assert current_session() is session
    sentinel.log({"x": 1.0}, step=1)
    callback.end()
    assert current_session() is None
    assert [r.event for r in recorded()[0]][-2:] == [Event.STEP, Event.STOP]


@pytest.mark.fault("I8")
@pytest.mark.parametrize("make_copy", [copy.copy, copy.deepcopy])
def test_a_copied_monitor_joins_the_session_of_the_original(make_copy, recorded):
    monitor = sentinel.monitor(**SETTINGS)
    with monitor:
        session = current_session()
        with make_copy(monitor):
            assert current_session() is session
            sentinel.log({"x": 1.0}, step=1)
        assert current_session() is session
    assert sum(r.event is Event.START for r in recorded()[0]) == 1
