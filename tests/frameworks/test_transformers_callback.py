"""The callback for a Trainer monitors like the decorator, and adds nothing to it."""

from functools import partial

import pytest
from requirements import need
from support.training_loops import column, steps

import sentinel
from sentinel.model.record import Event

need("transformers", "accelerate", "datasets")
from recording_trainers import plain

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

watched = sentinel.monitor(run="test", agent=False, strict=True)


@pytest.fixture
def build(tokens, tmp_path):
    return partial(plain, tokens, tmp_path / "out")


def test_the_callback_monitors_without_a_decorator(build, recorded):
    from sentinel.client.session import current_session
    from sentinel.integrations.callbacks.transformers import TransformersCallback

    callback = TransformersCallback(run="test", agent=False, strict=True)
    trainer = build(callbacks=[callback])
    assert current_session() is None

    trainer.train()

    assert current_session() is None
    assert column(recorded, "loss") == pytest.approx(trainer.loss_sums, rel=1e-6)
    assert [r.step for r in steps(recorded) if "loss" in r.values] == [1, 2, 3, 4]
    assert recorded()[0][-1].attributes == {"outcome": "finished"}


def test_the_callback_adds_nothing_to_a_monitored_run(build, recorded):
    from sentinel.integrations.callbacks.transformers import TransformersCallback

    trainer = build(callbacks=[TransformersCallback(run="other", agent=False)])

    watched(trainer.train)()

    assert {record.run for record in recorded()[0]} == {recorded()[0][0].run}
    assert len(column(recorded, "loss")) == 4
    assert [r.event for r in recorded()[0]].count(Event.STOP) == 1


def test_the_callback_refuses_an_unknown_setting():
    from sentinel.integrations.callbacks.transformers import TransformersCallback

    with pytest.raises(sentinel.SettingsError, match="did you mean 'run'"):
        TransformersCallback(rum="test")
