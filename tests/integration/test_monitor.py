"""A decorated function behaves as before, and its ring records how it ended."""

import asyncio
import functools
import inspect
import os
import subprocess
import threading
from dataclasses import replace

import pytest

import sentinel
from sentinel.client import session
from sentinel.client.outcome import outcome_attributes
from sentinel.client.session import current_session
from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.pipeline.engine import Result
from sentinel.store.run_summary import make_summary

monitored = sentinel.monitor(run="test", agent=False)


def stop_attributes(records):
    """Attributes of the only STOP, which is the last record."""
    assert [r.event for r in records].count(Event.STOP) == 1
    assert records[-1].event is Event.STOP
    return records[-1].attributes


@pytest.mark.fault("I7")
def test_name_signature_and_result_are_preserved(recorded):
    @monitored
    def train(lr: float, *, steps: int = 3) -> str:
        """Train."""
        return f"{lr} {steps}"

    assert train(0.1, steps=5) == "0.1 5"
    assert (train.__name__, train.__doc__) == ("train", "Train.")
    assert list(inspect.signature(train).parameters) == ["lr", "steps"]
    assert stop_attributes(recorded()[0]) == {"outcome": "finished"}


@pytest.mark.fault("T1")
def test_bare_called_and_entered_record_the_same(monkeypatch, recorded):
    monkeypatch.setattr(session, "AgentSupervisor", lambda *_: None)

    @sentinel.monitor
    def bare():
        sentinel.log({"x": 1.0})

    bare()
    monitored(lambda: sentinel.log({"x": 1.0}))()
    with monitored:
        sentinel.log({"x": 1.0})

    events = [record.event for record in recorded()[0]]
    assert events == [Event.START, Event.STEP, Event.STOP] * 3


def test_the_name_of_a_run_is_kept_beside_its_id(recorded):
    with sentinel.monitor(run="Zoë's run", agent=False):
        sentinel.log({"loss": 1.0})
    start = recorded()[0][0]
    exposition = Exposition(Counters(), {}, run=start.run)
    exposition.update(Result(replace(start, rank=WHOLE_RUN)))
    state = exposition.state()

    assert state["run"].startswith("zo-s-run-")
    assert state["name"] == "Zoë's run"
    assert make_summary(state, ("", [], None))["name"] == "Zoë's run"


def test_start_records_the_metadata_of_the_run(recorded):
    with sentinel.monitor(
        agent=False,
        save_steps=500,
        max_steps=4000,
        metadata={"lr": 1e-5, "algo": "grpo", "bf16": True},
    ):
        pass

    start = recorded()[0][0]
    assert start.event is Event.START
    assert start.values == {
        "world_size": 1.0,
        "local_world_size": 1.0,
        "save_steps": 500.0,
        "max_steps": 4000.0,
        "lr": 1e-5,
    }
    assert start.attributes["algo"] == "grpo"
    assert start.attributes["bf16"] == "true"
    assert start.attributes["pid"] == str(os.getpid())
    assert {"host", "script", "python", "framework"} <= start.attributes.keys()


@pytest.mark.fault("P4")
@pytest.mark.parametrize(
    ("error", "attributes"),
    [
        (
            ValueError("no"),
            {"outcome": "exception", "exception": "ValueError", "message": "no"},
        ),
        (KeyboardInterrupt(), {"outcome": "interrupted"}),
        (SystemExit(), {"outcome": "finished"}),
        (SystemExit(0), {"outcome": "finished"}),
        (SystemExit(3), {"outcome": "exit", "code": "3"}),
        (SystemExit("died of"), {"outcome": "exit", "code": "1"}),
    ],
    ids=repr,
)
def test_an_exception_propagates_and_is_recorded(error, attributes, recorded, headers):
    @monitored
    def train():
        raise error

    with pytest.raises(type(error)) as caught:
        train()

    assert caught.value is error
    recorded_attributes = dict(stop_attributes(recorded()[0]))
    location = recorded_attributes.pop("location", "")
    assert recorded_attributes == attributes
    assert location.startswith("test_monitor.py:") is (attributes["outcome"] == "exception")
    assert headers()[0].outcome == attributes["outcome"]


def test_a_generator_closed_early_counts_as_finished():
    assert outcome_attributes(GeneratorExit()) == {"outcome": "finished"}


@pytest.mark.fault("P5")
@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_of_the_process_is_preserved(code, script, recorded):
    line = script(f"""
import sys, sentinel
@sentinel.monitor(agent=False)
def train():
    sys.exit({code})
train()
""")

    assert subprocess.run(line, timeout=240, check=False).returncode == code
    assert stop_attributes(recorded()[0])["outcome"] == ("exit" if code else "finished")


