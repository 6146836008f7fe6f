"""Tap: what is missing is named, what fails is switched off, and everything is put back."""

from types import SimpleNamespace

import pytest
from support.recorders import Told

from sentinel.client.capture.loop import TrainingLoop
from sentinel.client.capture.patcher import MAX_ERRORS_PER_INTEGRATION, Patcher
from sentinel.model.record import Event


class Engine:
    """A framework's."""

    def step(self, size=1):
        return 2 * size


@pytest.fixture
def rank(tmp_path):
    return Told(tmp_path / "0-0.ring")


@pytest.fixture
def tap(rank):
    tap = Patcher("engine", rank.recorder, TrainingLoop(rank.recorder))
    yield tap
    tap.undo()
    assert vars(Engine)["step"].__qualname__ == "Engine.step"


def states(rank):
    return [r.attributes["tap/engine"] for r in rank.records() if r.event is Event.METADATA]


def test_what_is_watched_is_seen_and_does_what_it_did(tap):
    seen = []
    tap.wrap(
        Engine,
        "step",
        before=lambda engine, size: seen.append(size),
        after=lambda result, engine, size: seen.append(result),
    )

    assert Engine().step(size=3) == 6
    assert seen == [3, 6]


def test_what_a_framework_raises_is_its_own(tap):
    seen = []
    tap.wrap(Engine, "step", after=lambda *_, **__: seen.append("after"))

    with pytest.raises(TypeError, match="nonsense"):
        Engine().step(nonsense=1)
    assert seen == []


def test_an_argument_may_have_any_name(tap):
    owner = type("Owner", (), {"log": lambda self, **values: values})
    heard = []
    tap.wrap(owner, "log", before=lambda owner, **values: heard.append(values))

    assert owner().log(body=1, tap=2) == {"body": 1, "tap": 2}
    assert heard == [{"body": 1, "tap": 2}]


@pytest.mark.parametrize("kind", [staticmethod, classmethod, property])
def test_what_has_become_no_plain_method_is_left_alone(tap, kind):
    there = kind(lambda *given: given)
    owner = type("Owner", (), {"step": there})
    tap.wrap(owner, "step", before=lambda *_: None)

    assert vars(owner)["step"] is there
    assert tap.missing == ["Owner.step"]


def test_what_a_version_lacks_is_named_and_the_rest_is_tapped(rank, tap):
    def integration(tap):
        tap.wrap(Engine, "forward")
        tap.wrap(Engine, "step", after=lambda *_, **__: None)

    tap.attach(integration)

    assert states(rank) == ["on, without Engine.forward"]
    assert vars(Engine)["step"].__wrapped__


@pytest.mark.quiet
def test_a_tap_that_fails_switches_itself_off_alone_and_says_so(rank, tap):
    tried = []

    def counted(engine):
        tried.append(1)
        raise KeyError("private")

    tap.attach(lambda tap: tap.wrap(Engine, "step", before=counted))
    engine = Engine()
    assert [engine.step() for _ in range(MAX_ERRORS_PER_INTEGRATION + 5)] == [2] * (
        MAX_ERRORS_PER_INTEGRATION + 5
    )

    assert len(tried) == MAX_ERRORS_PER_INTEGRATION
    assert states(rank) == ["on", "off: KeyError in counted"]
    assert rank.reader.read_header().own_errors == MAX_ERRORS_PER_INTEGRATION
    assert not rank.recorder.try_lock.guard.disabled


@pytest.mark.quiet
def test_an_integration_that_cannot_be_attached_leaves_nothing_behind(rank, tap):
    def integration(tap):
        tap.wrap(Engine, "step")
        raise ImportError

    tap.attach(integration)

    assert states(rank) == ["off: ImportError in attach"]
    assert not hasattr(Engine.step, "__wrapped__")


def test_what_somebody_patched_over_us_stays(tap):
    owner = type("Owner", (), {"step": lambda self: 1})
    tap.wrap(owner, "step")
    theirs = owner.step = lambda self: 3

    tap.undo()

    assert owner.step is theirs


def test_a_module_may_be_patched_like_a_class(tap):
    module = SimpleNamespace(__name__="module", norm=abs)
    tap.wrap(module, "norm")
    assert module.norm is not abs

    tap.undo()

    assert module.norm is abs


def test_what_a_framework_logs_is_told_apart_from_what_the_taps_have(rank):
    rank.record_step(loss=float("nan"))
    rank.recorder.log_from_framework({"loss": 0.0, "train/loss": 0.0, "kl": 0.5}, 1)

    values = rank.values()[-1]

    assert values["loss"] != values["loss"]
    assert (values["logged_loss"], values["kl"]) == (0.0, 0.5)


def test_a_frameworks_own_count_needs_no_values(rank):
    rank.record_step(loss=1.0)
    rank.recorder.log_from_framework({}, 500)

    record = rank.records()[-1]

    assert (record.step, record.values["loss"], record.values["global_step"]) == (500, 1.0, 500)
