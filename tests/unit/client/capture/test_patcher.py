"""A patcher names what is missing, switches off what fails, and undoes every change."""

from types import SimpleNamespace

import pytest
from support.recorders import RecordedRank

from sentinel.client.capture.loop import TrainingLoop
from sentinel.client.capture.patcher import MAX_ERRORS_PER_INTEGRATION, Patcher
from sentinel.model.record import Event


class Engine:
    """A class of a framework."""

    def step(self, size=1):
        return 2 * size


@pytest.fixture
def rank(tmp_path):
    return RecordedRank(tmp_path / "0-0.ring")


@pytest.fixture
def patcher(rank):
    patcher = Patcher("engine", rank.recorder, TrainingLoop(rank.recorder))
    yield patcher
    patcher.undo()
    assert vars(Engine)["step"].__qualname__ == "Engine.step"


def states(rank):
    return [r.attributes["patch/engine"] for r in rank.records() if r.event is Event.METADATA]


def test_a_wrapped_method_is_observed_and_returns_its_own_result(patcher):
    events = []
    patcher.wrap(
        Engine,
        "step",
        before=lambda engine, size: events.append(size),
        after=lambda result, engine, size: events.append(result),
    )

    assert Engine().step(size=3) == 6
    assert events == [3, 6]


def test_an_error_of_the_framework_propagates(patcher):
    events = []
    patcher.wrap(Engine, "step", after=lambda *_, **__: events.append("after"))

    with pytest.raises(TypeError, match="nonsense"):
        Engine().step(nonsense=1)
    assert events == []


def test_a_keyword_argument_may_have_any_name(patcher):
    owner = type("Owner", (), {"log": lambda self, **values: values})
    received = []
    patcher.wrap(owner, "log", before=lambda owner, **values: received.append(values))

    assert owner().log(body=1, patcher=2) == {"body": 1, "patcher": 2}
    assert received == [{"body": 1, "patcher": 2}]


@pytest.mark.parametrize("kind", [staticmethod, classmethod, property])
def test_an_attribute_that_is_not_a_plain_method_is_not_patched(patcher, kind):
    attribute = kind(lambda *given: given)
    owner = type("Owner", (), {"step": attribute})
    patcher.wrap(owner, "step", before=lambda *_: None)

    assert vars(owner)["step"] is attribute
    assert patcher.missing == ["Owner.step"]


def test_a_missing_method_is_named_and_the_others_are_patched(rank, patcher):
    def integration(patcher):
        patcher.wrap(Engine, "forward")
        patcher.wrap(Engine, "step", after=lambda *_, **__: None)

    patcher.attach(integration)

    assert states(rank) == ["on, without Engine.forward"]
    assert vars(Engine)["step"].__wrapped__


@pytest.mark.swallows_errors
def test_an_integration_that_fails_is_switched_off_alone_and_reported(rank, patcher):
    calls = []

    def fails(engine):
        calls.append(1)
        raise KeyError("private")

    patcher.attach(lambda patcher: patcher.wrap(Engine, "step", before=fails))
    engine = Engine()
    assert [engine.step() for _ in range(MAX_ERRORS_PER_INTEGRATION + 5)] == [2] * (
        MAX_ERRORS_PER_INTEGRATION + 5
    )

    assert len(calls) == MAX_ERRORS_PER_INTEGRATION
    assert states(rank) == ["on", "off: KeyError in fails"]
    assert rank.reader.read_header().errors == MAX_ERRORS_PER_INTEGRATION
    assert not rank.recorder.try_lock.guard.disabled


@pytest.mark.swallows_errors
def test_an_integration_that_cannot_be_attached_is_undone(rank, patcher):
    def integration(patcher):
        patcher.wrap(Engine, "step")
        raise ImportError

    patcher.attach(integration)

    assert states(rank) == ["off: ImportError in attach"]
    assert not hasattr(Engine.step, "__wrapped__")


def test_a_later_patch_by_others_is_kept(patcher):
    owner = type("Owner", (), {"step": lambda self: 1})
    patcher.wrap(owner, "step")
    other = owner.step = lambda self: 3

    patcher.undo()

    assert owner.step is other


def test_a_module_can_be_patched_like_a_class(patcher):
    module = SimpleNamespace(__name__="module", norm=abs)
    patcher.wrap(module, "norm")
    assert module.norm is not abs

    patcher.undo()

    assert module.norm is abs


def test_a_framework_log_of_a_captured_name_is_renamed(rank):
    rank.take_step(loss=float("nan"))
    rank.recorder.log_from_framework({"loss": 0.0, "train/loss": 0.0, "kl": 0.5}, 1)

    values = rank.values()[-1]

    assert values["loss"] != values["loss"]
    assert (values["logged_loss"], values["kl"]) == (0.0, 0.5)


def test_a_framework_may_log_a_step_number_without_values(rank):
    rank.take_step(loss=1.0)
    rank.recorder.log_from_framework({}, 500)

    record = rank.records()[-1]

    assert (record.step, record.values["loss"], record.values["global_step"]) == (500, 1.0, 500)