@pytest.mark.fault("I7")
def test_nested_decorated_calls_are_one_run(recorded):
    @monitored
    def inner():
        sentinel.log({"inner": 1.0})
        raise KeyError

    @monitored
    @monitored
    def outer():
        with pytest.raises(KeyError):
            inner()
        sentinel.log({"outer": 1.0})

    outer()

    events = [record.event for record in recorded()[0]]
    assert events == [Event.START, Event.STEP, Event.STEP, Event.STOP]
    assert stop_attributes(recorded()[0]) == {"outcome": "finished"}


@pytest.mark.fault("I7")
def test_recursion_is_one_run(recorded):
    @monitored
    def recurse(depth):
        return recurse(depth - 1) if depth else current_session()

    assert recurse(5) is not None
    assert len(recorded()[0]) == 2


def test_threads_share_a_run(recorded):
    @monitored
    def work(barrier):
        barrier.wait(240)
        sentinel.log({"x": 1.0})
        barrier.wait(240)

    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=work, args=(barrier,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    records = recorded()[0]
    assert [record.event for record in records].count(Event.START) == 1
    assert sum(record.event is Event.STEP for record in records) == 4


@pytest.mark.fault("I7")
def test_a_coroutine_is_monitored_while_it_runs(recorded):
    @monitored
    async def train():
        await asyncio.sleep(0)
        sentinel.log({"x": 1.0})
        return 5

    assert inspect.iscoroutinefunction(train)
    assert asyncio.run(train()) == 5
    assert [r.event for r in recorded()[0]] == [Event.START, Event.STEP, Event.STOP]


@pytest.mark.fault("I7")
def test_a_generator_is_monitored_while_it_runs(recorded):
    @monitored
    def train():
        received = yield 1
        sentinel.log({"received": received})
        return "end"

    running = train()
    assert current_session() is None
    assert next(running) == 1
    with pytest.raises(StopIteration) as end:
        running.send(7)

    assert end.value.value == "end"
    assert recorded()[0][1].values == {"received": 7.0}


@pytest.mark.fault("I7")
def test_an_asynchronous_generator_is_monitored(recorded):
    @monitored
    async def train():
        for step in range(3):
            sentinel.log({"x": 1.0}, step=step)
            yield step

    async def drive():
        return [step async for step in train()]

    assert asyncio.run(drive()) == [0, 1, 2]
    assert len(recorded()[0]) == 5


@pytest.mark.fault("I7")
def test_methods_partials_and_callables_are_monitored(recorded):
    class Trainer:
        @monitored
        def train(self, x):
            return self, x

        def __call__(self):
            return "called"

    trainer = Trainer()
    assert trainer.train(3) == (trainer, 3)
    assert monitored(functools.partial(int, "7"))() == 7
    assert monitored(trainer)() == "called"
    assert len(recorded()[0]) == 6


def test_each_run_of_a_process_is_a_new_attempt(recorded):
    for _ in range(3):
        with monitored:
            pass

    assert [record.attempt for record in recorded()[0]] == [0, 0, 1, 1, 2, 2]


def test_sentinel_off_disables_everything(monkeypatch, recorded, tmp_path):
    monkeypatch.setenv("SENTINEL_OFF", "1")
    with monitored:
        sentinel.log({"x": 1.0})
        assert current_session() is None

    assert recorded() == {}
    assert not (tmp_path / "home").exists()


def test_marks_and_phases_are_recorded(recorded):
    with monitored:
        sentinel.mark("save", step=500, path="/ckpt")
        with pytest.raises(RuntimeError), sentinel.phase("eval"):
            raise RuntimeError
        sentinel.mark("eval", loss=0.5)

    _, save, begin, end, evaluated, _ = recorded()[0]
    assert (save.event, save.step, save.attributes) == (Event.SAVE, 500, {"path": "/ckpt"})
    assert [begin.attributes, end.attributes] == [
        {"name": "eval", "edge": "begin"},
        {"name": "eval", "edge": "end"},
    ]
    assert (evaluated.event, evaluated.values) == (Event.EVAL, {"loss": 0.5})


def test_an_unknown_mark_is_counted(headers):
    with monitored:
        sentinel.mark("safe")
        sentinel.mark(5)

    assert sum(headers()[0].drop_counts) == 2


@pytest.mark.swallows_errors
def test_an_unknown_mark_raises_when_strict():
    with sentinel.monitor(agent=False, strict=True), pytest.raises(ValueError, match="eval"):
        sentinel.mark("safe")
