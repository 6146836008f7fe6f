"""Training continues whatever happens to its session, and forked children do not take part."""

import os
import subprocess
from contextlib import nullcontext
from importlib import import_module

import pytest

import sentinel
from sentinel.client import session
from sentinel.client.guard import ErrorGuard
from sentinel.client.session import current_session
from sentinel.model.record import Event

monitored = sentinel.monitor(run="test", agent=False)


@pytest.mark.swallows_errors
def test_training_continues_without_a_ring(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "file"))

    assert monitored(lambda: 5)() == 5
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.swallows_errors
def test_an_integration_that_cannot_be_imported_does_not_affect_others(
    monkeypatch, reported_metadata
):
    import_module("torch")
    monkeypatch.setattr(session, "integration_names", lambda: ["broken", "torch_loop"])
    with monitored:
        pass

    known = reported_metadata()[0]
    assert known["patch/broken"] == "off: ModuleNotFoundError in import"
    assert known["patch/torch_loop"] == "on"


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("part", ["__init__", "open"])
@pytest.mark.swallows_errors
def test_a_run_that_failed_to_start_does_not_prevent_the_next(
    monkeypatch, recorded, strict, failure, part
):
    def fail(*_):
        raise failure

    raised = strict or failure is KeyboardInterrupt
    with monkeypatch.context() as patch:
        patch.setattr(session.Session, part, fail)
        with (
            pytest.raises(failure) if raised else nullcontext(),
            sentinel.monitor(run="test", agent=False, strict=strict),
        ):
            pass
    assert session.CurrentSession.depth == 0

    with monitored:
        sentinel.log({"x": 1.0})
    assert [r.values["x"] for r in recorded()[0] if r.event is Event.STEP] == [1.0]


@pytest.mark.fault("S3")
def test_with_full_shared_memory_the_ring_is_in_the_run_directory(monkeypatch, tmp_path, recorded):
    fitting = session.fitting_capacity
    full = lambda directory, **more: 0 if "shm" in str(directory) else fitting(directory, **more)  # noqa: E731
    monkeypatch.setattr(session, "fitting_capacity", full)
    with sentinel.monitor(run="t", agent=False):
        sentinel.log({"x": 1.0})

    (ring,) = (tmp_path / "home" / "runs").rglob("*.ring")
    assert ring.name == "0-0.ring"


@pytest.mark.fault("I6")
def test_a_forked_child_records_nothing_and_is_not_killed(recorded):
    """The ring is mapped only in the parent; a child that accessed it would be killed."""
    with monitored:
        sentinel.log({"x": 1.0})
        child = os.fork()
        if child == 0:
            code = 1
            try:
                sentinel.log({"x": 2.0})
                sentinel.mark("save")
                code = 0 if current_session() is None else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        sentinel.log({"x": 3.0})

    logged = [record.values["x"] for record in recorded()[0] if record.event is Event.STEP]
    assert logged == [1.0, 3.0]


@pytest.mark.fault("I6")
def test_a_forked_child_can_have_its_own_session(recorded):
    with monitored:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.environ["RANK"] = "1"
                with monitored:
                    sentinel.log({"child": 1.0})
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0

    assert recorded()[1][1].values == {"child": 1.0}


@pytest.mark.swallows_errors
def test_a_broken_integration_does_not_affect_training(monkeypatch, headers):
    def broken(recorder):
        raise RuntimeError("internal")

    monkeypatch.setattr(session, "integration_names", lambda: {"sys": broken})

    assert monitored(lambda: 5)() == 5
    assert headers()[0].errors == 1


def test_a_framework_imported_later_is_attached_at_its_import(script, recorded):
    line = script("""
import sys, sentinel
@sentinel.monitor(agent=False)
def train():
    assert "torch" not in sys.modules
    import torch
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    (weight * 3).sum().backward()
    optimizer.step()
    assert type(torch.__loader__).__name__ == "SourceFileLoader"
train()
assert not any("sentinel" in type(f).__module__ for f in sys.meta_path)
""")

    subprocess.run(line, timeout=240, check=True)

    values = recorded()[0][1].values
    assert (values["loss"], values["learning_rate"], values["grad_norm"]) == (3.0, 0.5, 3.0)


COLLECTIVE_MODULES = (
    "aggregation", "chunk", "gather_group", "readiness", "replica_rings", "sender", "shutdown",
)  # fmt: skip


@pytest.mark.parametrize("argument", ["", "aggregate='collective', "])
def test_the_collective_is_only_imported_if_it_is_enabled(script, monkeypatch, argument):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    line = script(f"""
import sys, sentinel
from sentinel.client.recorder import Recorder
from sentinel.client.session import CurrentSession
with sentinel.monitor({argument}agent=False):
    plain = type(CurrentSession.recorder) is Recorder
    for step in range(3):
        sentinel.log({{"x": 1.0}}, step=step)
prefix = "sentinel.client.collective."
print(plain, *(name for name in {COLLECTIVE_MODULES} if prefix + name in sys.modules))
""")

    plain, *loaded = subprocess.check_output(line, timeout=240, text=True).split()

    assert (plain, loaded) == (("False", [*COLLECTIVE_MODULES]) if argument else ("True", []))


@pytest.mark.fault("P10")
def test_nothing_is_printed_at_interpreter_shutdown(script):
    line = script("""
import sentinel
class Late:
    def __del__(self):
        sentinel_log({"x": 1.0}, step=1)
sentinel_log = sentinel.log
late = Late()
entered = sentinel.monitor(agent=False).__enter__()
""")

    done = subprocess.run(line, timeout=240, check=True, capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("flags", [["-O"], ["-W", "error"], ["-X", "dev", "-W", "error"]], ids=str)
def test_it_runs_with_every_interpreter_flag(flags, script, headers):
    line = script("""
import sentinel
with sentinel.monitor(agent=False):
    sentinel.log({"x": 1.0, "bad": "x"}, step=1)
""")

    done = subprocess.run(
        [line[0], *flags, line[1]], timeout=240, check=True, capture_output=True, text=True
    )

    assert done.stderr == ""
    assert headers()[0].errors == 0


def test_strict_is_passed_to_the_guard():
    with sentinel.monitor(agent=False, strict=True):
        assert isinstance(current_session().guard, ErrorGuard)
        assert current_session().guard.strict
